"""Metrics of a run: from the harness, from the script's own file, from its printed lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError
from gate.evidence.harness_files import MetricLine, StepLine
from gate.evidence.processes_harness_files import MAX_LINE_BYTES, MAX_LINES_BYTES, numbered_lines
from gate.evidence.run_evidence import (
    MAX_PASSED_OVER,
    MetricSeries,
    MetricSource,
    PassedOver,
    WhyPassedOver,
)
from gate.evidence.series import MAX_NAME, SeriesCollector
from gate.system.files.port import Files
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import plain_text, short_text

MAX_OUTPUT_LINES = 100_000
MAX_OUTPUT_LINE_BYTES = 1000
# below a line's own keys; a table of a whole data set is no metric
MAX_DEPTH: Final = 8
MAX_WIDTH: Final = 100
MAX_NESTED: Final = 500
MAX_EXACT: Final = 2**53


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMetrics:
    """What a source gave: its series, and what of it could not become one."""

    series: tuple[MetricSeries, ...]
    passed_over: tuple[PassedOver, ...] = ()


@dataclass(slots=True)
class _Passed:
    """Names that could not become a series, the first of each kind of reason."""

    source: MetricSource
    found: dict[str, PassedOver] = field(default_factory=dict)

    def add(self, name: str, why: WhyPassedOver) -> None:
        # one more than a reader is shown is not kept: a line could hold a million of them
        if name not in self.found and len(self.found) < MAX_PASSED_OVER:
            shown = plain_text(name)[:MAX_NAME]
            self.found[name] = PassedOver(source=self.source, name=shown, why=why)

    def sorted(self) -> tuple[PassedOver, ...]:
        return tuple(self.found[name] for name in sorted(self.found))


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


def file_metrics(files: Files, path: Path, shown: str) -> ReadMetrics:
    """Each number of a JSON Lines file as `file.<key>` in float64, at the line's `step`.

    Objects and lists are flattened (`file.eval.loss`, `file.per_class.0`), a boolean is 0 or 1, and
    null is no value. Text, and what is too deep, wide or many, is passed over by name.
    Raises `EvidenceError` naming the line that is no object, has no integer `step`, or holds a
    number that float64 cannot.
    """
    # a file that was named and is missing is an error: otherwise a renamed log would pass unseen
    if not files.exists(path):
        raise EvidenceError(
            f"{shown}: the script wrote no metrics file there",
            hint="Check train.metrics.file; the path is relative to train.workdir.",
        )
    reader = _LineReader(SeriesCollector(MetricSource.FILE, shown), _Passed(MetricSource.FILE))
    with open_untrusted(files, path, shown, max_bytes=MAX_LINES_BYTES) as opened:
        for number, line in numbered_lines(opened):
            reader.add(opened, number, line)
    return ReadMetrics(series=reader.collector.series(), passed_over=reader.passed.sorted())


@dataclass(slots=True)
class _LineReader:
    """Takes the lines of a metrics file; `nested` are the names below an object or a list."""

    collector: SeriesCollector
    passed: _Passed
    nested: set[str] = field(default_factory=set)

    def add(self, opened: UntrustedFile, number: int, line: bytes) -> None:
        where = f"line {number}"
        # NaN is kept: a metric that became one must show, and refusing the line would hide it
        record = parse_json(
            line, f"{opened.shown}: {where}", max_bytes=MAX_LINE_BYTES, non_finite=True
        )
        if not isinstance(record, dict):
            raise opened.fault(f"{where}: is not a JSON object", hint="Write one object a line.")
        step = record.get("step")
        # a bool is an integer to Python, and 1.0 a step to nobody
        if isinstance(step, bool) or not isinstance(step, int):
            raise opened.fault(
                f"{where}: has no integer `step`",
                hint='Write lines such as {"step": 1, "loss": 0.5}.',
            )
        for key, value in record.items():
            if key != "step":
                for name, number_found in self._numbers(key, value, depth=0):
                    converted = _as_float(opened, where, name, number_found)
                    self.collector.add(f"file.{name}", step, converted, where=where)

    def _numbers(self, name: str, value: object, *, depth: int) -> Iterator[tuple[str, float]]:
        """The numbers of a value by their flat names; what is none is noted."""
        if isinstance(value, int | float):
            if not depth or self._has_room(name):
                yield name, value
        elif isinstance(value, str):
            self.passed.add(name, WhyPassedOver.NUMBER if _is_number(value) else WhyPassedOver.TEXT)
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH or len(value) > MAX_WIDTH:
                deep = depth == MAX_DEPTH
                self.passed.add(name, WhyPassedOver.DEPTH if deep else WhyPassedOver.WIDTH)
                return
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, member in pairs:
                yield from self._numbers(f"{name}.{key}", member, depth=depth + 1)

    def _has_room(self, name: str) -> bool:
        """Whether a nested name may become a series: nobody chose it to be one."""
        if name in self.nested:
            return True
        if len(f"file.{name}") > MAX_NAME or not name.isprintable():
            self.passed.add(name, WhyPassedOver.NAME)
            return False
        if len(self.nested) >= MAX_NESTED:
            self.passed.add(name, WhyPassedOver.COUNT)
            return False
        self.nested.add(name)
        return True


def _is_number(text: str) -> bool:
    """Whether text is a number in quotes; a long integer is text on our own advice."""
    try:
        value = float(text)
    except ValueError:
        return False
    return not (text.strip().lstrip("+-").isdecimal() and abs(value) >= MAX_EXACT)


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


def output_metrics(pattern: str, output: bytes, *, required: bool = True) -> ReadMetrics:
    """Each named group of `pattern` as `stdout.<group>`, over the lines that a script printed.

    Without a group `step` the matches are counted from 1. A line above 1000 bytes is passed over,
    and noted: the pattern is trusted, the text is not. Raises `EvidenceError` when there are more
    than 100,000 lines, a group is no number or, where a metric is `required`, no line matches.
    """
    lines = output.splitlines()
    if len(lines) > MAX_OUTPUT_LINES:
        raise EvidenceError(
            f"the script printed more than {MAX_OUTPUT_LINES:,} lines, too many for metrics",
            hint="Print less, or write a metrics file and set train.metrics.file.",
        )
    compiled = re.compile(pattern)
    collector = SeriesCollector(MetricSource.STDOUT, "the script's output")
    passed = _Passed(MetricSource.STDOUT)
    matches = 0
    for number, line in enumerate(lines, start=1):
        # the time of a search can grow faster than its text, so the text is bounded (CWE-1333)
        if len(line) > MAX_OUTPUT_LINE_BYTES:
            passed.add(f"line {number}", WhyPassedOver.LINE)
            continue
        match = compiled.search(line.decode("utf-8", "replace")) if line else None
        if match is not None:
            matches += 1
            _add_match(collector, match, number, matches)
    if required and not matches:
        raise EvidenceError(
            "no line of the script's output matches train.metrics.stdout_pattern",
            hint="Try the pattern on a printed line; it is searched, so it need not match a "
            "whole line.",
        )
    return ReadMetrics(series=collector.series(), passed_over=passed.sorted())


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
