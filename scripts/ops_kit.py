"""Write `ops/` from the tables below: alert rules, their tests, routes and three dashboards.

`python scripts/ops_kit.py` writes the files. `--check` names each file that differs from the
tables. The metrics are those of `gate/fleet/metric_names.py`; docs/operations.md explains the kit.

Prometheus may see a gate twice: pushed by the gate's jobs, and read from a history. So each
expression takes the maximum of both series before it joins or adds anything.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from ops_boards import boards

from gate.fleet import metric_names as names

ROOT: Final = Path(__file__).resolve().parents[1]
OPS: Final = ROOT / "ops"
PAGES: Final = "https://github.com/org/repro-gate/blob/main/docs"
HEAD: Final = "# Written by scripts/ops_kit.py from its tables: change those.\n"
GATE: Final = "repository, gate_id"
LEVEL: Final = f"{GATE}, indicator"
PAGE, TICKET = "page", "ticket"
# The failure modes that a platform team fixes. The others are for the author of the pull request,
# who reads them in the comment, so they make no ticket.
OF_THE_PLATFORM: Final = "F3|F5|F7|F8"
# Applies only if the error budget allows at least one bad event. Without this condition a gate with
# few runs would page for every single failure.
ALLOWS_ONE: Final = "repro_gate:slo:allowed_events >= 1"
DIFFER_AND_PASS: Final = (
    f"max by ({GATE}) ({names.LAST_PASSES.name}) == 1 and "
    f"max by ({GATE}) ({names.LAST_DIGESTS.name}) == 0"
)
NONE_SEALED: Final = (
    f'max by ({GATE}) (repro_gate:slo:bad_ratio{{indicator="M9", window="6h"}} >= 0.999) and '
    f'max by ({GATE}) (repro_gate:sli:ratio{{indicator="M9"}} >= 0.9)'
)
ROLLBACK_FAILED: Final = (
    f'max by ({GATE}) ({names.BUDGET_SPENT.name}{{indicator="M8", window="1h"}}) > 0'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A recording rule of Prometheus: `expr` is stored as the series `name`."""

    name: str
    expr: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert, with the series of its unit tests.

    Each item of `fires` makes the alert fire with `labels`; `quiet` does not. `hold` is how long
    the condition must be true before the alert fires. `page` is the runbook, relative to docs/.
    """

    name: str
    severity: str
    expr: str
    hold: str
    summary: str
    page: str
    fires: tuple[Mapping[str, str], ...]
    labels: Mapping[str, str]
    quiet: Mapping[str, str]


ONE: Final = 'repository="org/r",gate_id="g"'
OF_ONE: Final = {"repository": "org/r", "gate_id": "g"}


def _level(
    metric: names.MetricName, value: str, indicator: str, window: str = ""
) -> dict[str, str]:
    where = f',window="{window}"' if window else ""
    return {f'{metric.name}{{{ONE},indicator="{indicator}"{where}}}': f"{value}x300"}


def _of_gate(metric: names.MetricName, value: str) -> dict[str, str]:
    return {f"{metric.name}{{{ONE}}}": f"{value}x300"}


def _budget(valid: str, target: str = "0.95") -> dict[str, str]:
    return {**_level(names.VALID, valid, "M1"), **_level(names.TARGET, target, "M1")}


def _info(mode: str, run: str = "4711") -> dict[str, str]:
    return {f'{names.LAST_INFO.name}{{{ONE},run_id="{run}",failure_mode="{mode}"}}': "1x300"}


RECORDED: Final = (
    Recorded(
        name="repro_gate:sli:ratio",
        expr=f"max by ({LEVEL}) ({names.GOOD.name}) / max by ({LEVEL}) ({names.VALID.name}) "
        f"and max by ({LEVEL}) ({names.VALID.name}) > 0",
    ),
    Recorded(
        name="repro_gate:sli:fleet_ratio",
        expr=f"sum by (indicator) (max by ({LEVEL}) ({names.GOOD.name})) / "
        f"sum by (indicator) (max by ({LEVEL}) ({names.VALID.name})) "
        f"and sum by (indicator) (max by ({LEVEL}) ({names.VALID.name})) > 0",
    ),
    Recorded(
        name="repro_gate:slo:allowed_events",
        expr=f"(1 - max by ({LEVEL}) ({names.TARGET.name})) * "
        f"max by ({LEVEL}) ({names.VALID.name})",
    ),
    Recorded(
        name="repro_gate:slo:bad_ratio",
        expr=f"max by ({LEVEL}, window) ({names.BURN_RATE.name}) * on ({LEVEL}) group_left () "
        f"(1 - max by ({LEVEL}) ({names.TARGET.name}))",
    ),
    Recorded(
        name="repro_gate:slo:lowest_budget_left",
        expr=f"min by (indicator) ({names.BUDGET_LEFT.name})",
    ),
    Recorded(
        name="repro_gate:verdicts:by_mode",
        expr=f"sum by (failure_mode) (max by ({GATE}, outcome, failure_mode) "
        f"({names.VERDICTS.name}))",
    ),
    Recorded(
        name="repro_gate:verdicts:by_outcome",
        expr=f"sum by (outcome) (max by ({GATE}, outcome, failure_mode) ({names.VERDICTS.name}))",
    ),
    Recorded(
        name="repro_gate:last_verdict:age_seconds",
        expr=f"time() - max by ({GATE}) ({names.LAST_TIME.name})",
    ),
)

ALERTS: Final = (
    Alert(
        name="ReproGateBudgetBurn",
        severity=PAGE,
        expr=f'max by ({LEVEL}) ({names.BUDGET_SPENT.name}{{window="1h"}}) > 0.25 and {ALLOWS_ONE}',
        hold="1m",
        summary="{{ $labels.gate_id }} of {{ $labels.repository }} spent more than 25 % of its "
        "error budget of {{ $labels.indicator }} in an hour",
        page="operations.md#budget-burn",
        fires=({**_level(names.BUDGET_SPENT, "0.3", "M1", "1h"), **_budget("40")},),
        labels={**OF_ONE, "indicator": "M1"},
        quiet={**_level(names.BUDGET_SPENT, "2", "M1", "1h"), **_budget("10")},
    ),
    Alert(
        name="ReproGateIntegrityAtRisk",
        severity=PAGE,
        expr=f"({DIFFER_AND_PASS}) or ({NONE_SEALED}) or ({ROLLBACK_FAILED})",
        hold="5m",
        summary="What {{ $labels.gate_id }} of {{ $labels.repository }} says may not be trusted: a "
        "pass whose runs differ, passes without a seal, or a rollback that failed",
        page="operations.md#integrity-at-risk",
        fires=(
            {**_of_gate(names.LAST_PASSES, "1"), **_of_gate(names.LAST_DIGESTS, "0")},
            {
                **_level(names.BURN_RATE, "100", "M9", "6h"),
                **_level(names.TARGET, "0.99", "M9"),
                **_level(names.GOOD, "95", "M9"),
                **_level(names.VALID, "100", "M9"),
            },
            _level(names.BUDGET_SPENT, "1", "M8", "1h"),
        ),
        labels=OF_ONE,
        quiet={
            **_of_gate(names.LAST_PASSES, "1"),
            **_of_gate(names.LAST_DIGESTS, "1"),
            **_level(names.BUDGET_SPENT, "0", "M8", "1h"),
        },
    ),
    Alert(
        name="ReproGateBudgetBurnSlow",
        severity=TICKET,
        expr=f'max by ({LEVEL}) ({names.BURN_RATE.name}{{window="3d"}}) > 1 and {ALLOWS_ONE}',
        hold="1h",
        summary="At the rate of three days {{ $labels.gate_id }} of {{ $labels.repository }} "
        "spends its error budget of {{ $labels.indicator }} before its window ends",
        page="operations.md#budget-burn",
        fires=({**_level(names.BURN_RATE, "1.5", "M1", "3d"), **_budget("40")},),
        labels={**OF_ONE, "indicator": "M1"},
        quiet={**_level(names.BURN_RATE, "0.9", "M1", "3d"), **_budget("40")},
    ),
    Alert(
        name="ReproGateBudgetSpent",
        severity=TICKET,
        expr=f"max by ({LEVEL}) ({names.BUDGET_LEFT.name}) <= 0 and {ALLOWS_ONE}",
        hold="1h",
        summary="{{ $labels.gate_id }} of {{ $labels.repository }} misses its target of "
        "{{ $labels.indicator }}: no error budget is left",
        page="operations.md#budget-burn",
        fires=({**_level(names.BUDGET_LEFT, "-0.5", "M1"), **_budget("40")},),
        labels={**OF_ONE, "indicator": "M1"},
        quiet={**_level(names.BUDGET_LEFT, "0.1", "M1"), **_budget("40")},
    ),
    Alert(
        name="ReproGateFailureMode",
        severity=TICKET,
        expr=f"max by ({GATE}, run_id, failure_mode) "
        f'({names.LAST_INFO.name}{{failure_mode=~"{OF_THE_PLATFORM}"}}) == 1',
        hold="0m",
        summary="Run {{ $labels.run_id }} of {{ $labels.gate_id }} in {{ $labels.repository }} "
        "failed with {{ $labels.failure_mode }}",
        page="runbooks.md",
        fires=(_info("F3"),),
        labels={**OF_ONE, "run_id": "4711", "failure_mode": "F3"},
        quiet={**_info("F1"), **_info("none", "4712")},
    ),
    Alert(
        name="ReproGateSilent",
        severity=TICKET,
        expr=f"max by ({GATE}) ({names.SILENT.name}) == 1",
        hold="15m",
        summary="{{ $labels.gate_id }} of {{ $labels.repository }} has had no verdict for longer "
        "than it may",
        page="operations.md#silent-gate",
        fires=(_of_gate(names.SILENT, "1"),),
        labels=OF_ONE,
        quiet=_of_gate(names.SILENT, "0"),
    ),
    Alert(
        name="ReproGateHistoryNotRead",
        severity=TICKET,
        expr=f"time() - max({names.READ_AT.name}) > 900 or absent({names.READ_AT.name})",
        hold="15m",
        summary="Nothing has read the history for 15 minutes: service levels are not watched",
        page="operations.md#history-not-read",
        fires=({names.READ_AT.name: "0x300"},),
        labels={},
        quiet={names.READ_AT.name: "0+60x300"},
    ),
    Alert(
        name="ReproGateHistoryUnreadable",
        severity=TICKET,
        expr=f"max by (reason) ({names.UNREADABLE.name}) > 0",
        hold="1h",
        summary="Lines of the history are left out: {{ $labels.reason }}",
        page="operations.md#history-not-read",
        fires=({f'{names.UNREADABLE.name}{{reason="torn"}}': "2x300"},),
        labels={"reason": "torn"},
        quiet={f'{names.UNREADABLE.name}{{reason="torn"}}': "0x300"},
    ),
)


def annotated(alert: Alert, labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the alert's annotations: as templates, or with the values of `labels` filled in."""
    link = f"{PAGES}/{alert.page}"
    if alert.page == "runbooks.md":
        # the page's headings are the failure modes, and GitHub writes anchors in lower case
        link += "#{{ $labels.failure_mode | toLower }}"
    texts = {"summary": alert.summary, "runbook_url": link}
    return (
        texts if labels is None else {name: _filled(text, labels) for name, text in texts.items()}
    )


