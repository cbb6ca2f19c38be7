"""Service levels: the share of good events that each indicator of a gate promises."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import Field

from gate.system.gate_names import GATE_ID_PATTERN
from gate.text.document import MOST_SECONDS, Document

MAX_GATES: Final = 1000


class Indicator(StrEnum):
    """What is counted over a history; docs/fleet.md says of each what is good and what counts."""

    REPRODUCIBLE = "M1"
    DIGESTS = "M2"
    SPREAD = "M3"
    FLAKES = "M4"
    DATA = "M5"
    OPERATORS = "M6"
    RUN_TIME = "M7"
    ROLLBACKS = "M8"
    SEALED = "M9"
    TIME_TO_VERDICT = "M10"


TARGETS: Final[Mapping[Indicator, float]] = MappingProxyType(
    {
        Indicator.REPRODUCIBLE: 0.95,
        Indicator.DIGESTS: 0.95,
        Indicator.SPREAD: 0.95,
        Indicator.FLAKES: 0.98,
        Indicator.DATA: 0.99,
        Indicator.OPERATORS: 0.95,
        Indicator.RUN_TIME: 0.9,
        Indicator.ROLLBACKS: 0.99,
        Indicator.SEALED: 0.99,
        Indicator.TIME_TO_VERDICT: 0.95,
    }
)
# below 1, because at 1 there is no error budget, and the burn rate of any bad event is infinite
Target = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class GateLevels(Document):
    """What one gate promises."""

    targets: dict[Indicator, Target] = Field(
        default_factory=dict,
        description="The share of good events by indicator, `M1` to `M10`, above 0 and below 1.",
    )
    spread: float = Field(
        default=0.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="M3: the largest relative difference of a metric between strict runs.",
    )
    step_deviation: float = Field(
        default=0.05,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="M7: how far the median step may be from the median of the 20 verdicts before "
        "in the same environment, as a share of it.",
    )
    seconds: float = Field(
        default=3600.0,
        gt=0,
        le=MOST_SECONDS,
        allow_inf_nan=False,
        description="M10: how long a call may take to its verdict.",
    )
    silent_hours: float = Field(
        default=168.0,
        gt=0,
        le=24 * 366,
        allow_inf_nan=False,
        description="How old the last verdict may be before a gate counts as silent.",
    )

    def target(self, indicator: Indicator) -> float:
        """Return the promised share of good events."""
        return self.targets.get(indicator, TARGETS[indicator])


class SloSettings(GateLevels):
    """Service levels for `repro-gate slo`; no verdict depends on them."""

    window_days: int = Field(
        default=28, ge=1, le=366, description="The window of every target, in days."
    )
    gates: Annotated[
        dict[Annotated[str, Field(pattern=GATE_ID_PATTERN)], GateLevels],
        Field(max_length=MAX_GATES),
    ] = Field(
        default_factory=dict,
        description="Levels of single gates by their id; keys that are left out are as above. A "
        "gate that is named here and has no verdict at all counts as silent.",
    )

    def of_gate(self, gate_id: str) -> GateLevels:
        """Return the levels of a gate: its own, completed by the general ones."""
        own = self.gates.get(gate_id)
        general = {name: getattr(self, name) for name in GateLevels.model_fields}
        if own is None:
            return GateLevels(**general)
        said = {name: getattr(own, name) for name in own.model_fields_set}
        said["targets"] = {**self.targets, **own.targets}
        return GateLevels(**(general | said))
