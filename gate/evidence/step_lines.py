"""Read the optimizer steps of a process: numbers into columns, and records only where needed.

In a long training most lines have the same form and contain only numbers. One pattern reads many
such lines at once. It accepts no line that the pydantic model would refuse, and gives the same
result as the model. The model reads every other line. If a block has a number that is out of range,
the model reads the whole block line by line. So only the model refuses a line, and the error always
names the first bad one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.untrusted_files import open_untrusted
from gate.evidence.harness_files import (
    MAX_LINES_BYTES,
    ExactNumber,
    NumberedLines,
    StepLine,
    line_blocks,
)
from gate.evidence.run_evidence import FloatType
from gate.evidence.step_columns import MAX_SECONDS, NANO_DIGITS
from gate.system.files.port import Files
from gate.text.documents import read_document

Column: TypeAlias = NDArray[Any]
# stored where there is no number of samples or rows, and for the dtype of a missing loss
NOTHING: Final = -1
TYPES: Final[tuple[FloatType, ...]] = ("float64", "float32", "bfloat16", "float16")
WIDTHS: Final[dict[FloatType, type[np.floating[Any]]]] = {
    "float32": np.float32,
    "float16": np.float16,
}
# a `Count` may be 2**63, which does not fit into a signed 64-bit integer
COUNTS: Final = ("backwards", "threads", "memory_bytes", "device_bytes")
KINDS: Final[dict[str, Any]] = {
    "step": np.int64,
    "optimizer": np.int64,
    "samples": np.int64,
    "rows": np.int64,
    **dict.fromkeys(COUNTS, np.uint64),
    # NaN if the step has no time
    "seconds": np.float64,
    "harness_seconds": np.float64,
    "observe_seconds": np.float64,
    "loss": np.float64,
    # index into TYPES, or NOTHING
    "dtype": np.int64,
    # the number of backward passes with a recorded loss
    "losses": np.int64,
}
# Numbers with so few digits are always within the limits of their fields, so no check is needed.
COUNT: Final = rb"(?:0|[1-9][0-9]{0,16})"
FEW: Final = rb"(?:0|[1-9][0-9]{0,8}|null)"
SECONDS: Final = rb"((?:0|[1-9][0-9]{0,9})(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)"
EXACT: Final = rb"-?(?:0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|inf)|nan"
GROUP: Final = rb'"(?:random|batch|tensors)"'
# The line of a step without digests, with the keys in the order in which the harness writes them.
# Any other line matches `(.+)`, the last group, so there is one match for each line. The model
# reads that line. With MULTILINE `$` is the end of a line.
LINE: Final = re.compile(
    rb'^(?:\{"step": ([1-9][0-9]{0,14}), '
    rb'("optimizer": (?:0|[1-9][0-9]{0,4}), "backwards": '
    + COUNT
    + rb', "samples": '
    + FEW
    + rb", "
    rb'"rows": ' + FEW + rb', "unobserved": \[(?:' + GROUP + rb"(?:, " + GROUP + rb"){0,5})?\], "
    rb'"threads": ' + COUNT + rb', "device_bytes": ' + COUNT + rb"), "
    rb'"loss": (?:\{"dtype": "(float64|float32|bfloat16|float16)", "hex": "(' + EXACT + rb')"\}, '
    rb'"losses": \[\{"dtype": "\3", "hex": "\4"\}\]|null, "losses": \[\]), '
    rb'"parameters": null, "fingerprints": \{\}, "skipped": null, '
    rb'"seconds": (?:null|' + SECONDS + rb'), "harness_seconds": ' + SECONDS + rb", "
    rb'"observe_seconds": ' + SECONDS + rb', "memory_bytes": (' + COUNT + rb")\}|(.+))$",
    re.MULTILINE,
)
PLAIN: Final[dict[str, Any]] = {
    "parameters": None,
    "fingerprints": {},
    "skipped": None,
    "settings": None,
}


class StepLines(Sequence[StepLine]):
    """The step lines of one process in their order.

    `records` maps the index of a line to its record, for the lines that the model read. A line
    without a record has at most one loss, no digests and no settings.
    """

    __slots__ = ("_columns", "_unobserved", "records")

    def __init__(
        self,
        columns: Mapping[str, Column],
        unobserved: Sequence[tuple[str, ...]],
        records: Mapping[int, StepLine],
    ) -> None:
        """Take a column for each of KINDS, and the unobserved groups of each line."""
        self._columns = columns
        self._unobserved = unobserved
        self.records = records

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> StepLines:
        """Return these lines, unchanged if they are `StepLines` already."""
        return lines if isinstance(lines, cls) else _joined([_of_records(lines)])

    def column(self, name: str) -> Column:
        """Return the numbers of one kind; the caller must not write to them."""
        return self._columns[name]

    def largest(self, name: str) -> tuple[Column, Column]:
        """Return the distinct steps in order, and the largest number of one kind for each step."""
        order, first = self.by_step()
        steps = self.column("step")[order]
        return steps[first], np.maximum.reduceat(self.column(name)[order], first)

    def by_step(self) -> tuple[Column, Column]:
        """Return the indices of the lines sorted by step, and the positions where a step begins."""
        order = np.argsort(self.column("step"), kind="stable")
        return order, np.flatnonzero(np.diff(self.column("step")[order], prepend=0))

    @property
    def optimizers(self) -> list[int]:
        """The distinct numbers of the optimizers, sorted."""
        numbers: list[int] = np.unique(self.column("optimizer")).tolist()
        return numbers

    @property
    def observed(self) -> list[int]:
        """The indices of the lines that have a digest."""
        return [
            place
            for place, line in self.records.items()
            if line.parameters is not None or line.fingerprints
        ]

    @overload
    def __getitem__(self, place: int) -> StepLine: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[StepLine, ...]: ...
    def __getitem__(self, place: int | slice) -> StepLine | tuple[StepLine, ...]:
        if isinstance(place, slice):
            return tuple(map(self._at, range(len(self))[place]))
        return self._at(range(len(self))[place])

    def __iter__(self) -> Iterator[StepLine]:
        return map(self._at, range(len(self)))

    def __len__(self) -> int:
        return len(self.column("step"))

    def _at(self, place: int) -> StepLine:
        if place in self.records:
            return self.records[place]
        row = {name: column[place].item() for name, column in self._columns.items()}
        loss, dtype, losses = row.pop("loss"), row.pop("dtype"), row.pop("losses")
        loss_number = None if dtype == NOTHING else ExactNumber(dtype=TYPES[dtype], hex=loss.hex())
        for name in ("samples", "rows"):
            row[name] = None if row[name] == NOTHING else row[name]
        row["seconds"] = None if math.isnan(row["seconds"]) else row["seconds"]
        unobserved = self._unobserved[place]
        rest = {"loss": loss_number, "losses": (loss_number,) * losses, "unobserved": unobserved}
        return StepLine.model_validate({**PLAIN, **row, **rest})


NANO: Final = 10.0**NANO_DIGITS
# four times the largest relative error of a product of two float64
PRODUCT_ERROR: Final = 2.0**-51
Block: TypeAlias = tuple[dict[str, Column], list[tuple[str, ...]], dict[int, StepLine]]


def read_step_lines(files: Files, out: Path, name: str) -> StepLines:
    """Read a file of steps.

    Raises the errors of `read_harness_lines`, always for the first bad line.
    """
    with open_untrusted(files, out / name, name, max_bytes=MAX_LINES_BYTES) as opened:
        return _joined([_block(lines, name) for lines in line_blocks(opened)])


def _block(lines: NumberedLines, name: str) -> Block:
    """Return a block of lines as columns; the model reads the lines that the pattern cannot."""
    # lines contain no line break, so the joined text has exactly one match for each line
    rows = LINE.findall(b"\n".join(line for _, line in lines))
    if len(rows) == len(lines):
        plain = [place for place, row in enumerate(rows) if not row[-1]]
        taken = _columns_of([rows[place] for place in plain])
        if taken is not None:
            read = {place: _read(lines[place], name) for place, row in enumerate(rows) if row[-1]}
            return _merged(len(rows), plain, taken, read)
    return _of_records([_read(line, name) for line in lines])


def _read(line: tuple[int, bytes], name: str) -> StepLine:
    return read_document(StepLine, line[1], f"{name}: line {line[0]}")


Taken: TypeAlias = tuple[dict[str, Column], list[tuple[str, ...]]]


def _columns_of(rows: Sequence[tuple[bytes, ...]]) -> Taken | None:
    """Return the numbers of the matched lines, or None if a number is out of range."""
    turned = tuple(zip(*rows, strict=True)) if rows else ((),) * LINE.groups
    step, middle, dtype, exact, seconds, harness, observing, memory, _ = turned
    # This part of a line seldom changes from step to step, so each distinct text is parsed once.
    known = {text: json.loads(b"{" + text + b"}") for text in dict.fromkeys(middle)}
    place_of = {text: place for place, text in enumerate(known)}
    places = np.fromiter(map(place_of.__getitem__, middle), np.int64, len(middle))
    columns = {
        key: np.array([_number(word[key]) for word in known.values()], KINDS[key])[places]
        for key in ("optimizer", "backwards", "samples", "rows", "threads", "device_bytes")
    }
    columns["step"] = np.array([*map(int, step)], np.int64)
    columns["memory_bytes"] = np.array([*map(int, memory)], np.uint64)
    for key, texts in (
        ("seconds", seconds),
        ("harness_seconds", harness),
        ("observe_seconds", observing),
    ):
        decimals = map(float, (text or b"nan" for text in texts) if b"" in texts else texts)
        numbers = whole_nanoseconds(np.fromiter(decimals, np.float64, len(texts)))
        if (numbers > MAX_SECONDS).any():
            return None
        columns[key] = numbers
    losses = _losses(dtype, exact)
    if losses is None:
        return None
    columns["loss"], columns["dtype"] = losses
    columns["losses"] = (columns["dtype"] != NOTHING).astype(np.int64)
    groups = {text: tuple(word["unobserved"]) for text, word in known.items()}
    return columns, [groups[text] for text in middle]


def whole_nanoseconds(seconds: Column) -> Column:
    """Round each number to nine digits, exactly as Python's `round` and thus the model does.

    `round` gives the float64 that is nearest to the decimal result. A quotient of two whole numbers
    that float64 represents is also the nearest float64 (IEEE 754, 5.4). So both agree if the whole
    number of nanoseconds is known. The product cannot tell it if it is close to a half, above 2**50
    or not finite. `round` itself is used there.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = seconds * NANO
        whole = np.rint(scaled)
        far = np.abs(np.abs(scaled - whole) - 0.5) > np.abs(scaled) * PRODUCT_ERROR
    rounded: Column = whole / NANO
    for place in np.flatnonzero(~far):
        rounded[place] = round(float(seconds[place]), NANO_DIGITS)
    return rounded


