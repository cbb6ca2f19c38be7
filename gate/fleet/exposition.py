"""Write metrics as text that Prometheus, a Pushgateway and a node exporter all read.

The format is OpenMetrics 1.0, "Text format". Every metric is a gauge, so the text is also valid in
Prometheus's own text format 0.0.4, where the last line is a comment.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

import requests

from gate.fleet import metric_names as names
from gate.fleet.indicators import GroupBy, GroupLevels, LastVerdict, SloReport
from gate.fleet.metric_names import MetricName
from gate.settings.delivery_sections import check_pushgateway
from gate.system.http import Connection, HttpRequest, RetryPolicy
from gate.verdict.history_lines import HistoryLine

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PUSHED_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
JOB: Final = "repro-gate"
# Short, because a number that changes no verdict is not worth waiting for.
POLICY: Final = RetryPolicy(timeout_seconds=10.0, answer_seconds=10.0)
PLACE_HINT: Final = "Check publish.pushgateway: it is the address without /metrics."
HOUR_SECONDS: Final = 3600
# characters that a label's value must escape
ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A metric's value, with its labels in the order of the table."""

    metric: MetricName
    labels: tuple[str, ...]
    value: float


def text_of(samples: Iterable[MetricSample]) -> str:
    """Return the samples as text, grouped by metric, in the order of the table."""
    by_name: dict[str, list[MetricSample]] = {}
    for sample in samples:
        by_name.setdefault(sample.metric.name, []).append(sample)
    lines = []
    for metric in names.METRICS:
        if metric.name in by_name:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} gauge"]
            lines += map(_line, by_name[metric.name])
    return "\n".join([*lines, "# EOF", ""])


def _line(sample: MetricSample) -> str:
    pairs = zip(sample.metric.labels, sample.labels, strict=True)
    words = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    labels = f"{{{words}}}" if words else ""
    return f"{sample.metric.name}{labels} {sample.value!r}"


def _escaped(value: str) -> str:
    # Half a surrogate pair cannot be encoded, and some readers take a carriage return for a line
    # end.
    plain = value.encode("utf-8", "replace").decode("utf-8").replace("\r", " ")
    return plain.translate(ESCAPED)


def samples_of_verdict(line: HistoryLine) -> Iterator[MetricSample]:
    """Yield the metrics that a job pushes about its verdict, without those not measured."""
    gate = (line.repository, line.gate_id)
    info = (
        line.run_id,
        line.commit,
        line.outcome.value,
        "" if line.level is None else line.level.value,
        line.failure_mode.value,
        line.author,
        line.runner,
        line.environment,
    )
    yield MetricSample(names.LAST_INFO, (*gate, *info), 1.0)
    values: Mapping[MetricName, float | None] = {
        names.LAST_TIME: datetime.fromisoformat(line.judged_at).timestamp(),
        names.LAST_PASSES: line.passes,
        names.LAST_SEALED: line.sealed,
        names.LAST_DIGESTS: line.digests_equal,
        names.LAST_SPREAD: line.spread,
        names.LAST_DATA: line.data_verified,
        names.LAST_OPERATORS: line.uncovered_operators,
        names.LAST_STEP: line.step_seconds,
        names.LAST_SECONDS: line.seconds,
        names.LAST_COST: line.cost_ratio,
    }
    for metric, value in values.items():
        if value is not None:
            yield MetricSample(metric, gate, float(value))


def samples_of_report(report: SloReport, window_seconds: float) -> Iterator[MetricSample]:
    """Yield each gate's last verdict and, if counted by gate, the service levels of a history."""
    for gate in report.gates:
        yield from _of_gate(gate)
    if report.by == (GroupBy.GATE,):
        for group in report.groups:
            yield from _of_group(group, window_seconds)
    for reason, lines in report.left_out.items():
        yield MetricSample(names.UNREADABLE, (reason,), float(lines))
    read_at = datetime.fromisoformat(report.created_at).timestamp()
    yield MetricSample(names.READ_AT, (), read_at)


def _of_gate(gate: LastVerdict) -> Iterator[MetricSample]:
    labels = (gate.repository, gate.gate_id)
    if gate.line is not None:
        yield from samples_of_verdict(gate.line)
    yield MetricSample(names.SILENT, labels, float(gate.silent))
    yield MetricSample(names.SILENT_LIMIT, labels, gate.limit_hours * HOUR_SECONDS)


def _of_group(group: GroupLevels, window_seconds: float) -> Iterator[MetricSample]:
    gate = (group.repository, *group.values)
    yield MetricSample(names.WINDOW, gate, window_seconds)
    for count in group.outcomes:
        outcome = "cancelled" if count.cancelled else count.outcome.value
        yield MetricSample(
            names.VERDICTS, (*gate, outcome, count.failure_mode.value), float(count.verdicts)
        )
    for level in group.levels:
        labels = (*gate, level.indicator.value)
        yield MetricSample(names.GOOD, labels, float(level.good))
        yield MetricSample(names.VALID, labels, float(level.valid))
        yield MetricSample(names.TARGET, labels, level.target)
        if level.budget_left is not None:
            yield MetricSample(names.BUDGET_LEFT, labels, level.budget_left)
        for burn in level.burn:
            where = (*labels, burn.window.value)
            if burn.rate is not None:
                yield MetricSample(names.BURN_RATE, where, burn.rate)
            yield MetricSample(names.BUDGET_SPENT, where, burn.budget_spent)


class Pushgateway(Connection):
    """A connection to a Pushgateway; plain http is allowed, because metrics are not secret."""

    def __init__(self, url: str, policy: RetryPolicy = POLICY) -> None:
        super().__init__("the Pushgateway", url, policy)

    def check_address(self, url: str) -> None:
        """Raise `PublishError` for an invalid address, and for one with a login in it."""
        try:
            check_pushgateway(url)
        except ValueError as error:
            # The address is not shown, because it may contain a login.
            raise self.fault(f"{error}", PLACE_HINT) from error


def check_address(url: str) -> None:
    """Raise `PublishError` unless the text is the address of a Pushgateway; sends nothing."""
    with Pushgateway(url):
        pass


def push(url: str, line: HistoryLine) -> None:
    """Replace a Pushgateway's metrics of this gate; raises `PublishError`.

    There is one group for each gate of a repository. A group for each run would never be removed.
    """
    groups = {"job": JOB, "repository": line.repository, "gate_id": line.gate_id}
    path = "".join(f"/{name}{_group_value(value)}" for name, value in groups.items())
    with Pushgateway(url) as gateway:
        answer = gateway.ask(
            HttpRequest(
                method="PUT",
                url=f"{url.rstrip('/')}/metrics{path}",
                headers={"Content-Type": PUSHED_TYPE},
                body=text_of(samples_of_verdict(line)).encode("utf-8"),
                repeatable=False,
                follow=False,
            )
        )
        if answer.status not in {requests.codes.ok, requests.codes.accepted}:
            raise gateway.refused(answer, PLACE_HINT)


def _group_value(value: str) -> str:
    """Return a value for a group's path; in base64 if it is empty or contains a slash."""
    if value and "/" not in value:
        return f"/{quote(value, safe='')}"
    return f"@base64/{base64.urlsafe_b64encode(value.encode('utf-8')).decode('ascii') or '='}"
