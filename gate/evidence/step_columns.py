"""How long each step took, and its digests; fingerprints in causal order.

This is the one place that has their names; the harness, which imports nothing of the gate, is held
to it by tests. The loss stands between `weights` and `backward`, see `EventKind`.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, repeat
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from gate.evidence.columns import (
    FLOAT,
    LINES_AT_A_TIME,
    MAX_STEP,
    SIGNED,
    Column,
    NumberRows,
    Rows,
    held_column,
    packed_column,
    shown_column,
    whole_column,
    within,
)
from gate.text.document import Document

# what is observed together: a group has one sampling interval
SamplingGroup = Literal["random", "batch", "tensors"]
RANDOM: Final = "random"
PARAMETERS: Final = "parameters"
WEIGHTS: Final = "weights"
GENERATORS: Final = ("python", "numpy", "torch", "cuda")
# of a step's last pass; `weights.first` is of its first one
LAST_WEIGHTS: Final = "weights.last"
# By family; None is observed at each step at which it changes.
SAMPLING: Final[dict[str, SamplingGroup | None]] = {
    "structure": None,
    "initial": None,
    RANDOM: "random",
    "batch": "batch",
    "input": "batch",
    WEIGHTS: "tensors",
    "backward": "tensors",
    "gradients": "tensors",
    PARAMETERS: "tensors",
    "optimizer": "tensors",
}
FAMILIES: Final = tuple(SAMPLING)
# `backward.1`, `random.torch.1`, `loss.1`, `loss.1.pass2`
OPTIMIZER: Final = re.compile(
    rf"(?P<name>(?:{'|'.join((*FAMILIES, 'loss', 'skipped'))})(?:\.[a-z]+)?)"
    r"\.(?P<optimizer>[0-9]{1,6})(?:\.pass[0-9]{1,6})?",
    re.ASCII,
)


def family_of(name: str) -> str:
    """What comes before the dot: `random` of `random.torch`, else the name itself."""
    return name.partition(".")[0]


def of_optimizer(name: str, optimizer: int) -> str:
    """The name of a fingerprint or metric that one optimizer of several has; the first has none."""
    return f"{name.removesuffix('.0')}.{optimizer}" if optimizer else name


def optimizer_of(name: str) -> int:
    """The number behind a name that `of_optimizer` made, 0 where there is none."""
    match = OPTIMIZER.fullmatch(name)
    return int(match["optimizer"]) if match is not None else 0


def order_of(name: str) -> tuple[int, int, str]:
    """Sorts names in the order of causes; one that the harness does not write comes last."""
    family, _, generator = name.partition(".")
    return _index(FAMILIES, family), _index(GENERATORS, generator), name


def _index(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)


# of all optimizers of a step
MAX_SUMMED_SAMPLES = 2**53
# thirty years: of such steps, as many as a run may have have a finite sum, and a finite ratio
MAX_SECONDS = 1e9
MAX_SUMMED_SECONDS = 1e18
# in the place of no number
UNKNOWN: Final = -1


# no clock resolves less; a smaller number would only make a ratio infinite
NANO_DIGITS: Final = 9


def _whole_nanoseconds(seconds: float) -> float:
    return round(seconds, NANO_DIGITS)


_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_whole_nanoseconds)]
MeasuredSeconds = Annotated[_Seconds, Field(le=MAX_SECONDS)]
SummedSeconds = Annotated[_Seconds, Field(le=MAX_SUMMED_SECONDS)]


class StepTiming(Document):
    """Duration of a step without the harness's work in it, and what that work took.

    Where a device works beside the host, the second hides in the first to an unknown part: only
    where it is little is the first certain. `samples` is how many a DataLoader yielded on the way
    to it; None where a batch had no size, 0 where there was none.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    seconds: SummedSeconds
    harness_seconds: SummedSeconds = 0.0
    samples: int | None = Field(default=None, ge=0, le=MAX_SUMMED_SAMPLES)


