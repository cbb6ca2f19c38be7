"""A run is judged by its own files alone."""

from __future__ import annotations

import pytest
from evidence_cases import evidence_of, record_of, settings_of

from gate.errors import EvidenceError
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.usable import refuse_unusable
from gate.isolation.modes import IsolationMode, RunIsolation


def run_of(stepped: float | None, *, image: str = "") -> RunEvidence:
    """A run from second 100 to 110, whose first step ended at `stepped`."""
    isolation = RunIsolation(mode=IsolationMode.NONE, image=image)
    going = {"clock_seconds": 100.0, "wall_seconds": 10.0, "isolation": isolation}
    record = record_of("strict-2").model_copy(update=going)
    return evidence_of().model_copy(update={"run": record, "first_step_clock_seconds": stepped})


@pytest.mark.parametrize("stepped", [None, 98.5, 100.0, 105.0, 111.5])
def test_a_first_step_in_the_runs_own_time_is_its_own(stepped: float | None) -> None:
    refuse_unusable(run_of(stepped), settings_of())


@pytest.mark.parametrize("stepped", [0.0, 90.0, 120.0])
def test_a_first_step_of_another_time_is_another_runs(stepped: float) -> None:
    expected = "run strict-2: its first step was not taken while it ran"
    with pytest.raises(EvidenceError, match=expected) as caught:
        refuse_unusable(run_of(stepped), settings_of())
    assert caught.value.hint.startswith("The files are of another run")


def test_a_container_may_have_another_clock() -> None:
    refuse_unusable(run_of(3.0, image="sha256:" + "0" * 64), settings_of())
