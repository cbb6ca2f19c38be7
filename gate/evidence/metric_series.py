"""Read the metrics of a run: from the harness, from the script's own file, from printed lines.

The result has the numbers themselves, because two digests side by side say only that something
differs. These numbers were printed, logged or given to an optimizer. Values of the script's own
checkpoint are never shown: they may be a secret of the person who saved it.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from gate.checkpoint.leaves import Leaf, TensorLeaf
from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import DocumentError, EvidenceError, MissingOutputError, OutputError
from gate.evidence.columns import MAX_STEP, Points
from gate.evidence.harness_files import (
    MAX_LINE_BYTES,
    MAX_LINES_BYTES,
    ExactNumber,
    MetricLine,
    NumberedLines,
    StepLine,
    line_blocks,
)
from gate.evidence.logged_values import MAX_NAME, FlatValues, ReadMetrics, as_float
from gate.evidence.run_evidence import (
    FloatType,
    MetricSeries,
    MetricSource,
    PassedOver,
    WhyPassedOver,
)
from gate.evidence.step_lines import NOTHING, TYPES, StepLines
from gate.evidence.step_work import MAX_OPTIMIZER_SETTINGS
from gate.system.files.port import Files
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import plain_text, short_text

MAX_SERIES = 1000
MAX_POINTS = 500_000


class SeriesCollector:
    """Collects the points of several metrics, in the order in which one source gives them.

    NaN and infinity are accepted and kept. The verdict refuses them, with a diagnosis.
    """

    def __init__(self, source: MetricSource, shown: str) -> None:
        self._source = source
        self._shown = shown
        self._dtypes: dict[str, FloatType] = {}
        self._points: dict[str, tuple[array[int], array[float]]] = {}
        self._count = 0

    def add(
        self, name: str, step: int, value: float, *, dtype: FloatType = "float64", where: str = ""
    ) -> None:
        """Add one number; `where` is its place for an error message, such as `line 3`.

        Raises `EvidenceError` if the name is too long or not printable, if the step is out of
        range, repeated or goes back, if the metric had a different dtype before, or if there are
        too many metrics or numbers.
        """
        place = f"{self._shown}: {where}: " if where else f"{self._shown}: "
        self._check_name(name, place)
        # The checks run before the append: `array("q")` would raise `OverflowError` for a huge
        # step.
        points = self._points.setdefault(name, (array("q"), array("d")))
        self._check_step(name, step, points[0], place)
        known = self._dtypes.setdefault(name, dtype)
        if known != dtype:
            raise EvidenceError(
                f"{place}metric {short_text(name)} is {known}, but {dtype} at step {step}",
                hint="Log each metric in one type; give the other one a different name.",
            )
        self._count += 1
        if len(self._points) > MAX_SERIES:
            raise EvidenceError(
                f"{place}more than {MAX_SERIES:,} metrics", hint="Log fewer metrics."
            )
        if self._count > MAX_POINTS:
            raise EvidenceError(
                f"{place}more than {MAX_POINTS:,} numbers in one run",
                hint="Log fewer metrics, log them at fewer steps, or lower train.max_steps.",
            )
        points[0].append(step)
        points[1].append(value)

    def extend(
        self, dtype: FloatType, steps: Sequence[int], columns: Mapping[str, Sequence[float]]
    ) -> bool:
        """Add a column of numbers for each name, all at the same steps; return whether it could.

        This is the fast path. If any number would be refused, nothing is added and the result is
        False. The caller then calls `add` for each number, which raises an error for the first bad
        one. `steps` must not be empty.
        """
        count, names = self._count + len(steps) * len(columns), self._points.keys() | columns.keys()
        known = [self._points[name][0] for name in columns if name in self._points]
        fits = (
            len(names) <= MAX_SERIES
            and count <= MAX_POINTS
            and all(len(name) <= MAX_NAME and name.isprintable() for name in columns)
            and all(self._dtypes.get(name, dtype) == dtype for name in columns)
            and 0 <= min(steps) <= max(steps) <= MAX_STEP
            and all(left < right for left, right in pairwise(steps))
            and all(own[-1] < steps[0] for own in known if own)
        )
        if fits:
            for name, values in columns.items():
                own_steps, own_values = self._points.setdefault(name, (array("q"), array("d")))
                own_steps.extend(steps)
                own_values.extend(values)
                self._dtypes.setdefault(name, dtype)
            self._count = count
        return fits

    def _check_name(self, name: str, place: str) -> None:
        if len(name) > MAX_NAME or not name.isprintable():
            raise EvidenceError(
                f"{place}metric name {short_text(name)} is longer than {MAX_NAME} characters or "
                "not printable",
                hint="Give metrics short plain names.",
            )

    def _check_step(self, name: str, step: int, steps: Sequence[int], place: str) -> None:
        if not 0 <= step <= MAX_STEP:
            raise EvidenceError(
                f"{place}metric {short_text(name)} has a step below 0 or above 2**53",
                hint="Count steps from 0 or 1.",
            )
        # Points of two runs are paired by their step, so each step has to occur once and in order.
        before = steps[-1] if steps else -1
        if step <= before:
            how = "twice" if step == before else f"after step {before}"
            raise EvidenceError(
                f"{place}metric {short_text(name)} is given for step {step} {how}",
                hint="Log each metric once for each step, in order; use a different name for "
                "each phase, for example train_loss and eval_loss.",
            )

    def series(self) -> tuple[MetricSeries, ...]:
        """Return all series that were collected, sorted by name."""
        return tuple(
            MetricSeries(
                name=name,
                source=self._source,
                dtype=self._dtypes[name],
                points=Points(columns=points),
            )
            for name, points in sorted(self._points.items())
        )


# A limit for all optimizers together. Passes beyond it are not lost: a difference in one of them
# changes `loss`, which is the last pass, or the loss of a later step.
MAX_PASS_SERIES = 200


def step_series(lines: Sequence[StepLine]) -> tuple[MetricSeries, ...]:
    """Return the series `loss.pass<n>` and `skipped`; further optimizers add `.<i>` to each name.

    `loss.pass<n>` is the loss of the n-th backward pass of each optimizer step. It exists only if
    some step had several passes: accumulated gradients, the closures of LBFGS, or two losses of a
    GAN. `loss` is the last of these passes. `skipped` is 1.0 for a step that a gradient scaler
    skipped and 0.0 for any other; it exists only with a scaler.

    The steps are optimizer steps, as in every series that the harness makes. All of these series
    and the fingerprints therefore share one numbering.
    """
    steps = StepLines.of(lines)
    several = steps.column("losses").max(initial=0) > 1
    if not several and all(line.skipped is None for line in steps.records.values()):
        return ()
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    # shared by all optimizers, because some scripts have one optimizer for each parameter
    passes_left = MAX_PASS_SERIES
    for number in sorted({line.optimizer for line in lines}):
        own = [line for line in lines if line.optimizer == number]
        suffix = f".{number}" if number else ""
        most = max(len(line.losses) for line in own)
        if most > 1:
            for place in range(min(most, passes_left)):
                _add_pass(collector, f"loss{suffix}.pass{place + 1}", own, place)
            passes_left -= min(most, passes_left)
        for line in own:
            if line.skipped is not None:
                collector.add(f"skipped{suffix}", line.step, float(line.skipped))
    return collector.series()


def _add_pass(collector: SeriesCollector, name: str, lines: Sequence[StepLine], place: int) -> None:
    """Add the series of one backward pass of each step.

    If the losses have several types, the series is float64, which represents all of them exactly.
    """
    losses = {line.step: line.losses[place] for line in lines if len(line.losses) > place}
    dtype = _common_type([loss for loss in losses.values() if loss is not None])
    for step, loss in losses.items():
        if loss is not None:
            collector.add(name, step, loss.value, dtype=dtype)


def _common_type(losses: Sequence[ExactNumber]) -> FloatType:
    types = {loss.dtype for loss in losses}
    return types.pop() if len(types) == 1 else "float64"


PATH = re.compile(r"/optimizer/\d+/group/\d+/.+")
FORMATS = {"F64": "<d", "F32": "<f", "I64": "<q", "BOOL": "<?"}


def optimizer_settings(leaves: Iterable[Leaf], prefix: str) -> dict[str, str]:
    """Return each optimizer setting that is a single number, by its name in the manifest.

    The result has at most `MAX_OPTIMIZER_SETTINGS` settings. The numbers are for readers, written
    in their shortest form.
    """
    settings: dict[str, str] = {}
    for leaf in leaves:
        if isinstance(leaf, TensorLeaf) and leaf.shape == () and PATH.fullmatch(leaf.path):
            layout = FORMATS.get(leaf.dtype)
            if layout is not None and len(settings) < MAX_OPTIMIZER_SETTINGS:
                data = b"".join(map(bytes, leaf.source.pieces(struct.calcsize(layout))))
                (number,) = struct.unpack(layout, data)
                # NumPy writes the shortest text that is unique for float32: 0.001, not
                # 0.0010000000474974513
                word = str(np.float32(number) if leaf.dtype == "F32" else number)
                settings[prefix + leaf.path] = word.lower()
    return settings


MAX_OUTPUT_LINES = 100_000
MAX_OUTPUT_LINE_BYTES = 1000


def harness_series(
    steps: Sequence[StepLine], logged: Iterable[MetricLine]
) -> tuple[MetricSeries, ...]:
    """Return the losses as `loss` and `loss.<i>`, and the script's numbers as `logged.<name>`.

    `loss.<i>` belongs to optimizer number i, counted from 0; the first one has no suffix. Series
    that the harness observes have no prefix. Every other source has one, so its names cannot
    collide with those of another source.
    """
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    lines = StepLines.of(steps)
    if not _extended(collector, lines):
        # number by number, so that the error names the first bad one
        for line in lines:
            if line.loss is not None:
                name = _loss_name(line.optimizer)
                collector.add(name, line.step, line.loss.value, dtype=line.loss.dtype)
    return (*collector.series(), *_logged_series(logged))


def _loss_name(optimizer: int) -> str:
    return f"loss.{optimizer}" if optimizer else "loss"


def _extended(collector: SeriesCollector, lines: StepLines) -> bool:
    """Add all losses at once and return True, if one optimizer has all of them in one type."""
    known = lines.column("dtype") != NOTHING
    kinds = {*zip(*(lines.column(name)[known].tolist() for name in ("optimizer", "dtype")))}  # noqa: B905 - of one length
    if len(kinds) != 1:
        return False
    ((optimizer, dtype),) = kinds
    steps, losses = (lines.column(name)[known].tolist() for name in ("step", "loss"))
    return collector.extend(TYPES[dtype], steps, {_loss_name(optimizer): losses})


def _logged_series(logged: Iterable[MetricLine]) -> tuple[MetricSeries, ...]:
    """Return the exact numbers that the script gave to the harness, at the script's own steps."""
    collector = SeriesCollector(MetricSource.LOGGED, "the harness's record")
    for metric in logged:
        collector.add(f"logged.{metric.name}", metric.step, metric.value, dtype=metric.dtype)
    return collector.series()


