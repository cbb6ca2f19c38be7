"""Metrics of a run: from the harness, from the script's own file, from its printed lines.

A manifest holds digests, and two digests side by side say only that something differs. These are
numbers that an optimizer was given; a value of the script's own checkpoint may be a secret of
whoever saved it and is never shown.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from gate.checkpoint.leaves import Leaf, TensorLeaf
from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import DocumentError, EvidenceError, MissingOutputError
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
from gate.evidence.run_evidence import (
    MAX_PASSED_OVER,
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

MAX_NAME = 200
MAX_SERIES = 1000
MAX_POINTS = 500_000


class SeriesCollector:
    """Takes points in the order in which a source gives them.

    NaN and infinity stay what they are: it is the verdict that refuses them.
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
        """Take one number; `where` is the place for an error, for example `line 3`.

        Raises `EvidenceError` for a name that is no plain text, a step that is there already or
        goes back, another dtype than before, or too many numbers.
        """
        place = f"{self._shown}: {where}: " if where else f"{self._shown}: "
        self._check_name(name, place)
        # a step beyond an array's range meets the check first
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
        """Take many numbers, a column of them for each name, at the same steps.

        Whether it did: where one of them is to be refused, none is taken, and `add` says why.
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
        # in order and once each: points of two runs are paired by their step
        before = steps[-1] if steps else -1
        if step <= before:
            how = "twice" if step == before else f"after step {before}"
            raise EvidenceError(
                f"{place}metric {short_text(name)} is given for step {step} {how}",
                hint="Log each metric once for each step, in order; use a different name for "
                "each phase, for example train_loss and eval_loss.",
            )

    def series(self) -> tuple[MetricSeries, ...]:
        """All series so far, sorted by name."""
        return tuple(
            MetricSeries(
                name=name,
                source=self._source,
                dtype=self._dtypes[name],
                points=Points(columns=points),
            )
            for name, points in sorted(self._points.items())
        )


# of all optimizers together; what further passes do shows in the loss, the last one, and after it
MAX_PASS_SERIES = 200


def step_series(lines: Sequence[StepLine]) -> tuple[MetricSeries, ...]:
    """`loss.pass<n>` and `skipped`, with `.<i>` before for further optimizers.

    The first is there when a step had several backward passes (accumulated gradients, the closures
    of LBFGS, two losses of a GAN): the scalar of the n-th pass at each optimizer step, of which
    `loss` is the last. Steps are optimizer steps in every series that the harness makes, so
    that all of them and the fingerprints have one numbering. `skipped` is 1.0 for a step that
    a gradient scaler skipped and 0.0 for one that it let through.
    """
    steps = StepLines.of(lines)
    several = steps.column("losses").max(initial=0) > 1
    if not several and all(line.skipped is None for line in steps.records.values()):
        return ()
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    # for all optimizers together: a script may have one for each parameter
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
    """One pass of each step; losses of several types become float64, which holds all exactly."""
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
    """Every setting that is one number, under its name in the manifest; at most 1,000 of them."""
    settings: dict[str, str] = {}
    for leaf in leaves:
        if isinstance(leaf, TensorLeaf) and leaf.shape == () and PATH.fullmatch(leaf.path):
            layout = FORMATS.get(leaf.dtype)
            if layout is not None and len(settings) < MAX_OPTIMIZER_SETTINGS:
                data = b"".join(map(bytes, leaf.source.pieces(struct.calcsize(layout))))
                (number,) = struct.unpack(layout, data)
                # a float32 by its own shortest form: 0.001, not 0.0010000000474974513
                word = str(np.float32(number) if leaf.dtype == "F32" else number)
                settings[prefix + leaf.path] = word.lower()
    return settings


MAX_OUTPUT_LINES = 100_000
MAX_OUTPUT_LINE_BYTES = 1000
# below a line's own keys; a table of a whole data set is no metric
MAX_DEPTH: Final = 8
MAX_WIDTH: Final = 100
MAX_NESTED: Final = 500
MAX_EXACT: Final = 2**53
# how the clients of Weights & Biases and trackio mark an image, a histogram or a table
MEDIA_KEY: Final = "_type"
TRACKERS: Final = frozenset({MetricSource.WANDB, MetricSource.TRACKIO})


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadMetrics:
    """What a source gave: its series, and what of it could not become one."""

    series: tuple[MetricSeries, ...]
    passed_over: tuple[PassedOver, ...] = ()


PLACES: Final = frozenset({WhyPassedOver.LINE, WhyPassedOver.RECORD})
CONTAINERS: Final = frozenset({WhyPassedOver.DEPTH, WhyPassedOver.WIDTH, WhyPassedOver.MEDIA})


def _may_be_below(name: str, pattern: str) -> bool:
    """Whether the pattern can match a name in that object or list, by what it begins with."""
    head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    open_ended = head != pattern and f"{name}.".startswith(head)
    return open_ended or name == pattern or head.startswith(f"{name}.")


@dataclass(slots=True)
class FlatValues:
    """Flattens what a script logged, and notes what of it could not become a series.

    `keys` are patterns of the names that count. A value of another name is not noted, and a whole
    object or list only where a name in it can count. `nested` are the names below one.
    """

    source: MetricSource
    prefix: str
    keys: tuple[str, ...] = ("*",)
    noted: dict[str, PassedOver] = field(default_factory=dict)
    nested: set[str] = field(default_factory=set)

    def pass_over(self, name: str, why: WhyPassedOver) -> None:
        """Note a value, a line or a record that is not compared."""
        # one more than a reader is shown is not kept: a line could hold a million of them
        if name in self.noted or len(self.noted) >= MAX_PASSED_OVER or not self._counts(name, why):
            return
        self.noted[name] = PassedOver(source=self.source, name=plain_text(name)[:MAX_NAME], why=why)

    def _counts(self, name: str, why: WhyPassedOver) -> bool:
        if why in PLACES:
            # whatever is in there has names that nobody read
            return True
        if why in CONTAINERS:
            return any(_may_be_below(name, pattern) for pattern in self.keys)
        return any(fnmatchcase(name, pattern) for pattern in self.keys)

    def passed_over(self) -> tuple[PassedOver, ...]:
        """All that were noted, by name."""
        return tuple(self.noted[name] for name in sorted(self.noted))

    def numbers(self, name: str, value: object, *, depth: int = 0) -> Iterator[tuple[str, float]]:
        """The numbers of a value by their flat names; what is none is noted."""
        if isinstance(value, int | float):
            if not depth or self._has_room(name):
                yield name, value
        elif isinstance(value, str):
            self.pass_over(name, WhyPassedOver.NUMBER if _is_number(value) else WhyPassedOver.TEXT)
        elif isinstance(value, dict) and self.source in TRACKERS and MEDIA_KEY in value:
            self.pass_over(name, WhyPassedOver.MEDIA)
        elif isinstance(value, dict | list):
            if depth == MAX_DEPTH or len(value) > MAX_WIDTH:
                deep = depth == MAX_DEPTH
                self.pass_over(name, WhyPassedOver.DEPTH if deep else WhyPassedOver.WIDTH)
                return
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, member in pairs:
                yield from self.numbers(f"{name}.{key}", member, depth=depth + 1)

    def _has_room(self, name: str) -> bool:
        """Whether a nested name may become a series: nobody chose it to be one."""
        if name in self.nested:
            return True
        if len(f"{self.prefix}{name}") > MAX_NAME or not name.isprintable():
            self.pass_over(name, WhyPassedOver.NAME)
            return False
        if len(self.nested) >= MAX_NESTED:
            self.pass_over(name, WhyPassedOver.COUNT)
            return False
        self.nested.add(name)
        return True


def harness_series(
    steps: Sequence[StepLine], logged: Iterable[MetricLine]
) -> tuple[MetricSeries, ...]:
    """Losses as `loss` (`loss.<i>` for further optimizers), what was logged as `logged.<name>`.

    What the harness sees by itself has no prefix; every other source has one, so none can take
    a name of another's.
    """
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    lines = StepLines.of(steps)
    if not _extended(collector, lines):
        # one number after the other: so the first is named that is to be refused
        for line in lines:
            if line.loss is not None:
                name = _loss_name(line.optimizer)
                collector.add(name, line.step, line.loss.value, dtype=line.loss.dtype)
    return (*collector.series(), *_logged_series(logged))


def _loss_name(optimizer: int) -> str:
    return f"loss.{optimizer}" if optimizer else "loss"


def _extended(collector: SeriesCollector, lines: StepLines) -> bool:
    """Give all losses at once, where one optimizer has all of them in one type; whether it did."""
    known = lines.column("dtype") != NOTHING
    kinds = {*zip(*(lines.column(name)[known].tolist() for name in ("optimizer", "dtype")))}  # noqa: B905 - of one length
    if len(kinds) != 1:
        return False
    ((optimizer, dtype),) = kinds
    steps, losses = (lines.column(name)[known].tolist() for name in ("step", "loss"))
    return collector.extend(TYPES[dtype], steps, {_loss_name(optimizer): losses})


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


# a word of JSON, a number of at most 15 digits before its point (float64 has all of those exactly),
# or what lies between
TOKEN: Final = re.compile(
    rb'(?P<word>"(?:[^"\\]|\\.)*+")|(?P<number>-?[0-9][0-9.eE+-]*+)|(?P<rest>[^"0-9-]++|.)',
    re.DOTALL,
)
INTEGER: Final = rb"(-?[1-9][0-9]{0,14}|0)"
NUMBER: Final = (
    rb"(-?[1-9][0-9]{0,14}|0|-?(?:0|[1-9][0-9]{0,14})"
    rb"(?:\.[0-9]{1,30}(?:[eE][+-]?[0-9]{1,4})?|[eE][+-]?[0-9]{1,4}))"
)
# a pattern has a group for each, and takes a while to be made
MAX_COLUMNS: Final = 100
MAX_PATTERN_BYTES: Final = 8192


def _pattern_of(line: bytes, record: object) -> re.Pattern[bytes] | None:
    """What takes each line that differs from this one in its numbers alone.

    `record` is what the line was read as. None where it has other values than numbers.
    """
    if not isinstance(record, dict) or not 1 < len(record) <= MAX_COLUMNS:
        return None
    if len(line) > MAX_PATTERN_BYTES:
        return None
    if any(type(value) not in {int, float} for value in record.values()):
        return None
    # the numbers of a flat object are in the order of its keys
    keys, words = iter(record), []
    for token in TOKEN.finditer(line):
        if token.lastgroup == "number":
            words.append(INTEGER if next(keys, "step") == "step" else NUMBER)
        else:
            words.append(re.escape(token[0]))
    return re.compile(rb"^" + b"".join(words) + rb"$", re.MULTILINE) if not [*keys] else None


@dataclass(slots=True)
class _LineReader:
    """Takes the lines of a metrics file."""

    collector: SeriesCollector
    values: FlatValues

    def extend(self, lines: NumberedLines) -> bool:
        """Take lines that differ from the first in their numbers alone; whether it did.

        Whatever else there is in one of them, `add` takes or refuses it.
        """
        first = lines[0][1]
        try:
            record = parse_json(first, "", max_bytes=MAX_LINE_BYTES)
        except DocumentError:
            return False
        pattern = _pattern_of(first, record)
        if pattern is None or not isinstance(record, dict):
            return False
        # no line has a line's end inside
        rows = pattern.findall(b"\n".join(line for _, line in lines))
        if len(rows) != len(lines) or "step" not in record:
            return False
        columns = dict(zip(record, zip(*rows, strict=True), strict=True))
        steps = [*map(int, columns.pop("step"))]
        values = {f"file.{name}": [*map(float, texts)] for name, texts in columns.items()}
        return self.collector.extend("float64", steps, values)

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
                for name, number_found in self.values.numbers(key, value):
                    converted = as_float(opened, where, name, number_found)
                    self.collector.add(f"file.{name}", step, converted, where=where)


def _is_number(text: str) -> bool:
    """Whether text is a number in quotes; a long integer is text on our own advice."""
    try:
        value = float(text)
    except ValueError:
        return False
    return not (text.strip().lstrip("+-").isdecimal() and abs(value) >= MAX_EXACT)


def as_float(opened: UntrustedFile, where: str, key: str, value: float) -> float:
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
    passed = FlatValues(MetricSource.STDOUT, "stdout.")
    matches = 0
    for number, line in enumerate(lines, start=1):
        # the time of a search can grow faster than its text, so the text is bounded (CWE-1333)
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


# `val_acc=0.91`, `accuracy: 0.91`; a version such as 2.13.0 is no number
PRINTED: Final = re.compile(
    r"(?<![\w./-])([A-Za-z_][\w./-]{0,39})[ \t]{0,3}[=:][ \t]{0,3}[-+]?\d{1,20}\.\d{1,20}"
    r"(?:[eE][-+]?\d{1,3})?(?![\w.])"
)
# what says where and how fast a training is; its loss is recorded by the harness
PROGRESS: Final = re.compile(
    r"(?i)(?:train[._/-]?)?loss|.*(?:epoch|step|iter|time|sec|speed|elapsed|eta|lr|rate|progress"
    r"|version|memory|mem|ms|[mg]i?b)s?"
)
MAX_PRINTED: Final = 5


def printed_numbers(output: bytes) -> tuple[PassedOver, ...]:
    """The names of numbers that a script only prints, at most five, in the order they come in.

    Not the loss, which is recorded, and nothing that says how far or how fast the training is.
    Lines above 1000 bytes and behind the first 100,000 are not searched.
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