def _filled(text: str, labels: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        word = labels[found[1]]
        return word.lower() if found[2] else word

    return re.sub(r"\{\{ \$labels\.(\w+)( \| toLower)? \}\}", value, text)


def rules() -> dict[str, Any]:
    """Return the content of rules.yml: recording rules first, since the alerts use them."""
    recorded = [{"record": one.name, "expr": one.expr} for one in RECORDED]
    alerts = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.hold,
            "labels": {"severity": one.severity},
            "annotations": annotated(one),
        }
        for one in ALERTS
    ]
    return {
        "groups": [
            {"name": "repro-gate-recorded", "rules": recorded},
            {"name": "repro-gate-alerts", "rules": alerts},
        ]
    }


def rule_tests() -> dict[str, Any]:
    """Return the unit tests for `promtool test rules`: each alert fires, and stays quiet."""
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [test for alert in ALERTS for test in _tests(alert)],
    }


def _tests(alert: Alert) -> Iterator[dict[str, Any]]:
    labels = {**alert.labels, "severity": alert.severity}
    fired = {"exp_labels": labels, "exp_annotations": annotated(alert, alert.labels)}
    cases = [*((series, [fired]) for series in alert.fires), (alert.quiet, [])]
    for series, expected in cases:
        yield {
            "name": f"{alert.name} {'fires' if expected else 'is quiet'}",
            "interval": "1m",
            "input_series": [{"series": one, "values": values} for one, values in series.items()],
            "alert_rule_test": [
                {"eval_time": "2h", "alertname": alert.name, "exp_alerts": expected}
            ],
        }


