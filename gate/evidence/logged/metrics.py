"""Metrics of a run: from the harness, from the script's own file, from its printed lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gate.checkpoint.sources.untrusted_file import UntrustedFile, open_untrusted
from gate.codec.strict_json import parse_json
from gate.codec.untrusted_text import short_text
from gate.errors import EvidenceError
from gate.evidence.logged.series import SeriesCollector
from gate.evidence.processes.harness_documents import MetricLine, StepLine
from gate.evidence.processes.harness_files import MAX_LINE_BYTES, MAX_LINES_BYTES, numbered_lines
from gate.ports import Files
from gate.records.observed.evidence import MetricSeries, MetricSource

MAX_OUTPUT_LINES = 100_000
MAX_OUTPUT_LINE_BYTES = 1000


def harness_series(
    steps: Iterable[StepLine], logged: Iterable[MetricLine]
) -> tuple[MetricSeries, ...]:
    """Losses as `loss` (`loss.<i>` for further optimizers), what was logged as `logged.<name>`.

    What the harness sees by itself has no prefix; every other source has one, so none can take
    a name of another's.
    """
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    for line in steps:
        if line.loss is not None:
            name = f"loss.{line.optimizer}" if line.optimizer else "loss"
            collector.add(name, line.step, line.loss.value, dtype=line.loss.dtype)
    return (*collector.series(), *_logged_series(logged))


def _logged_series(logged: Iterable[MetricLine]) -> tuple[MetricSeries, ...]:
    """What the script handed to the harness: exact, at steps that the script counts."""
    collector = SeriesCollector(MetricSource.LOGGED, "the harness's record")
    for metric in logged:
        collector.add(f"logged.{metric.name}", metric.step, metric.value, dtype=metric.dtype)
    return collector.series()


def file_series(files: Files, path: Path, shown: str) -> tuple[MetricSeries, ...]:
    """Each number of a JSON Lines file as `file.<key>` in float64, at the line's `step`.

    Booleans, text, lists and nested objects are no metrics and are passed over.
    Raises `EvidenceError` naming the line that is no object, has no integer `step`, or holds a
    number that float64 cannot.
    """
    # a file that was named and is missing is an error: otherwise a renamed log would pass unseen
    if not files.exists(path):
        raise EvidenceError(
            f"{shown}: the script wrote no metrics file there",
            hint="Check train.metrics.file; the path is relative to train.workdir.",
        )
    collector = SeriesCollector(MetricSource.FILE, shown)
    with open_untrusted(files, path, shown, max_bytes=MAX_LINES_BYTES) as opened:
        for number, line in numbered_lines(opened):
            _add_line(collector, opened, number, line)
    return collector.series()


def _add_line(collector: SeriesCollector, opened: UntrustedFile, number: int, line: bytes) -> None:
    where = f"line {number}"
    # NaN is kept: a metric that became one must show, and refusing the line would hide it
    record = parse_json(line, f"{opened.shown}: {where}", max_bytes=MAX_LINE_BYTES, non_finite=True)
    if not isinstance(record, dict):
        raise opened.fault(f"{where}: is not a JSON object", hint="Write one object a line.")
    step = record.get("step")
    # a bool is an integer to Python, and 1.0 a step to nobody
    if isinstance(step, bool) or not isinstance(step, int):
        raise opened.fault(
            f"{where}: has no integer `step`", hint='Write lines such as {"step": 1, "loss": 0.5}.'
        )
    for key, value in record.items():
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
            collector.add(f"file.{key}", step, _as_float(opened, where, key, value), where=where)


def _as_float(opened: UntrustedFile, where: str, key: str, value: float) -> float:
    """An integer that float64 would round is refused: two different ones could look equal."""
    try:
        converted = float(value)
    except OverflowError:
        converted = 0.0
    # float64 holds integers exactly up to 2**53: two different ones above it could look equal
    if isinstance(value, int) and int(converted) != value:
        raise opened.fault(
            f"{where}: {short_text(key)} is an integer that float64 cannot hold",
            hint="Metrics are float64 numbers; write such an integer as text.",
        )
    return converted


def output_series(pattern: str, output: bytes) -> tuple[MetricSeries, ...]:
    """Each named group of `pattern` as `stdout.<group>`, over the lines that a script printed.

    Without a group `step` the matches are counted from 1. Lines above 1000 bytes are passed over:
    the pattern is trusted, the text is not. Raises `EvidenceError` when there are more than
    100,000 lines, a group is no number, or no line matches.
    """
    lines = output.splitlines()
    if len(lines) > MAX_OUTPUT_LINES:
        raise EvidenceError(
            f"the script printed more than {MAX_OUTPUT_LINES:,} lines, too many for metrics",
            hint="Print less, or write a metrics file and set train.metrics.file.",
        )
    compiled = re.compile(pattern)
    collector = SeriesCollector(MetricSource.STDOUT, "the script's output")
    matches = 0
    for number, line in enumerate(lines, start=1):
        # the time of a search can grow faster than its text, so the text is bounded (CWE-1333)
        text = line.decode("utf-8", "replace") if len(line) <= MAX_OUTPUT_LINE_BYTES else ""
        match = compiled.search(text) if text else None
        if match is not None:
            matches += 1
            _add_match(collector, match, number, matches)
    if not matches:
        raise EvidenceError(
            "no line of the script's output matches train.metrics.stdout_pattern",
            hint="Try the pattern on a printed line; it is searched, so it need not match a "
            "whole line.",
        )
    return collector.series()


def _add_match(collector: SeriesCollector, match: re.Match[str], number: int, matches: int) -> None:
    groups = {name: text for name, text in match.groupdict().items() if text is not None}
    try:
        step = int(groups.pop("step", str(matches)))
        values = {name: float(text) for name, text in groups.items()}
    except ValueError as error:
        raise EvidenceError(
            f"the script's output: line {number}: {short_text(match[0])} matches, but a group is "
            "not a number",
            hint="Let each group of train.metrics.stdout_pattern match digits only.",
        ) from error
    for name, value in values.items():
        collector.add(f"stdout.{name}", step, value, where=f"line {number}")
