"""The duration and the digests of each step, and the names of fingerprints in causal order.

Only this module defines the names and their order. The harness imports nothing of the gate, so it
has its own copy; tests keep the two equal. In the causal order the loss comes between `weights` and
`backward`, see `EventKind`.
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

# what is observed together; all fingerprints of a group have one sampling interval
SamplingGroup = Literal["random", "batch", "tensors"]
RANDOM: Final = "random"
PARAMETERS: Final = "parameters"
WEIGHTS: Final = "weights"
GENERATORS: Final = ("python", "numpy", "torch", "cuda")
# the weights in a step's last pass; `weights.first` are those in its first pass
LAST_WEIGHTS: Final = "weights.last"
# The sampling group of each family, in causal order. None means that the family is observed
# whenever it changes.
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
# matches names such as `backward.1`, `random.torch.1`, `loss.1` and `loss.1.pass2`
OPTIMIZER: Final = re.compile(
    rf"(?P<name>(?:{'|'.join((*FAMILIES, 'loss', 'skipped'))})(?:\.[a-z]+)?)"
    r"\.(?P<optimizer>[0-9]{1,6})(?:\.pass[0-9]{1,6})?",
    re.ASCII,
)


def family_of(name: str) -> str:
    """Return the part of a name before the first dot, such as `random` for `random.torch`."""
    return name.partition(".")[0]


def of_optimizer(name: str, optimizer: int) -> str:
    """Return the name of a fingerprint or metric for one of several optimizers.

    The name of the first optimizer, number 0, gets no suffix.
    """
    return f"{name.removesuffix('.0')}.{optimizer}" if optimizer else name


def optimizer_of(name: str) -> int:
    """Return the optimizer number in a name from `of_optimizer`, or 0 if it has none."""
    match = OPTIMIZER.fullmatch(name)
    return int(match["optimizer"]) if match is not None else 0


def order_of(name: str) -> tuple[int, int, str]:
    """Return a sort key that puts names in causal order; unknown names come last."""
    family, _, generator = name.partition(".")
    return _index(FAMILIES, family), _index(GENERATORS, generator), name


def _index(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)


# limit for all optimizers of a step together
MAX_SUMMED_SAMPLES = 2**53
# About thirty years. A million steps of this length still have a finite sum, and finite ratios.
MAX_SECONDS = 1e9
MAX_SUMMED_SECONDS = 1e18
# stored where there is no number
UNKNOWN: Final = -1


# No clock resolves less than a nanosecond. A smaller number would only make a ratio infinite.
NANO_DIGITS: Final = 9


def _whole_nanoseconds(seconds: float) -> float:
    return round(seconds, NANO_DIGITS)


_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), AfterValidator(_whole_nanoseconds)]
MeasuredSeconds = Annotated[_Seconds, Field(le=MAX_SECONDS)]
SummedSeconds = Annotated[_Seconds, Field(le=MAX_SUMMED_SECONDS)]


class StepTiming(Document):
    """The duration of a step without the harness's work, and the duration of that work.

    On a device part of the harness's work runs beside the step, and nobody knows which part.
    `seconds` is therefore reliable only if `harness_seconds` is small. `samples` is the number of
    samples that DataLoaders yielded for this step: 0 if none was used, None if a batch had no size.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    seconds: SummedSeconds
    harness_seconds: SummedSeconds = 0.0
    samples: int | None = Field(default=None, ge=0, le=MAX_SUMMED_SAMPLES)