def file_metrics(files: Files, path: Path, shown: str) -> ReadMetrics:
    """Return each number of a JSON Lines file as `file.<key>` in float64, at the line's `step`.

    Objects and lists are flattened (`file.eval.loss`, `file.per_class.0`). A boolean is 0 or 1;
    null is no value. Text and values that are nested too deep, too wide or too many are skipped,
    and listed by name.

    Raises `MissingOutputError` if the file does not exist. Raises `EvidenceError` or
    `DocumentError` naming the line if it is not a JSON object, has no integer `step`, or has an
    integer that float64 cannot represent.
    """
    # The settings name this file. If it is missing, that is an error: otherwise a script that
    # renames its log would pass without being compared.
    if not files.exists(path):
        raise MissingOutputError(
            f"{shown}: the script wrote no metrics file there",
            hint="Check train.metrics.file; the path is relative to train.workdir.",
        )
    values = FlatValues(MetricSource.FILE, "file.")
    reader = _LineReader(SeriesCollector(MetricSource.FILE, shown), values)
    with open_untrusted(files, path, shown, max_bytes=MAX_LINES_BYTES) as opened:
        for lines in line_blocks(opened):
            if not reader.extend(lines):
                for number, line in lines:
                    reader.add(opened, number, line)
    return ReadMetrics(series=reader.collector.series(), passed_over=values.passed_over())


