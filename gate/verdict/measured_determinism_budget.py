"""The determinism budget: what is left of each source of nonreproducibility of a cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gate.text.records_document import Document


class ClusterSource(StrEnum):
    """Why the same code, data and seed may give other numbers on a cluster."""

    REDUCTION = "reduction-order"
    NEIGHBOURS = "neighbours"
    WORKERS = "elastic-workers"
    HARDWARE = "unlike-hardware"
    PLACEMENT = "placement"


class SourceStatus(StrEnum):
    """What the evidence shows of a source.

    `eliminated`: a fact shows that it cannot move a number. `bounded`: it may, and runs that had it
    differ by no more than a figure. `recorded`: what is known of it is kept, and nothing bounds it.
    `not-exercised`: these runs do not have it.
    """

    ELIMINATED = "eliminated"
    BOUNDED = "bounded"
    RECORDED = "recorded"
    NOT_EXERCISED = "not-exercised"


class SourceState(Document):
    """One source; `because` is the fact that the state rests on, without a full stop.

    `figure` is the largest relative difference of a metric between runs of one kind, and `runs` how
    many runs of this commit it comes from; None and 0 where nothing bounds the source.
    """

    kind: ClusterSource
    state: SourceStatus
    because: str
    figure: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    runs: int = Field(default=0, ge=0)


DeterminismBudget = Annotated[tuple[SourceState, ...], Field(max_length=len(ClusterSource))]
