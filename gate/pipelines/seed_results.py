"""The results of several seeds, for the verdict and for the proposed entry."""

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
    """Decide whether further seeds must run, for the level or for a proposed entry.

    If the bits are equal, no other seed is needed. But an entry of the pull request may contain
    results of seeds that no trusted call has seen.
    """
    if against is None or not (trusted.same_training and against.numerically_equal):
        return True
    known = trusted.entry.seeded if trusted.entry is not None else ()
    return head_entry is not None and head_entry.seeded != known


def head_results(evidence: EvidenceSet, settings: GateSettings) -> Results:
    """Return the sorted results of all seeds, at level statistical with the first run's."""
    if not evidence.seeded:
        return ()
    own: Results = ()
    if settings.policy.level is Level.STATISTICAL:
        first = evidence.runs_of(RunMode.STRICT)[0]
        own = (seed_result(first, settings.train.seed, "", settings.policy),)
    results = (*own, *(seed.result for seed in evidence.seeded))
    return tuple(sorted(results, key=lambda result: (result.variant, result.seed)))


def unfit_seeds(evidence: EvidenceSet, settings: GateSettings) -> str:
    """Return why the seeds' results can be neither judged nor recorded, or an empty text."""
    broken = next((seed.not_finite for seed in evidence.seeded if seed.not_finite), "")
    return broken or seeds_without_effect(head_results(evidence, settings))


def judged(
    entry: BaselineEntry | None, evidence: EvidenceSet, settings: GateSettings
) -> LevelResult | None:
    """Return which level the seeds reach against an entry with a different result.

    None if the policy's level needs no seeds, or there is no such entry.
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
    """Return the seeds' results for a proposed entry.

    If the result equals an entry of this environment, no seed was run. The results in that entry
    still hold then.
    """
    results = head_results(evidence, settings)
    if results or not settings.policy.level.needs_seeds or entry is None or against is None:
        return results
    return entry.seeded if against.numerically_equal and against.same_environment else ()


def recorded_results(evidence: EvidenceSet, settings: GateSettings) -> Results:
    """Return the seeds' results of a recording; raise `BaselineError` if they are unfit."""
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
    """Decide whether the pull request's entry has the seeds' results that are already known.

    These are the results of this call, or else those of the base's entry. At a level without seeds,
    nothing ran that could check them.
    """
    known = trusted.seeded if trusted is not None else ()
    if settings.policy.level.needs_seeds:
        known = head_results(evidence, settings) or known
    if head_entry is None or head_entry.seeded == known:
        return SeedsOfBrought.AS_SEEN
    if settings.policy.level.needs_seeds:
        return SeedsOfBrought.OTHER
    return SeedsOfBrought.UNCHECKED if head_entry.seeded else SeedsOfBrought.AS_SEEN