LINES_HINT: Final = (
    'train.metrics.file names a file of JSON Lines, such as {"step": 1, "loss": 0.5}. Of any other '
    "format, such as CSV, print the numbers and set train.metrics.stdout_pattern."
)
# Matches a JSON string, a number with at most 15 digits before the point, or the text in between.
# float64 represents every integer of 15 digits exactly.
TOKEN: Final = re.compile(
    rb'(?P<word>"(?:[^"\\]|\\.)*+")|(?P<number>-?[0-9][0-9.eE+-]*+)|(?P<rest>[^"0-9-]++|.)',
    re.DOTALL,
)
INTEGER: Final = rb"(-?[1-9][0-9]{0,14}|0)"
NUMBER: Final = (
    rb"(-?[1-9][0-9]{0,14}|0|-?(?:0|[1-9][0-9]{0,14})"
    rb"(?:\.[0-9]{1,30}(?:[eE][+-]?[0-9]{1,4})?|[eE][+-]?[0-9]{1,4}))"
)
# Each column is a group of the pattern, and compiling a pattern with many groups takes long.
MAX_COLUMNS: Final = 100
MAX_PATTERN_BYTES: Final = 8192


def _pattern_of(line: bytes, record: object) -> re.Pattern[bytes] | None:
    """Return a pattern for all lines that differ from this line only in their numbers.

    `record` is the parsed line. The result is None if the record has values that are not numbers,
    or is too large for a pattern.
    """
    if not isinstance(record, dict) or not 1 < len(record) <= MAX_COLUMNS:
        return None
    if len(line) > MAX_PATTERN_BYTES:
        return None
    if any(type(value) not in {int, float} for value in record.values()):
        return None
    # The n-th number in the text belongs to the n-th key, because the object is flat.
    keys, words = iter(record), []
    for token in TOKEN.finditer(line):
        if token.lastgroup == "number":
            words.append(INTEGER if next(keys, "step") == "step" else NUMBER)
        else:
            words.append(re.escape(token[0]))
    return re.compile(rb"^" + b"".join(words) + rb"$", re.MULTILINE) if not [*keys] else None


