"""The three Grafana dashboards of `ops/grafana/`, from tables of panels: executive, on-call, debug.

The result is Grafana's dashboard JSON. `make ops` checks it against the types of the npm package
`@grafana/schema`, and runs every expression on a Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gate.fleet import metric_names as names

SCHEMA_VERSION: Final = 39
COLUMNS: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
GATE: Final = "repository, gate_id"
OF_GATE: Final = '{repository=~"$repository", gate_id=~"$gate_id"}'
FAILING: Final = (
    f"max by ({GATE}, run_id, commit, outcome, failure_mode, runner) ({names.LAST_INFO.name}) "
    f"and on ({GATE}) max by ({GATE}) ({names.LAST_PASSES.name}) == 0"
)
LAST: Final = (
    f"max by ({GATE}, run_id, commit, outcome, level, failure_mode, author, runner, environment) "
    f"({names.LAST_INFO.name}{OF_GATE})"
)
ALERTS: Final = 'ALERTS{alertname=~"ReproGate.*", alertstate="firing"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """A panel; `targets` are pairs of an expression and its legend.

    `kind` and `unit` are Grafana's names. `width` and `height` are in units of its grid of 24
    columns. `says` is the panel's description.
    """

    title: str
    targets: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 12
    height: int = 8
    lower_is_worse: bool = False
    says: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Board:
    """A dashboard; `by_gate` adds variables by which a reader selects repositories and gates."""

    uid: str
    title: str
    says: str
    panels: tuple[Shown, ...]
    by_gate: bool = False
    since: str = "now-7d"


def _stat(title: str, expr: str, unit: str = "short") -> Shown:
    """Return a panel with one number; a share is green from 95 % on."""
    return Shown(
        title=title,
        targets=((expr, ""),),
        kind="stat",
        unit=unit,
        width=4,
        height=4,
        lower_is_worse=unit == "percentunit",
    )


def _of(metric: names.MetricName) -> str:
    """Return an expression for a metric of the selected gates; `max` merges pushed and read."""
    return f"max by ({GATE}) ({metric.name}{OF_GATE})"


def _line(title: str, metric: names.MetricName, unit: str = "short", says: str = "") -> Shown:
    return Shown(title=title, targets=((_of(metric), "{{gate_id}}"),), unit=unit, says=says)


EXECUTIVE: Final = Board(
    uid="repro-gate-executive",
    title="repro-gate: executive",
    says="How much of the training in all repositories can be reproduced, and for how long.",
    since="now-30d",
    panels=(
        _stat("Gates", f"count(max by ({GATE}) ({names.LAST_TIME.name}))"),
        _stat("Reproducible runs", 'repro_gate:sli:fleet_ratio{indicator="M1"}', "percentunit"),
        _stat("Commits with one outcome", 'repro_gate:sli:fleet_ratio{indicator="M4"}',
              "percentunit"),
        _stat("Sealed passes", 'repro_gate:sli:fleet_ratio{indicator="M9"}', "percentunit"),
        _stat("Gates below a target",
              f"count(count by ({GATE}) ({names.BUDGET_LEFT.name} < 0)) or vector(0)"),
        _stat("Silent gates", f"sum(max by ({GATE}) ({names.SILENT.name}))"),
        Shown(title="Service levels of all gates",
              targets=(("repro_gate:sli:fleet_ratio", "{{indicator}}"),), unit="percentunit"),
        Shown(title="Lowest error budget left",
              targets=(("repro_gate:slo:lowest_budget_left", "{{indicator}}"),),
              kind="bargauge", unit="percentunit", lower_is_worse=True),
        Shown(title="Verdicts in the window by outcome",
              targets=(("repro_gate:verdicts:by_outcome", "{{outcome}}"),), kind="bargauge"),
        Shown(title="Verdicts in the window by failure mode",
              targets=(('repro_gate:verdicts:by_mode{failure_mode!="none"}', "{{failure_mode}}"),),
              kind="bargauge", says="F1 to F8: docs/runbooks.md"),
        Shown(title="Time to verdict",
              targets=((f"avg(max by ({GATE}) ({names.LAST_SECONDS.name}))", "mean"),
                       (f"max({names.LAST_SECONDS.name})", "slowest")), unit="s"),
        Shown(title="Cost of determinism",
              targets=((f"avg(max by ({GATE}) ({names.LAST_COST.name})) - 1", "mean"),),
              unit="percentunit"),
    ),
)  # fmt: skip

ON_CALL: Final = Board(
    uid="repro-gate-on-call",
    title="repro-gate: on call",
    says="What fires, what burns, and which run to open first.",
    since="now-24h",
    panels=(
        _stat("Firing alerts", f"count({ALERTS}) or vector(0)"),
        _stat("Pages", 'count(ALERTS{alertname=~"ReproGate.*", alertstate="firing", '
              'severity="page"}) or vector(0)'),
        _stat("Failing gates", f"count(max by ({GATE}) ({names.LAST_PASSES.name}) == 0) or "
              "vector(0)"),
        _stat("Silent gates", f"sum(max by ({GATE}) ({names.SILENT.name}))"),
        _stat("Lines left out", f"sum(max by (reason) ({names.UNREADABLE.name})) or vector(0)"),
        _stat("History read ago", f"time() - max({names.READ_AT.name})", "s"),
        Shown(title="Firing alerts", targets=((ALERTS, ""),), kind="table"),
        Shown(title="Last verdicts that do not pass: run, failure mode",
              targets=((FAILING, ""),), kind="table",
              says="The runbook of each mode: docs/runbooks.md"),
        Shown(title="Error budget spent in an hour",
              targets=((f'max by ({GATE}, indicator) ({names.BUDGET_SPENT.name}{{window="1h"}})',
                        "{{gate_id}} {{indicator}}"),), unit="percentunit",
              says="Above 25 % somebody is paged."),
        Shown(title="Burn rate over three days",
              targets=((f'max by ({GATE}, indicator) ({names.BURN_RATE.name}{{window="3d"}})',
                        "{{gate_id}} {{indicator}}"),), says="Above 1 the budget will not last."),
        Shown(title="Age of the last verdict",
              targets=(("repro_gate:last_verdict:age_seconds", "{{gate_id}}"),
                       (f"max by ({GATE}) ({names.SILENT_LIMIT.name})", "limit of {{gate_id}}")),
              unit="s"),
        Shown(title="Verdicts in the window by failure mode",
              targets=(("repro_gate:verdicts:by_mode", "{{failure_mode}}"),), kind="bargauge"),
    ),
)  # fmt: skip

DEBUG: Final = Board(
    uid="repro-gate-debug",
    title="repro-gate: debug",
    says="One gate over time: what moved when, and on which machine.",
    by_gate=True,
    panels=(
        Shown(title="Last verdict", targets=((LAST, ""),), kind="table", width=24, height=6),
        Shown(title="Outcome",
              targets=((_of(names.LAST_PASSES), "{{gate_id}} passes"),
                       (_of(names.LAST_SEALED), "{{gate_id}} is sealed")), kind="state-timeline"),
        Shown(title="Environment",
              targets=((f"max by ({GATE}, environment) ({names.LAST_INFO.name}{OF_GATE})",
                        "{{gate_id}} {{environment}}"),), kind="state-timeline",
              says="A new row is another machine, driver, image or package."),
        Shown(title="Runner",
              targets=((f"max by ({GATE}, runner) ({names.LAST_INFO.name}{OF_GATE})",
                        "{{gate_id}} {{runner}}"),), kind="state-timeline"),
        Shown(title="Equal digests, verified data",
              targets=((_of(names.LAST_DIGESTS), "{{gate_id}} digests"),
                       (_of(names.LAST_DATA), "{{gate_id}} data")), kind="state-timeline"),
        _line("Spread of metrics between strict runs", names.LAST_SPREAD, "percentunit"),
        _line("Operators without a deterministic kernel", names.LAST_OPERATORS),
        _line("Step time of strict runs", names.LAST_STEP, "s"),
        _line("Time to verdict", names.LAST_SECONDS, "s"),
        _line("Cost of determinism, strict over default", names.LAST_COST),
        Shown(title="Good share by indicator",
              targets=((f"repro_gate:sli:ratio{OF_GATE}", "{{gate_id}} {{indicator}}"),
                       (f"max by ({GATE}, indicator) ({names.TARGET.name}{OF_GATE})",
                        "target {{indicator}}")), unit="percentunit"),
    ),
)  # fmt: skip
BOARDS: Final = (EXECUTIVE, ON_CALL, DEBUG)


def boards() -> Iterator[dict[str, Any]]:
    """Return each dashboard as the JSON that Grafana imports."""
    for board in BOARDS:
        yield {
            "uid": board.uid,
            "title": board.title,
            "description": board.says,
            "tags": ["repro-gate"],
            "schemaVersion": SCHEMA_VERSION,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "1m",
            "time": {"from": board.since, "to": "now"},
            "timezone": "utc",
            "templating": {"list": list(_variables(by_gate=board.by_gate))},
            "annotations": {"list": [_annotation()]},
            "links": [],
            "panels": list(_placed(board.panels)),
        }


def expressions(board: dict[str, Any]) -> Iterator[str]:
    """Return every expression of a dashboard's panels and annotations."""
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (one["target"]["expr"] for one in board["annotations"]["list"])