def prometheus(*, interval: str = "30s", folder: str = "", **at: str) -> dict[str, Any]:
    """Return prometheus.yml: what is scraped, and where alerts are sent.

    `at` replaces the usual addresses of `alertmanager`, `pushgateway` and `history`.
    """
    return {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "rule_files": [f"{folder}rules.yml"],
        "alerting": {
            "alertmanagers": [
                {"static_configs": [{"targets": [at.get("alertmanager", "localhost:9093")]}]}
            ]
        },
        "scrape_configs": [
            {
                "job_name": "repro-gate-pushed",
                # keep the labels that the gate pushed, instead of those of the Pushgateway
                "honor_labels": True,
                "static_configs": [{"targets": [at.get("pushgateway", "localhost:9091")]}],
            },
            {
                "job_name": "repro-gate-history",
                "static_configs": [{"targets": [at.get("history", "localhost:9464")]}],
            },
        ],
    }


def alertmanager(
    *, pager: str = "https://pager.example.org/", tickets: str = "https://tickets.example.org/",
    wait: str = "30s",
) -> dict[str, Any]:  # fmt: skip
    """Return alertmanager.yml: one notification per gate, to the pager or as a ticket.

    A notification is repeated only after `repeat_interval`. An alert about a run has the run's id
    as a label, so that a run is one alert however often its metrics are scraped.
    """
    return {
        "route": {
            "receiver": "tickets",
            "group_by": ["repository", "gate_id"],
            "group_wait": wait,
            "group_interval": "1h",
            "repeat_interval": "24h",
            "routes": [
                {
                    "receiver": "pager",
                    "matchers": [f'severity="{PAGE}"'],
                    "group_by": ["repository", "gate_id"],
                    "group_interval": "1h",
                    "repeat_interval": "4h",
                }
            ],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['alertname="ReproGateBudgetBurn"'],
                "target_matchers": ['alertname=~"ReproGateBudgetBurnSlow|ReproGateBudgetSpent"'],
                "equal": ["repository", "gate_id", "indicator"],
            }
        ],
        "receivers": [
            {"name": "pager", "webhook_configs": [{"url": pager, "send_resolved": True}]},
            {"name": "tickets", "webhook_configs": [{"url": tickets, "send_resolved": False}]},
        ],
    }