@dataclass(slots=True)
class _LineReader:
    """Reads the lines of a metrics file into a collector."""

    collector: SeriesCollector
    values: FlatValues

    def extend(self, lines: NumberedLines) -> bool:
        """Add a block of lines if all differ only in their numbers; return whether it was possible.

        This is the fast path: one regular expression reads the whole block instead of a JSON parser
        for each line. For any other block nothing is added, and the caller gives each line to
        `add`.
        """
        first = lines[0][1]
        try:
            record = parse_json(first, "", max_bytes=MAX_LINE_BYTES)
        except DocumentError:
            return False
        pattern = _pattern_of(first, record)
        if pattern is None or not isinstance(record, dict):
            return False
        # lines contain no line break, so the joined text has exactly one match for each line
        rows = pattern.findall(b"\n".join(line for _, line in lines))
        if len(rows) != len(lines) or "step" not in record:
            return False
        columns = dict(zip(record, zip(*rows, strict=True), strict=True))
        steps = [*map(int, columns.pop("step"))]
        values = {f"file.{name}": [*map(float, texts)] for name, texts in columns.items()}
        return self.collector.extend("float64", steps, values)

    def add(self, opened: UntrustedFile, number: int, line: bytes) -> None:
        where = f"line {number}"
        place = f"{opened.shown}: {where}"
        # Accept NaN and infinity. Refusing such a line would hide that a metric became NaN.
        try:
            record = parse_json(line, place, max_bytes=MAX_LINE_BYTES, non_finite=True)
        except DocumentError as error:
            raise OutputError(plain_text(error.message), hint=LINES_HINT) from error
        if not isinstance(record, dict):
            raise OutputError(f"{place}: is not a JSON object", hint=LINES_HINT)
        step = record.get("step")
        # `bool` is a subclass of `int`, and `true` is not a step
        if isinstance(step, bool) or not isinstance(step, int):
            raise OutputError(f"{place}: has no integer `step`", hint=LINES_HINT)
        for key, value in record.items():
            if key != "step":
                for name, number_found in self.values.numbers(key, value):
                    converted = as_float(opened, where, name, number_found)
                    self.collector.add(f"file.{name}", step, converted, where=where)