class Timings(NumberRows[StepTiming]):
    """Step, seconds, the harness's seconds, and samples or `UNKNOWN`."""

    __slots__ = ()
    record = StepTiming
    kinds: ClassVar = (SIGNED, FLOAT, FLOAT, SIGNED)

    @property
    def seconds(self) -> Sequence[float]:
        """The durations alone; not to be written to."""
        return self.column(1)

    @property
    def harness_seconds(self) -> Sequence[float]:
        """What the harness's work took; not to be written to."""
        return self.column(2)

    @property
    def samples(self) -> Sequence[int]:
        """The numbers of samples, or `UNKNOWN`; not to be written to."""
        return self.column(3)

    @staticmethod
    def settle(steps: Column, seconds: Column, harness_seconds: Column, samples: Column) -> None:
        """Seconds in whole nanoseconds."""
        known = within(steps, 1, MAX_STEP) and within(samples, UNKNOWN, MAX_SUMMED_SAMPLES)
        for column in (seconds, harness_seconds):
            # a sum is NaN where one of the numbers is, and the least of them is then any
            if math.isnan(sum(column)) or not known or not within(column, 0, MAX_SUMMED_SECONDS):
                message = "are the numbers of no timing"
                raise ValueError(message)
            # as `_whole_nanoseconds`, of which a call for each number would be felt
            column[:] = array(FLOAT, map(round, column, repeat(NANO_DIGITS)))

    @staticmethod
    def row_of(
        step: int, seconds: float, harness_seconds: float, samples: int | None
    ) -> tuple[int, float, float, int]:
        """As the columns hold it."""
        row = step, seconds, harness_seconds, samples
        if tuple(map(type, row)) not in PLAIN or samples == UNKNOWN:
            message = "is not a plain timing"
            raise ValueError(message)
        return step, seconds, harness_seconds, UNKNOWN if samples is None else samples

    @staticmethod
    def lines_of(
        steps: Sequence[int],
        seconds: Sequence[float],
        harness_seconds: Sequence[float],
        samples: Sequence[int],
    ) -> list[str]:
        """Each timing as a line of JSON."""
        return [
            f'{{"harness_seconds": {harness!r}, "samples": '
            f'{"null" if count == UNKNOWN else count}, "seconds": {own!r}, "step": {step}}}'
            for step, own, harness, count in zip(
                steps, seconds, harness_seconds, samples, strict=True
            )
        ]


PLAIN = frozenset(((int, float, float, int), (int, float, float, type(None))))


BARE_KEYS: Final = frozenset(("step", "parameters"))


