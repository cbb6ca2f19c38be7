"""The default runs beside the strict ones, where both modes do the same work.

Two runs miss a fault that strikes seldom: a branch taken once in ten runs is missed by two of them
four times out of five. A gate call makes four runs; where strict mode changes nothing about the
computation, all four must be equal.
"""

from __future__ import annotations

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import ComparisonSettings
from gate.training.environment import CPU, DEVICE

ONE_THREAD = "1"


def runs_of_the_same_work(
    strict: RunEvidence, default: tuple[RunEvidence, ...], settings: ComparisonSettings
) -> tuple[Comparison, ...]:
    """The first strict run against each default run; nothing where the modes are not comparable.

    They are where every run used one CPU thread, so that no order of summation is left open, and
    at least one default run gave the strict result: then the switches of strict mode did not matter
    here, and a default run that differs was struck by something else.
    """
    if not default or not all(map(on_one_cpu_thread, (strict, *default))):
        return ()
    compared = tuple(
        compare_results(strict, run, settings, (strict.run.label, run.run.label)) for run in default
    )
    return compared if any(comparison.numerically_equal for comparison in compared) else ()


def on_one_cpu_thread(run: RunEvidence) -> bool:
    """Whether no order of summation was left open by threads or a GPU."""
    where = run.environment
    return where.of_ranks(DEVICE) == (CPU,) and where.part("threads") == ONE_THREAD


def missed_share(runs: int, strikes: float) -> float:
    """How often all runs agree although each is affected with this probability."""
    # alike in two ways: every run was struck, or none was
    return float(strikes**runs + (1 - strikes) ** runs)
