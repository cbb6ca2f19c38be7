"""The optimizer steps of a process: numbers in columns, a record where a line has more than those.

Of a long training most lines are numbers in one form, which one pattern takes, many lines at a
time. It takes no line that the model would not take, and what it gives is what the model gives. Any
other line is read by the model; so are, one after the other, all lines of a block that holds a
number which no such line has. So it is the model alone that refuses, and in the order of the lines.
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
# in the place of no number of samples, of rows, and of no loss
NOTHING: Final = -1
TYPES: Final[tuple[FloatType, ...]] = ("float64", "float32", "bfloat16", "float16")
WIDTHS: Final[dict[FloatType, type[np.floating[Any]]]] = {
    "float32": np.float32,
    "float16": np.float16,
}
# Count may be 2**63, which no signed number holds
COUNTS: Final = ("backwards", "threads", "memory_bytes", "device_bytes")
KINDS: Final[dict[str, Any]] = {
    "step": np.int64,
    "optimizer": np.int64,
    "samples": np.int64,
    "rows": np.int64,
    **dict.fromkeys(COUNTS, np.uint64),
    # NaN where there is none
    "seconds": np.float64,
    "harness_seconds": np.float64,
    "observe_seconds": np.float64,
    "loss": np.float64,
    # a place in TYPES, or NOTHING
    "dtype": np.int64,
    # of how many backward passes there is a loss
    "losses": np.int64,
}
# no number of so few digits is beyond what its field takes
COUNT: Final = rb"(?:0|[1-9][0-9]{0,16})"
FEW: Final = rb"(?:0|[1-9][0-9]{0,8}|null)"
SECONDS: Final = rb"((?:0|[1-9][0-9]{0,9})(?:\.[0-9]{1,30})?(?:e[+-]?[0-9]{1,3})?)"
EXACT: Final = rb"-?(?:0x[01]\.[0-9a-f]{1,13}p[+-][0-9]{1,4}|inf)|nan"
GROUP: Final = rb'"(?:random|batch|tensors)"'
# As the harness writes it, key by key, for a step that was not observed. `$` is the end of a line.
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
    """The lines of one process in their order; `records` has those that the model read, by place.

    A line without a record has one loss at most, and neither digests nor settings.
    """

    __slots__ = ("_columns", "_unobserved", "records")

    def __init__(
        self,
        columns: Mapping[str, Column],
        unobserved: Sequence[tuple[str, ...]],
        records: Mapping[int, StepLine],
    ) -> None:
        """A column for each of KINDS; `unobserved` has the groups of each line, few of them new."""
        self._columns = columns
        self._unobserved = unobserved
        self.records = records

    @classmethod
    def of(cls, lines: Sequence[StepLine]) -> StepLines:
        """These lines."""
        return lines if isinstance(lines, cls) else _joined([_of_records(lines)])

    def column(self, name: str) -> Column:
        """The numbers of one kind; not to be written to."""
        return self._columns[name]

    def largest(self, name: str) -> tuple[Column, Column]:
        """The steps, each once and in order, and of each the largest number of one kind."""
        order, first = self.by_step()
        steps = self.column("step")[order]
        return steps[first], np.maximum.reduceat(self.column(name)[order], first)

    def by_step(self) -> tuple[Column, Column]:
        """The places of the lines in the order of their steps; where among them a step begins."""
        order = np.argsort(self.column("step"), kind="stable")
        return order, np.flatnonzero(np.diff(self.column("step")[order], prepend=0))

    @property
    def optimizers(self) -> list[int]:
        """The numbers of the optimizers, each once, sorted."""
        numbers: list[int] = np.unique(self.column("optimizer")).tolist()
        return numbers

    @property
    def observed(self) -> list[int]:
        """The places of the lines that have a digest."""
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
# four times what a product of two float64 is off at most
PRODUCT_ERROR: Final = 2.0**-51
Block: TypeAlias = tuple[dict[str, Column], list[tuple[str, ...]], dict[int, StepLine]]


def read_step_lines(files: Files, out: Path, name: str) -> StepLines:
    """A file of steps; faults as `read_harness_lines` has them, and in the order of the lines."""
    with open_untrusted(files, out / name, name, max_bytes=MAX_LINES_BYTES) as opened:
        return _joined([_block(lines, name) for lines in line_blocks(opened)])


def _block(lines: NumberedLines, name: str) -> Block:
    """Lines as columns; a line that the pattern does not take is read by the model."""
    # no line has a line's end inside
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
    """The numbers of lines that the pattern took; None where a number is none that a line has."""
    turned = tuple(zip(*rows, strict=True)) if rows else ((),) * LINE.groups
    step, middle, dtype, exact, seconds, harness, observing, memory, _ = turned
    # few are new: what a step was given seldom moves
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
    """What `round` to nine digits gives for each number: the model's own, of many numbers at once.

    A quotient of two whole numbers that float64 holds is the float64 nearest to it (IEEE 754, 5.4),
    as is what `round` gives. Where the product cannot tell which whole number is nearest, so near a
    half, beyond 2**50 or not finite, `round` itself is asked.
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
    """Each loss and the place of its type; None where a number is none of its type."""
    places = {name.encode(): place for place, name in enumerate(TYPES)} | {b"": NOTHING}
    kinds = np.array([places[dtype] for dtype in dtypes], np.int64)
    texts = [text.decode("ascii") for text in exact]
    try:
        values = [float.fromhex(text) if text else math.nan for text in texts]
    except OverflowError:
        return None
    # another way to write the number would be lost
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
    """Lines of the model, all of which are kept."""
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
    # NOTHING is no duration
    columns["seconds"][columns["seconds"] == NOTHING] = math.nan
    return columns, [line.unobserved for line in lines], dict(enumerate(lines))


def _number(value: float | None) -> float:
    return NOTHING if value is None else value


def _merged(count: int, plain: list[int], taken: Taken, read: dict[int, StepLine]) -> Block:
    """Lines of both kinds in their order."""
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