class Timings(NumberRows[StepTiming]):
    """The timings of all steps: step, seconds, the harness's seconds, and samples or `UNKNOWN`."""

    __slots__ = ()
    record = StepTiming
    kinds: ClassVar = (SIGNED, FLOAT, FLOAT, SIGNED)

    @property
    def seconds(self) -> Sequence[float]:
        """The durations of all steps; the caller must not write to them."""
        return self.column(1)

    @property
    def harness_seconds(self) -> Sequence[float]:
        """The durations of the harness's work; the caller must not write to them."""
        return self.column(2)

    @property
    def samples(self) -> Sequence[int]:
        """The numbers of samples, or `UNKNOWN`; the caller must not write to them."""
        return self.column(3)

    @staticmethod
    def settle(steps: Column, seconds: Column, harness_seconds: Column, samples: Column) -> None:
        """Check the ranges, and round all seconds to whole nanoseconds."""
        known = within(steps, 1, MAX_STEP) and within(samples, UNKNOWN, MAX_SUMMED_SAMPLES)
        for column in (seconds, harness_seconds):
            # `within` gives no reliable answer if a number is NaN; the sum is NaN then
            if math.isnan(sum(column)) or not known or not within(column, 0, MAX_SUMMED_SECONDS):
                message = "are the numbers of no timing"
                raise ValueError(message)
            # The same as `_whole_nanoseconds`, without the cost of a Python call for each number.
            column[:] = array(FLOAT, map(round, column, repeat(NANO_DIGITS)))

    @staticmethod
    def row_of(
        step: int, seconds: float, harness_seconds: float, samples: int | None
    ) -> tuple[int, float, float, int]:
        """Return the numbers in the order of the columns."""
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
        """Return each timing as a line of JSON."""
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
    """The digests of one step, as `algorithm:hex`; they depend on the position of each value.

    `parameters` covers all parameters after the step; it is empty if the step was not observed.
    `fingerprints` maps names to digests that only a diagnosis needs. A baseline keeps them for some
    steps.
    """

    step: int = Field(ge=1, le=MAX_STEP)
    parameters: str = Field(default="", max_length=128)
    fingerprints: dict[str, str] = Field(default_factory=dict)

    @property
    def with_parameters(self) -> dict[str, str]:
        """All fingerprints of the step by name, including the one of the parameters."""
        return (
            {**self.fingerprints, PARAMETERS: self.parameters}
            if self.parameters
            else self.fingerprints
        )

    @model_serializer(mode="wrap")
    def _without_empty_fingerprints(
        self, handler: SerializerFunctionWrapHandler
    ) -> dict[str, object]:
        """Leave `fingerprints` out where it is empty.

        Baselines that were recorded before fingerprints existed keep their form, and new ones stay
        short.
        """
        written: dict[str, object] = handler(self)
        if not self.fingerprints:
            written.pop("fingerprints", None)
        return written


class StepDigests(Rows[StepDigest]):
    """The digests of all steps: every step as a number, and records for steps with a digest."""

    __slots__ = ("_observed", "_places", "_steps")
    record: ClassVar[type[StepDigest]] = StepDigest

    def __init__(
        self, steps: Iterable[int] = (), records: Iterable[tuple[int, StepDigest]] = ()
    ) -> None:
        """Take the steps, and the records with their indices among the steps, in order.

        Records without a digest are dropped. Raises `ValueError` or `OverflowError` for steps out
        of range, and for records whose step is different from the step at their index.
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
        """Return these records as rows."""
        held = tuple(records)
        return cls((record.step for record in held), enumerate(held))

    @property
    def steps(self) -> Sequence[int]:
        """The numbers of all steps; the caller must not write to them."""
        return shown_column(SIGNED, self._steps)

    @property
    def observed(self) -> tuple[StepDigest, ...]:
        """The records of the steps that have a digest."""
        return self._observed

    @classmethod
    def of_plain(cls, records: list[Any]) -> Self:
        """Return rows from records as JSON has them; raises the errors of the base class."""
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
        """Yield the records in order; runs of steps without a digest come as lines of JSON."""
        first = 0
        for place, record in zip(self._places, self._observed, strict=True):
            yield from self._lines(first, place)
            yield record.model_dump()
            first = place + 1
        yield from self._lines(first, len(self))

    def _lines(self, first: int, last: int) -> Iterator[list[str]]:
        """Yield the steps from index `first` to before `last`, none of which has a digest."""
        for start in range(first, last, LINES_AT_A_TIME):
            steps = self.steps[start : min(start + LINES_AT_A_TIME, last)]
            yield [f'{{"parameters": "", "step": {step}}}' for step in steps]

    def packed(self) -> list[Any]:
        """Return three JSON values: the steps, the indices of the records, and the records."""
        columns = (self._steps, array(SIGNED, self._places).tobytes())
        return [*map(packed_column, columns), [record.model_dump() for record in self._observed]]

    @classmethod
    def unpacked(cls, parts: list[Any]) -> Self:
        """Return the rows that `packed` packed; raises the errors of the base class."""
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
        """Return the record at an index, counted from 0."""
        index = bisect_left(self._places, place)
        if index < len(self._places) and self._places[index] == place:
            return self._observed[index]
        return StepDigest(step=self.steps[place])

    def part(self, places: slice) -> Self:
        """Return the records of a slice."""
        chosen = {place: number for number, place in enumerate(range(len(self))[places])}
        pairs = zip(self._places, self._observed, strict=True)
        chosen_pairs = ((chosen[place], record) for place, record in pairs if place in chosen)
        return type(self)(self.steps[places], sorted(chosen_pairs, key=lambda pair: pair[0]))

    def with_fingerprints_at(self, chosen: Iterable[int]) -> Self:
        """Return the same digests with fingerprints only at the chosen steps, in any order."""
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