def _variables(*, by_gate: bool) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    if not by_gate:
        return
    shown = names.LAST_INFO.name
    of_repository = f'{shown}{{repository=~"$repository"}}'
    for name, source in (("repository", shown), ("gate_id", of_repository)):
        query = f"label_values({source}, {name})"
        yield {
            "name": name,
            "type": "query",
            "datasource": SOURCE,
            "query": {"query": query, "refId": name},
            "multi": True,
            "includeAll": True,
            # `.*` and not Grafana's default: it also matches a gate whose repository label is empty
            "allValue": ".*",
            "refresh": 2,
            "sort": 1,
        }


def _annotation() -> dict[str, Any]:
    return {
        "name": "Alerts",
        "datasource": SOURCE,
        "enable": True,
        "iconColor": "red",
        "target": {"refId": "Anno", "datasource": SOURCE, "expr": ALERTS},
    }


def _placed(panels: tuple[Shown, ...]) -> Iterator[dict[str, Any]]:
    """Lay the panels out from left to right, and start a new row when one is full."""
    left = top = tallest = 0
    for number, panel in enumerate(panels, 1):
        if left + panel.width > COLUMNS:
            left, top, tallest = 0, top + tallest, 0
        yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": panel.height})
        left, tallest = left + panel.width, max(tallest, panel.height)


def _panel(panel: Shown, number: int, place: dict[str, int]) -> dict[str, Any]:
    at_once = panel.kind in {"stat", "table", "bargauge"}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": expr,
                "legendFormat": legend or "__auto",
                "instant": at_once,
                "range": not at_once,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, (expr, legend) in enumerate(panel.targets)
        ],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel.kind),
    }


def _defaults(panel: Shown) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.lower_is_worse:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": 0.95}]
        if panel.kind == "bargauge":
            steps = [{"color": "red", "value": None}, {"color": "green", "value": 0}]
    return {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}


def _options(kind: str) -> dict[str, Any]:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == "stat":
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "none"}
    if kind == "bargauge":
        return {"reduceOptions": last, "orientation": "horizontal", "displayMode": "basic"}
    if kind == "table":
        return {"showHeader": True}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