def files() -> dict[str, str]:
    """Return the text of each file, by its path below `ops/`."""
    texts = {
        "prometheus/prometheus.yml": prometheus(),
        "prometheus/rules.yml": rules(),
        "prometheus/rules.test.yml": rule_tests(),
        "alertmanager/alertmanager.yml": alertmanager(),
    }
    return {
        **{path: HEAD + as_yaml(document) for path, document in texts.items()},
        **{
            f"grafana/{board['uid']}.json": json.dumps(board, indent=1) + "\n" for board in boards()
        },
    }


def as_yaml(document: Mapping[str, Any]) -> str:
    """Return the document as YAML, with the keys in the order of the dictionary."""
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


def stale(folder: Path = OPS) -> list[str]:
    """Return the files that differ from the tables, and those that no table makes."""
    wanted = files()
    here = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }
    return sorted(
        path for path in wanted.keys() | here.keys() if wanted.get(path) != here.get(path)
    )


def main(words: list[str]) -> int:
    """Write the files; with `--check` only name those that are out of date, and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where one is old")
    if parser.parse_args(words).check:
        old = stale()
        sys.stdout.writelines(f"ops/{path} is not what scripts/ops_kit.py writes\n" for path in old)
        return int(bool(old))
    for path, text in files().items():
        target = OPS / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
