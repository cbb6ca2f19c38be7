"""`ops/` is what its table says, and each alert has its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ops_kit
from ops_boards import boards, expressions

from gate.fleet import metric_names as names

ROOT = Path(__file__).resolve().parents[2]
METRICS = {metric.name: set(metric.labels) for metric in names.METRICS}
RECORDED = {one.name for one in ops_kit.RECORDED}


def test_the_files_are_what_the_tables_say() -> None:
    assert ops_kit.stale() == []


def test_a_file_that_somebody_changed_is_found(tmp_path: Path) -> None:
    for path, text in ops_kit.files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "prometheus/rules.yml").write_text("groups: []\n")
    (tmp_path / "own.yml").write_text("")
    assert ops_kit.stale(tmp_path) == ["own.yml", "prometheus/rules.yml"]


def every_expression() -> list[str]:
    rules = [one.expr for one in (*ops_kit.RECORDED, *ops_kit.ALERTS)]
    return [*rules, *(expr for board in boards() for expr in expressions(board))]


def test_an_expression_names_only_metrics_that_there_are() -> None:
    named = {name for expr in every_expression() for name in re.findall(r"repro_gate[\w:]*", expr)}
    assert named - METRICS.keys() - RECORDED == set()


def test_an_expression_selects_only_labels_that_the_metric_has() -> None:
    wrong = [
        (metric, label)
        for expr in every_expression()
        for metric, selected in re.findall(r"(repro_gate_\w+)\{([^}]*)\}", expr)
        for label in re.findall(r"(\w+)=", selected)
        if label not in METRICS[metric]
    ]
    assert wrong == []


def test_the_page_tells_of_every_alert_and_where_it_goes() -> None:
    page = (ROOT / "docs/operations.md").read_text("utf-8")
    told = re.findall(r"^\| `(ReproGate\w+)` \| (page|ticket) \|", page, re.MULTILINE)
    assert told == [(alert.name, alert.severity) for alert in ops_kit.ALERTS]


def test_an_alert_links_a_heading_that_there_is() -> None:
    for alert in ops_kit.ALERTS:
        link = ops_kit.annotated(alert, alert.labels)["runbook_url"]
        file, _, anchor = link.removeprefix(f"{ops_kit.PAGES}/").partition("#")
        page = (ROOT / "docs" / file).read_text("utf-8")
        headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_a_dashboard_has_each_panel_once_and_on_the_grid() -> None:
    for board in boards():
        panels = board["panels"]
        assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
        places = [panel["gridPos"] for panel in panels]
        cells = [
            (left, top)
            for place in places
            for left in range(place["x"], place["x"] + place["w"])
            for top in range(place["y"], place["y"] + place["h"])
        ]
        assert max(left for left, _ in cells) < 24
        assert len(cells) == len(set(cells))
        json.dumps(board, allow_nan=False)
