"""The distance between two captured states, as a report shows it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document

MAX_DISTANCES = 5000
MAX_ELEMENTS = 2**63
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TensorDistance(Document):
    """One tensor that has other bytes, and the same type and shape, on both sides.

    `differing` of the `elements` have other bits. `relative_l2` is the norm of the difference over
    the larger of the two norms, both over the elements that are finite on both sides; it and
    `max_absolute` are None where there is no such number. `finiteness_moved` says that one side has
    more NaN or infinite elements.
    """

    name: str = Field(max_length=1000)
    elements: int = Field(ge=0, le=MAX_ELEMENTS)
    differing: int = Field(ge=0, le=MAX_ELEMENTS)
    relative_l2: Size | None
    max_absolute: Size | None
    finiteness_moved: bool = False


class StateDistance(Document):
    """The tensors with numbers, worst first; `total` counts those that are not listed as well."""

    total: int = Field(ge=0, le=MAX_ELEMENTS)
    tensors: Annotated[tuple[TensorDistance, ...], Field(max_length=MAX_DISTANCES)]
