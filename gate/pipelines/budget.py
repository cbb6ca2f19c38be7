"""The time that runs for a diagnosis may take together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gate.errors import GateError
from gate.evidence.run_evidence import RunEvidence
from gate.settings.diagnosis import DiagnosisSettings
from gate.system.clock import Clock

LEAST_SECONDS: Final = 1.0
# where all runs together take less, most of it is the start of Python: a few runs may take as long
SHORT_TRAINING_SECONDS: Final = 60.0


class Budget:
    """Seconds of wall-clock time that are left; by default as many as the call's own runs took.

    So many runs that were `skipped` count as well: their time may go into the diagnosis.
    """

    def __init__(
        self, settings: DiagnosisSettings, runs: tuple[RunEvidence, ...], skipped: int = 0
    ) -> None:
        spent = sum(run.run.wall_seconds for run in runs)
        spent += skipped * spent / max(1, len(runs))
        self.left = settings.budget_seconds or max(spent, SHORT_TRAINING_SECONDS)

    @property
    def used_up(self) -> bool:
        """Whether no run fits in any more."""
        return self.left < LEAST_SECONDS

    def spend(self, seconds: float) -> None:
        """A run took this long."""
        self.left -= seconds


def run_within(budget: Budget, clock: Clock, run: Callable[[], RunEvidence]) -> RunEvidence:
    """A run that the budget pays for, also where it fails; raises what the run raises."""
    began = clock.now()
    try:
        made = run()
    except GateError:
        # of a run that failed there is no record; the clock counts whole seconds
        budget.spend((clock.now() - began).total_seconds() + 1)
        raise
    budget.spend(made.run.wall_seconds)
    return made
