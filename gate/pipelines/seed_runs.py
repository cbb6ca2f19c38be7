"""The runs of further seeds and of variants, if they decide the policy's level."""

from __future__ import annotations

from gate.comparison.checks import first_not_finite
from gate.comparison.level_judgement import seed_result
from gate.errors import EvidenceError
from gate.evidence.run_evidence import RunEvidence, SeededRun
from gate.pipelines.trainings import Trainings
from gate.settings.gate_settings import GateSettings
from gate.training.plan import plan_seeds
from gate.training.runs import PlannedRun

SECONDS_A_MINUTE = 60


def run_seeds(trainings: Trainings, first: RunEvidence) -> tuple[SeededRun, ...]:
    """Make one strict run for each further seed, or for each pair of variant and seed.

    `first` is the run strict-1. Raises `EvidenceError` if a run's environment differs from the
    first's, and `RunError` for a failed run.
    """
    prepared = trainings.prepared
    settings = prepared.request.settings
    planned = plan_seeds(settings)
    if planned:
        prepared.adapters.progress.step(announced(settings, first.run.wall_seconds))
    runs = trainings.together(planned)
    return tuple(_seeded(settings, *plan, first) for plan in zip(planned, runs, strict=True))


def announced(settings: GateSettings, wall_seconds: float) -> str:
    """Return a sentence on the time that the level's runs take, at `wall_seconds` each."""
    planned = plan_seeds(settings)
    whose = f" of each of {len(settings.variants)} variants" if settings.variants else ""
    seconds = len(planned) * wall_seconds
    time = (
        f"{seconds:.0f} s"
        if seconds < 2 * SECONDS_A_MINUTE
        else f"{seconds / SECONDS_A_MINUTE:.0f} min"
    )
    return (
        f"policy.level {settings.policy.level}: {len(planned)} more runs, one for each "
        f"{'seed' if whose else 'further seed'}{whose}, about {time} if each takes as long as the "
        "first run"
    )


def _seeded(
    settings: GateSettings, planned: PlannedRun, run: RunEvidence, first: RunEvidence
) -> SeededRun:
    moved = first.environment.moved(run.environment)
    if moved:
        raise EvidenceError(
            f"run {planned.label}: the environment moved while the gate ran: "
            f"{', '.join(sorted(moved))}",
            hint="Results of several seeds are compared with each other: let every run have the "
            "same machine and packages. A variant must not change them either.",
        )
    number = first_not_finite((run,), settings.compare.allow_not_finite)
    seed = settings.train.seed if planned.seed is None else planned.seed
    words = f"{number.name} holds {number.value} in {number.run}" if number else ""
    return SeededRun(
        run=run.run,
        result=seed_result(run, seed, planned.variant, settings.policy),
        not_finite=words[:400],
    )
