"""What the results of several seeds say: for the verdict, and for the entry that is proposed."""

from __future__ import annotations

from gate.baseline.entry import BaselineEntry
from gate.baseline.select import Selection
from gate.comparison.differences import Comparison
from gate.comparison.level_judgement import judge_level, seed_result, seeds_without_effect
from gate.comparison.level_records import LevelResult
from gate.errors import BaselineError
from gate.evidence.run_evidence import EvidenceSet
from gate.evidence.step_work import SeedResult
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Level
from gate.training.runs import RunMode
from gate.verdict.reached_level import SeedsOfBrought

NOT_RUN = "no further seed was trained"
Results = tuple[SeedResult, ...]


def seeds_are_open(
    trusted: Selection, against: Comparison | None, head_entry: BaselineEntry | None
) -> bool:
    """Whether more than the first seed has to be run: for the level, or for a proposed entry.

    Equal bits need no other seed, but a brought entry may say of its seeds what nobody has seen.
    """
    if against is None or not (trusted.same_training and against.numerically_equal):
        return True
    known = trusted.entry.seeded if trusted.entry is not None else ()
    return head_entry is not None and head_entry.seeded != known


def head_results(evidence: EvidenceSet, settings: GateSettings) -> Results:
    """The results of every seed in one order, that of the first strict run among them."""
    if not evidence.seeded:
        return ()
    own: Results = ()
    if settings.policy.level is Level.STATISTICAL:
        first = evidence.runs_of(RunMode.STRICT)[0]
        own = (seed_result(first, settings.train.seed, "", settings.policy),)
    results = (*own, *(seed.result for seed in evidence.seeded))
    return tuple(sorted(results, key=lambda result: (result.variant, result.seed)))


def unfit_seeds(evidence: EvidenceSet, settings: GateSettings) -> str:
    """Why the results of the seeds may be neither judged nor recorded, or the empty text."""
    broken = next((seed.not_finite for seed in evidence.seeded if seed.not_finite), "")
    return broken or seeds_without_effect(head_results(evidence, settings))


def judged(
    entry: BaselineEntry | None, evidence: EvidenceSet, settings: GateSettings
) -> LevelResult | None:
    """What came of the level, against an entry that the result is not equal to.

    None where the policy asks for a level that is judged without seeds, or there is no such entry.
    """
    policy = settings.policy
    if not policy.level.needs_seeds or entry is None:
        return None
    results = head_results(evidence, settings)
    problem = NOT_RUN if not results else unfit_seeds(evidence, settings)
    if problem:
        return LevelResult(asked=policy.level, problem=problem)
    return judge_level(entry.seeded, results, policy)


def entry_results(
    entry: BaselineEntry | None,
    against: Comparison | None,
    evidence: EvidenceSet,
    settings: GateSettings,
) -> Results:
    """The results that a proposed entry holds.

    Where the result has the bits of an entry of this environment no seed was run, and what that
    entry says of them still holds.
    """
    results = head_results(evidence, settings)
    if results or not settings.policy.level.needs_seeds or entry is None or against is None:
        return results
    return entry.seeded if against.numerically_equal and against.same_environment else ()


def recorded_results(evidence: EvidenceSet, settings: GateSettings) -> Results:
    """The results of a recording; `BaselineError` where they say nothing of seeds."""
    problem = unfit_seeds(evidence, settings)
    if problem:
        raise BaselineError(
            f"not recorded: {problem}",
            hint=f"policy.level: {settings.policy.level} is judged by how the result varies with "
            "the seed. Fix that, or choose another level.",
        )
    return head_results(evidence, settings)


def seeds_of_brought(
    head_entry: BaselineEntry | None,
    trusted: BaselineEntry | None,
    evidence: EvidenceSet,
    settings: GateSettings,
) -> SeedsOfBrought:
    """Whether a brought entry says of its seeds what this call saw, or what the base's entry says.

    At a level that needs no seeds nothing was run that could check them.
    """
    known = trusted.seeded if trusted is not None else ()
    if settings.policy.level.needs_seeds:
        known = head_results(evidence, settings) or known
    if head_entry is None or head_entry.seeded == known:
        return SeedsOfBrought.AS_SEEN
    if settings.policy.level.needs_seeds:
        return SeedsOfBrought.OTHER
    return SeedsOfBrought.UNCHECKED if head_entry.seeded else SeedsOfBrought.AS_SEEN