def output_metrics(pattern: str, output: bytes, *, required: bool = True) -> ReadMetrics:
    """Return each named group of `pattern` as `stdout.<group>`, from lines that a script printed.

    The group `step` gives the step; without it the matches are counted from 1. Lines longer than
    1000 bytes are noted and not searched.

    Raises `EvidenceError` if there are more than 100,000 lines or a group is not a number. Raises
    `MissingOutputError` if no line matches although a metric is `required`.
    """
    lines = output.splitlines()
    if len(lines) > MAX_OUTPUT_LINES:
        raise EvidenceError(
            f"the script printed more than {MAX_OUTPUT_LINES:,} lines, too many for metrics",
            hint="Print less, or write a metrics file and set train.metrics.file.",
        )
    compiled = re.compile(pattern)
    collector = SeriesCollector(MetricSource.STDOUT, "the script's output")
    passed = FlatValues(MetricSource.STDOUT, "stdout.")
    matches = 0
    for number, line in enumerate(lines, start=1):
        # The pattern comes from trusted settings, the text does not. A pattern may backtrack for a
        # time that grows faster than the length of the text, so the length is limited (CWE-1333).
        if len(line) > MAX_OUTPUT_LINE_BYTES:
            passed.pass_over(f"line {number}", WhyPassedOver.LINE)
            continue
        match = compiled.search(line.decode("utf-8", "replace")) if line else None
        if match is not None:
            matches += 1
            _add_match(collector, match, number, matches)
    if required and not matches:
        raise MissingOutputError(
            "no line of the script's output matches train.metrics.stdout_pattern",
            hint="Try the pattern on a printed line; it is searched, so it need not match a "
            "whole line.",
        )
    return ReadMetrics(series=collector.series(), passed_over=passed.passed_over())


# Matches `val_acc=0.91` and `accuracy: 0.91`, but not a version such as 2.13.0. All repetitions are
# bounded, so the search time of a line is limited too.
PRINTED: Final = re.compile(
    r"(?<![\w./-])([A-Za-z_][\w./-]{0,39})[ \t]{0,3}[=:][ \t]{0,3}[-+]?\d{1,20}\.\d{1,20}"
    r"(?:[eE][-+]?\d{1,3})?(?![\w.])"
)
LOSS: Final = re.compile(r"(?i)(?:train[._/-]?)?loss")
# Names of progress and speed, which differ in every run, and the loss, which the harness records.
PROGRESS: Final = re.compile(
    rf"{LOSS.pattern}|.*(?:epoch|step|iter|time|sec|speed|elapsed|eta|lr|rate|progress"
    r"|version|memory|mem|ms|[mg]i?b)s?"
)
MAX_PRINTED: Final = 5


def printed_numbers(output: bytes) -> tuple[PassedOver, ...]:
    """Return the names of numbers that a script only prints, at most five, in order of appearance.

    The loss is left out because the harness records it. Names that show progress or speed are left
    out too. Lines longer than 1000 bytes and those after the first 100,000 are not searched.
    """
    names: dict[str, None] = {}
    for line in output.splitlines()[:MAX_OUTPUT_LINES]:
        if len(line) > MAX_OUTPUT_LINE_BYTES or b"." not in line:
            continue
        for name in PRINTED.findall(line.decode("utf-8", "replace")):
            if not PROGRESS.fullmatch(name):
                names.setdefault(name)
        if len(names) >= MAX_PRINTED:
            break
    return tuple(
        PassedOver(source=MetricSource.STDOUT, name=name, why=WhyPassedOver.PRINTED)
        for name in [*names][:MAX_PRINTED]
    )


def pattern_of_a_printed_number(output: bytes) -> str | None:
    """Return a pattern for `train.metrics.stdout_pattern` that matches a number that was printed.

    A loss comes before other numbers, and one that shows progress or speed is never taken. The
    pattern has the name in one group and no other text of the script than this name.
    """
    best: str | None = None
    for line in output.splitlines()[:MAX_OUTPUT_LINES]:
        if len(line) > MAX_OUTPUT_LINE_BYTES or b"." not in line:
            continue
        for match in PRINTED.finditer(line.decode("utf-8", "replace")):
            name = match[1]
            if LOSS.fullmatch(name):
                return _pattern(match)
            if best is None and not PROGRESS.fullmatch(name):
                best = _pattern(match)
    return best


def _pattern(match: re.Match[str]) -> str:
    sign = ":" if ":" in match[0] else "="
    group = re.sub(r"\W", "_", match[1], flags=re.ASCII)
    # a loss may become NaN, which is a result too
    return rf"{re.escape(match[1])}\s*{sign}\s*(?P<{group}>[-+.\deE]+|[-+]?(?:nan|inf))"


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
