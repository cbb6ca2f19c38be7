"""Which level a result reached, and whether the policy asks for no more."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from gate.comparison.check_records import ThresholdResult
from gate.comparison.differences import Comparison
from gate.comparison.level_records import LevelResult
from gate.settings.levels import Level, ReachedLevel
from gate.verdict.findings import warning
from gate.verdict.verdict import DRIFTS, Finding, Outcome

# what another result than the baseline's has to have reached
ENOUGH: Mapping[Level, ReachedLevel] = MappingProxyType(
    {
        Level.STATISTICAL: ReachedLevel.STATISTICAL,
        Level.FUNCTIONAL: ReachedLevel.FUNCTIONAL,
        Level.SCIENTIFIC: ReachedLevel.SCIENTIFIC,
    }
)
HELD: Mapping[Level, str] = MappingProxyType(
    {
        Level.STATISTICAL: "every judged metric is equivalent over the seeds",
        Level.FUNCTIONAL: "every threshold is met",
        Level.SCIENTIFIC: "the variants rank as they did",
    }
)


def reached(
    outcome: Outcome,
    base_run: Comparison | None,
    thresholds: tuple[ThresholdResult, ...],
    judged: LevelResult | None,
) -> ReachedLevel | None:
    """The strictest level that was reached, None where the result came to none."""
    if outcome in {Outcome.REPRODUCED, Outcome.BASELINE_CHANGE}:
        return ReachedLevel.BITWISE
    if outcome is Outcome.WITHIN_TOLERANCE:
        equal = base_run is not None and base_run.numerically_equal
        return ReachedLevel.BITWISE if equal else ReachedLevel.TOLERANCE
    if outcome not in DRIFTS:
        return None
    if judged is not None and judged.reached is not None:
        return judged.reached
    # without a threshold nothing was judged, and that is never a level
    met = bool(thresholds) and all(one.met for one in thresholds)
    return ReachedLevel.FUNCTIONAL if met else None


def is_enough(level: ReachedLevel | None, asked: Level) -> bool:
    """Whether another result than the baseline's passes: it reached what the policy asks for."""
    return level is not None and ENOUGH.get(asked) is level


def why(asked: Level, level: ReachedLevel | None, judged: LevelResult | None) -> str:
    """Why another result passes at the level, or did not reach it; empty where none was judged."""
    if is_enough(level, asked):
        return f"{HELD[asked]}, and policy.level asks for no more"
    if judged is None:
        return ""
    return f"the level {asked} was not reached: {judged.problem}"


def unfit_seeds(problem: str) -> tuple[Finding, ...]:
    """Could the results of several seeds not be used, neither to judge nor to record?"""
    if not problem:
        return ()
    return warning(
        "seeds-unusable",
        message=f"no baseline entry is proposed: {problem}",
        remedy="Mend that, or ask for a policy.level that is judged without seeds.",
    )


class SeedsOfBrought(Enum):
    """What a brought entry says of seeds, beside what this call saw of them."""

    AS_SEEN = "as seen"
    OTHER = "other"
    UNCHECKED = "unchecked"

    @property
    def seen(self) -> bool:
        """Whether nothing speaks against it."""
        return self is not SeedsOfBrought.OTHER


def brought_seeds(found: SeedsOfBrought) -> tuple[Finding, ...]:
    """Does a brought entry say of seeds what this call did not see?"""
    if found is SeedsOfBrought.OTHER:
        return warning(
            "brought-seeds",
            message="the pull request's baseline holds other results of seeds or variants than "
            "this call saw, so it does not count as reproduced",
            remedy="Record it again with these settings, or accept this call's proposal.",
        )
    if found is SeedsOfBrought.UNCHECKED:
        return warning(
            "brought-seeds",
            message="the pull request's baseline holds results of seeds or variants, and nothing "
            "checked them: the settings that decide here name no seeds",
            remedy="Merge the settings first and the baseline after them, or record the baseline "
            "yourself and compare.",
        )
    return ()
