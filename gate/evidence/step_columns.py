"""How long each step took, and its digests; fingerprints in causal order.

This is the one place that has their names; the harness, which imports nothing of the gate, is held
to it by tests. The loss stands between `input` and `backward`, see `EventKind`.
"""

from __future__ import annotations

import re
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from gate.evidence.columns import FLOAT, MAX_STEP, SIGNED, Checked, NumberRows, Rows
from gate.text.document import Document

# what is observed together: a group has one sampling interval
SamplingGroup = Literal["random", "batch", "tensors"]
RANDOM: Final = "random"
PARAMETERS: Final = "parameters"
GENERATORS: Final = ("python", "numpy", "torch", "cuda")
# By family; None is observed at each step at which it changes.
SAMPLING: Final[dict[str, SamplingGroup | None]] = {
    "structure": None,
    "initial": None,
    RANDOM: "random",
    "batch": "batch",
    "input": "batch",
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
    found = OPTIMIZER.fullmatch(name)
    return int(found["optimizer"]) if found is not None else 0


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


def _whole_nanoseconds(seconds: float) -> float:
    """No clock resolves less; a smaller number would only make a ratio infinite."""
    return round(seconds, 9)


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
    def seconds(self) -> memoryview[float]:
        """The durations alone; not to be written to."""
        return self.column(1)

    @property
    def harness_seconds(self) -> memoryview[float]:
        """What the harness's work took; not to be written to."""
        return self.column(2)

    @property
    def samples(self) -> memoryview[int]:
        """The numbers of samples, or `UNKNOWN`; not to be written to."""
        return self.column(3)

    @staticmethod
    def taken(
        step: int, seconds: float, harness_seconds: float, samples: int
    ) -> tuple[int, float, float, int]:
        """All of it, in whole nanoseconds."""
        known = 1 <= step <= MAX_STEP and UNKNOWN <= samples <= MAX_SUMMED_SAMPLES
        # false for NaN
        if not known or not (
            0 <= seconds <= MAX_SUMMED_SECONDS and 0 <= harness_seconds <= MAX_SUMMED_SECONDS
        ):
            message = "are the numbers of no timing"
            raise ValueError(message)
        return step, _whole_nanoseconds(seconds), _whole_nanoseconds(harness_seconds), samples

    @staticmethod
    def row_of(record: StepTiming) -> tuple[int, float, float, int]:
        """As the columns hold it."""
        samples = UNKNOWN if record.samples is None else record.samples
        return record.step, record.seconds, record.harness_seconds, samples

    @staticmethod
    def row_of_plain(record: dict[str, Any]) -> tuple[int, float, float, int]:
        """The numbers of what `plain_of` gave."""
        samples = record["samples"]
        row = record["step"], record["seconds"], record["harness_seconds"], samples
        plain = tuple(map(type, row)) in PLAIN and record.keys() == KEYS and samples != UNKNOWN
        if not plain or Timings.taken(*row[:3], 0)[1:3] != row[1:3]:
            message = "is no plain timing"
            raise ValueError(message)
        return (*row[:3], UNKNOWN if samples is None else samples)

    @staticmethod
    def plain_of(step: int, seconds: float, harness_seconds: float, samples: int) -> dict[str, Any]:
        """A timing as JSON has it."""
        return {
            "step": step,
            "seconds": seconds,
            "harness_seconds": harness_seconds,
            "samples": None if samples == UNKNOWN else samples,
        }

    @staticmethod
    def line_of(step: int, seconds: float, harness_seconds: float, samples: int) -> str:
        """A timing as a line of JSON."""
        told = "null" if samples == UNKNOWN else samples
        return (
            f'{{"harness_seconds": {harness_seconds!r}, "samples": {told}, '
            f'"seconds": {seconds!r}, "step": {step}}}'
        )

    @staticmethod
    def record_of(step: int, seconds: float, harness_seconds: float, samples: int) -> StepTiming:
        """The timing."""
        return StepTiming(
            step=step,
            seconds=seconds,
            harness_seconds=harness_seconds,
            samples=None if samples == UNKNOWN else samples,
        )


KEYS = frozenset(StepTiming.model_fields)
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

    __slots__ = ("_places", "_steps", "_told")
    record: ClassVar[type[StepDigest]] = StepDigest

    def __init__(
        self, steps: Iterable[int] = (), told: Iterable[tuple[int, StepDigest]] = ()
    ) -> None:
        """The steps, and the records among them by their places, in order.

        `ValueError` or `OverflowError` for steps that no record may have, and records of others.
        """
        numbers = array(SIGNED, steps)
        self._steps = numbers.tobytes()
        pairs = tuple(pair for pair in told if pair[1].parameters or pair[1].fingerprints)
        self._places = tuple(place for place, _ in pairs)
        self._told = tuple(one for _, one in pairs)
        fits = not numbers or 1 <= min(numbers) <= max(numbers) <= MAX_STEP
        if not fits or [numbers[place] for place in self._places] != [
            one.step for one in self._told
        ]:
            message = "are no steps of these records"
            raise ValueError(message)

    @classmethod
    def of(cls, records: Iterable[StepDigest]) -> Self:
        """Hold these records."""
        found = tuple(records)
        return cls((one.step for one in found), enumerate(found))

    @property
    def steps(self) -> memoryview[int]:
        """The steps alone; not to be written to."""
        return _numbers(self._steps)

    @property
    def told(self) -> tuple[StepDigest, ...]:
        """The steps that have a digest."""
        return self._told

    @classmethod
    def of_plain(cls, records: list[Any], checked: Checked, /) -> Self:
        """Hold records as JSON has them; faults as the base has them."""
        bare = [one["parameters"] == "" and one.keys() == BARE_KEYS for one in records]
        places = [place for place, without in enumerate(bare) if not without]
        told = iter(checked([records[place] for place in places]))
        steps = [one["step"] for one in records]
        if not {*map(type, steps)} <= {int}:
            message = "a step is no whole number"
            raise ValueError(message)
        return cls(steps, zip(places, told, strict=True))

    def facts(self) -> Iterator[dict[str, Any] | str]:
        """Each record, in one line where it has no digest."""
        told = dict(zip(self._places, self._told, strict=True))
        for place, step in enumerate(self.steps):
            one = told.get(place)
            yield one.model_dump() if one else f'{{"parameters": "", "step": {step}}}'

    def plain(self) -> Iterator[dict[str, Any]]:
        """Each record as JSON has it."""
        told = dict(zip(self._places, self._told, strict=True))
        for place, step in enumerate(self.steps):
            one = told.get(place)
            yield one.model_dump() if one else {"step": step, "parameters": ""}

    def packed(self) -> list[Any]:
        """The steps and the places of records as base64, in this machine's order; the records."""
        places = array(SIGNED, self._places).tobytes()
        columns = (b64encode(column).decode("ascii") for column in (self._steps, places))
        return [*columns, [one.model_dump() for one in self._told]]

    @classmethod
    def unpacked(cls, parts: list[Any], checked: Checked, /) -> Self:
        """What `packed` gave; faults as the base has them."""
        first, second, told = parts
        steps, places = (_numbers(b64decode(part, validate=True)) for part in (first, second))
        ordered = all(one < other for one, other in pairwise(places))
        if not ordered or (places and places[0] < 0):
            message = "places are not in order"
            raise ValueError(message)
        try:
            return cls(steps, zip(places, checked(told), strict=True))
        except IndexError as error:
            message = "a place is beyond the steps"
            raise ValueError(message) from error

    def at(self, place: int) -> StepDigest:
        """The record at a place from 0 on."""
        found = bisect_left(self._places, place)
        if found < len(self._places) and self._places[found] == place:
            return self._told[found]
        return StepDigest(step=self.steps[place])

    def part(self, places: slice) -> Self:
        """Some of the records."""
        chosen = {place: number for number, place in enumerate(range(len(self))[places])}
        told = zip(self._places, self._told, strict=True)
        found = ((chosen[place], one) for place, one in told if place in chosen)
        return type(self)(self.steps[places], sorted(found, key=lambda pair: pair[0]))

    def with_fingerprints_at(self, chosen: Iterable[int]) -> Self:
        """The same with fingerprints only at some steps, in any order, of those that have them."""
        kept = frozenset(chosen)
        told = (
            one if one.step in kept else one.model_copy(update={"fingerprints": {}})
            for one in self._told
        )
        return type(self)(self.steps, zip(self._places, told, strict=True))

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepDigests):
            return NotImplemented
        ours, theirs = (self._steps, self._told), (other._steps, other._told)
        return ours == theirs and self._places == other._places

    def __hash__(self) -> int:
        return hash((self._steps, self._places))


def _numbers(column: bytes) -> memoryview[int]:
    return memoryview(column).cast(SIGNED)