class StepDigest(Document):
    """Position-sensitive digests of a step, as `algorithm:hex`.

    `parameters` covers every parameter after it, and is empty at a step that was not observed.
    `fingerprints` holds what only a diagnosis needs, by fingerprint; a baseline keeps some steps.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    parameters: str = Field(default="", max_length=128)
    fingerprints: dict[str, str] = Field(default_factory=dict)

    @property
    def with_parameters(self) -> dict[str, str]:
        """All fingerprints of the step by name, that of the parameters among them."""
        return (
            {**self.fingerprints, PARAMETERS: self.parameters}
            if self.parameters
            else self.fingerprints
        )

    @model_serializer(mode="wrap")
    def _without_empty_fingerprints(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        """A baseline stays as short as it was before there were fingerprints."""
        written: dict[str, object] = handler(self)
        if not self.fingerprints:
            written.pop("fingerprints", None)
        return written


class StepDigests(Rows[StepDigest]):
    """All steps as numbers, and a record only for each that has a digest."""

    __slots__ = ("_observed", "_places", "_steps")
    record: ClassVar[type[StepDigest]] = StepDigest

    def __init__(
        self, steps: Iterable[int] = (), records: Iterable[tuple[int, StepDigest]] = ()
    ) -> None:
        """The steps, and the records among them by their places, in order.

        `ValueError` or `OverflowError` for steps that no record may have, and records of others.
        """
        numbers = array(SIGNED, steps)
        self._steps = held_column(numbers)
        pairs = tuple(pair for pair in records if pair[1].parameters or pair[1].fingerprints)
        self._places = tuple(place for place, _ in pairs)
        self._observed = tuple(record for _, record in pairs)
        if not within(numbers, 1, MAX_STEP) or [numbers[place] for place in self._places] != [
            record.step for record in self._observed
        ]:
            message = "are no steps of these records"
            raise ValueError(message)

    @classmethod
    def of(cls, records: Iterable[StepDigest]) -> Self:
        """Hold these records."""
        held = tuple(records)
        return cls((record.step for record in held), enumerate(held))

    @property
    def steps(self) -> Sequence[int]:
        """The steps alone; not to be written to."""
        return shown_column(SIGNED, self._steps)

    @property
    def observed(self) -> tuple[StepDigest, ...]:
        """The steps that have a digest."""
        return self._observed

    @classmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Hold records as JSON has them; faults as the base has them."""
        observed = [
            (place, StepDigest.model_validate(record))
            for place, record in enumerate(records)
            if record["parameters"] != "" or record.keys() != BARE_KEYS
        ]
        steps = [record["step"] for record in records]
        if not {*map(type, steps)} <= {int}:
            message = "a step is not a whole number"
            raise ValueError(message)
        return cls(steps, observed)

    def facts(self) -> Iterator[dict[str, Any] | list[str]]:
        """Each record; those without a digest as lines, some at a time."""
        first = 0
        for place, record in zip(self._places, self._observed, strict=True):
            yield from self._lines(first, place)
            yield record.model_dump()
            first = place + 1
        yield from self._lines(first, len(self))

    def _lines(self, first: int, last: int) -> Iterator[list[str]]:
        """The steps at places from `first` to before `last`, which have no digest."""
        for start in range(first, last, LINES_AT_A_TIME):
            steps = self.steps[start : min(start + LINES_AT_A_TIME, last)]
            yield [f'{{"parameters": "", "step": {step}}}' for step in steps]

    def packed(self) -> list[Any]:
        """The steps and the places of records, each in one value; the records."""
        columns = (self._steps, array(SIGNED, self._places).tobytes())
        return [*map(packed_column, columns), [record.model_dump() for record in self._observed]]

    @classmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """What `packed` gave; faults as the base has them."""
        first, second, records = parts
        steps, places = whole_column(SIGNED, first), whole_column(SIGNED, second)
        ordered = all(left < right for left, right in pairwise(places))
        if not ordered or (places and places[0] < 0):
            message = "places are not in order"
            raise ValueError(message)
        try:
            return cls(steps, zip(places, map(StepDigest.model_validate, records), strict=True))
        except IndexError as error:
            message = "a place is beyond the steps"
            raise ValueError(message) from error

    def at(self, place: int) -> StepDigest:
        """The record at a place from 0 on."""
        index = bisect_left(self._places, place)
        if index < len(self._places) and self._places[index] == place:
            return self._observed[index]
        return StepDigest(step=self.steps[place])

    def part(self, places: slice) -> Self:
        """Some of the records."""
        chosen = {place: number for number, place in enumerate(range(len(self))[places])}
        pairs = zip(self._places, self._observed, strict=True)
        chosen_pairs = ((chosen[place], record) for place, record in pairs if place in chosen)
        return type(self)(self.steps[places], sorted(chosen_pairs, key=lambda pair: pair[0]))

    def with_fingerprints_at(self, chosen: Iterable[int]) -> Self:
        """The same with fingerprints only at some steps, in any order, of those that have them."""
        kept = frozenset(chosen)
        pairs = (
            record if record.step in kept else record.model_copy(update={"fingerprints": {}})
            for record in self._observed
        )
        return type(self)(self.steps, zip(self._places, pairs, strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepDigests):
            return NotImplemented
        ours, theirs = (self._steps, self._observed), (other._steps, other._observed)
        return ours == theirs and self._places == other._places

    def __hash__(self) -> int:
        return hash((self._steps, self._places))
