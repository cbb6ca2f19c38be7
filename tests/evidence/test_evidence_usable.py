"""A run is judged by its own files alone."""

from __future__ import annotations

import pytest
from each_row import each_row
from evidence_cases import evidence_of, record_of, settings_of

from gate.errors import EvidenceError
from gate.evidence.run_evidence import RankRecord, RunEvidence
from gate.evidence.usable import refuse_unusable
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.training.environment import UnlikeRank


def run_of(stepped: float | None, *, image: str = "") -> RunEvidence:
    """A run from second 100 to 110, whose first step ended at `stepped`."""
    isolation = RunIsolation(mode=IsolationMode.NONE, image=image)
    going = {"clock_seconds": 100.0, "wall_seconds": 10.0, "isolation": isolation}
    record = record_of("strict-2").model_copy(update=going)
    return evidence_of().model_copy(update={"run": record, "first_step_clock_seconds": stepped})


@each_row("stepped", [None, 98.5, 100.0, 105.0, 111.5])
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


def of_versions(**versions: str) -> RunEvidence:
    """Two ranks, of which rank 1 has other packages."""
    unlike = UnlikeRank(rank=1, part="packages", found="", versions=versions)
    run = evidence_of()
    ranks = tuple(RankRecord(rank=rank, node=f"n{rank}", steps=run.steps) for rank in (0, 1))
    environment = run.environment.model_copy(update={"unlike_ranks": (unlike,)})
    return run.model_copy(update={"environment": environment, "ranks": ranks})


def test_a_rank_with_another_version_of_a_package_is_refused() -> None:
    run = of_versions(numpy="numpy 1.26 instead of 2.0")
    with pytest.raises(EvidenceError) as caught:
        refuse_unusable(run, settings_of())
    assert caught.value.message == (
        "run strict-1: rank 1 on n1 trains with numpy 1.26 instead of 2.0, rank 0 on n0 with the "
        "other"
    )
    assert caught.value.details[1] == "rank 1 on n1: last step 3, exit code 0"


def test_a_package_that_the_settings_ignore_may_differ_among_ranks() -> None:
    run = of_versions(numpy="numpy 1.26 instead of 2.0")
    refuse_unusable(run, settings_of(environment={"ignore": ("num*",)}))
    refuse_unusable(of_versions(), settings_of())
