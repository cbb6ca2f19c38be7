"""The digests of each step, of which most steps of a long training have none."""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gate.evidence.columns import SIGNED, Checked, Rows
from gate.evidence.fingerprints import PARAMETERS
from gate.evidence.point import MAX_STEP
from gate.text.records_document import Document

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
