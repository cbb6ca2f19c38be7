"""The last values of a run's metrics, as they stand for one seed."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gate.evidence.run_evidence import RunEvidence
from gate.evidence.seeds import MAX_FINAL_VALUES, FinalValue, SeedResult
from gate.settings.levels import LevelPolicy
from gate.text.json_text import canonical_sha256


def seed_result(run: RunEvidence, seed: int, variant: str, policy: LevelPolicy) -> SeedResult:
    """What a strict run gave with its seed; of very many metrics those that are judged."""
    values = sorted(
        (
            FinalValue(metric=series.name, point=series.points[-1])
            for series in run.metrics
            if series.points
        ),
        # what is judged first: what does not fit is cut off at the end
        key=lambda value: (not is_judged(value.metric, policy), value.metric),
    )
    metrics = [series.model_dump() for series in run.metrics]
    return SeedResult(
        variant=variant,
        seed=seed,
        digest=canonical_sha256([metrics, run.checkpoint.root]),
        values=tuple(sorted(values[:MAX_FINAL_VALUES], key=lambda value: value.metric)),
    )


def is_judged(metric: str, policy: LevelPolicy) -> bool:
    """Whether the policy's level looks at this metric."""
    ranked = policy.ranking is not None and policy.ranking.metric == metric
    return ranked or any(fnmatchcase(metric, pattern) for pattern in policy.equivalence)
