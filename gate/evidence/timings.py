"""How long each step took."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field

from gate.evidence.columns import FLOAT, SIGNED, NumberRows
from gate.evidence.point import MAX_STEP
from gate.text.records_document import Document

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