def _losses(dtypes: Sequence[bytes], exact: Sequence[bytes]) -> tuple[Column, Column] | None:
    """Return each loss and the index of its dtype, or None if a number does not fit its dtype."""
    places = {name.encode(): place for place, name in enumerate(TYPES)} | {b"": NOTHING}
    kinds = np.array([places[dtype] for dtype in dtypes], np.int64)
    texts = [text.decode("ascii") for text in exact]
    try:
        values = [float.fromhex(text) if text else math.nan for text in texts]
    except OverflowError:
        return None
    # a column keeps the number and not its text, so any other spelling would be lost
    if any(text and text != value.hex() for text, value in zip(texts, values, strict=True)):
        return None
    numbers = np.array(values, np.float64)
    finite = np.isfinite(numbers)
    for place, name in enumerate(TYPES):
        own = numbers[finite & (kinds == place)]
        with np.errstate(over="ignore"):
            held = own.astype(WIDTHS.get(name, np.float32)).astype(np.float64)
        upper = own.astype(np.float32).view(np.uint32) & 0xFFFF if name == "bfloat16" else None
        if name != "float64" and ((held != own).any() or (upper is not None and upper.any())):
            return None
    return numbers, kinds


def _of_records(lines: Sequence[StepLine]) -> Block:
    """Return the columns of lines that the model read, and keep all their records."""
    columns = {
        name: np.array([_number(getattr(line, name)) for line in lines], kind)
        for name, kind in KINDS.items()
        if name not in {"loss", "dtype", "losses"}
    }
    columns["loss"] = np.array([line.loss.value if line.loss else math.nan for line in lines])
    columns["dtype"] = np.array(
        [TYPES.index(line.loss.dtype) if line.loss else NOTHING for line in lines], np.int64
    )
    columns["losses"] = np.array([len(line.losses) for line in lines], np.int64)
    # `_number` wrote NOTHING for a missing time, and the column of seconds uses NaN
    columns["seconds"][columns["seconds"] == NOTHING] = math.nan
    return columns, [line.unobserved for line in lines], dict(enumerate(lines))


def _number(value: float | None) -> float:
    return NOTHING if value is None else value


def _merged(count: int, plain: list[int], taken: Taken, read: dict[int, StepLine]) -> Block:
    """Return the lines that the pattern read and those that the model read, in their order."""
    columns, unobserved = taken
    if not read:
        return columns, unobserved, {}
    others, words, _ = _of_records([*read.values()])
    together = {name: np.empty(count, kind) for name, kind in KINDS.items()}
    for name, column in together.items():
        column[plain], column[[*read]] = columns[name], others[name]
    said = dict(zip((*plain, *read), (*unobserved, *words), strict=True))
    return together, [said[place] for place in range(count)], read


def _joined(blocks: Sequence[Block]) -> StepLines:
    records: dict[int, StepLine] = {}
    unobserved: list[tuple[str, ...]] = []
    for _, said, read in blocks:
        records |= {len(unobserved) + place: line for place, line in read.items()}
        unobserved += said
    columns = {
        name: np.concatenate([np.zeros(0, kind), *(block[name] for block, _, _ in blocks)])
        for name, kind in KINDS.items()
    }
    return StepLines(columns, unobserved, records)
