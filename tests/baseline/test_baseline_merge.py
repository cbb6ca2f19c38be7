"""Branches that record on different machines merge, with real git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from evidence_cases import COMMIT, CREATED_AT, evidence_of
from git_workshop import Repository
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gate.baseline.entry import Baseline, BaselineEntry, entry_name
from gate.baseline.folder import files_in, read_entries, write_entries
from gate.baseline.record import with_digest, with_entry
from gate.system.files.files import LocalFiles
from gate.training.environment import Environment

FILES = LocalFiles()
PLACE = ".repro-gate/baseline"
# in pairs as like each other as two machines of one pool are
MACHINES = ("cpu", "cpu2", "H100", "H100 80GB", "2 x H100")


def entry(machine: str, loss: float) -> BaselineEntry:
    run = evidence_of(values=(2.5, loss))
    return with_digest(
        BaselineEntry(
            commit=COMMIT,
            recorded_at=CREATED_AT,
            reason=f"recorded on {machine}",
            training={"train.seed": "1"},
            environment=Environment(parts={"device": machine, "torch": "2.13.0"}),
            metrics=run.metrics,
            steps=run.steps,
            checkpoint=run.checkpoint,
        )
    )


def read(repository: Repository) -> Baseline | None:
    return read_entries(files_in(FILES, repository.path / PLACE, PLACE), PLACE)


def record(repository: Repository, *entries: BaselineEntry) -> None:
    """As a machine does that adds to what it finds, or records anew."""
    for one in entries:
        before = read(repository)
        write_entries(FILES, repository.path / PLACE, before, with_entry(before, one))
    repository.commit()


def branches(
    path: Path, base: set[str], ours: set[str], theirs: set[str], *, other: float = 3.0
) -> Repository:
    """A repository on `ours`, with `theirs` ready to be merged."""
    repository = Repository(path)
    repository.write("README", "x")
    record(repository, *(entry(machine, 1.0) for machine in sorted(base)))
    repository.git("switch", "-q", "-c", "theirs")
    record(repository, *(entry(machine, other) for machine in sorted(theirs)))
    repository.git("switch", "-q", "main")
    record(repository, *(entry(machine, 2.0) for machine in sorted(ours)))
    return repository


SETS = st.sets(st.sampled_from(MACHINES))


@settings(
    max_examples=6,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(base=SETS, ours=SETS, both=SETS)
def test_entries_of_different_environments_never_conflict(
    tmp_path_factory: pytest.TempPathFactory, base: set[str], ours: set[str], both: set[str]
) -> None:
    theirs = both - ours
    repository = branches(tmp_path_factory.mktemp("merge") / "r", base, ours, theirs)
    repository.git("merge", "-q", "-m", "merged", "theirs")
    wanted = dict.fromkeys(base, 1.0)
    wanted |= dict.fromkeys(ours, 2.0) | dict.fromkeys(theirs, 3.0)
    found = read(repository)
    assert sorted(map(entry_name, found.entries if found else ())) == sorted(
        entry_name(entry(machine, loss)) for machine, loss in wanted.items()
    )
    for one in found.entries if found else ():
        assert one == entry(one.environment.part("device"), wanted[one.environment.part("device")])


def test_two_that_record_the_same_environment_conflict_in_its_file_alone(tmp_path: Path) -> None:
    repository = branches(tmp_path / "r", {"cpu", "H100"}, {"H100"}, {"H100", "cpu2"})
    with pytest.raises(subprocess.CalledProcessError):
        repository.git("merge", "-q", "-m", "merged", "theirs")
    name = entry_name(entry("H100", 1.0))
    assert repository.git("diff", "--name-only", "--diff-filter=U") == f"{PLACE}/{name}"
    # one side, whole, is an entry again
    repository.git("checkout", "-q", "--theirs", f"{PLACE}/{name}")
    repository.commit("merged")
    found = read(repository)
    assert found is not None
    assert entry("H100", 3.0) in found.entries
    assert len(found.entries) == 3


def test_a_new_recording_changes_its_own_file_alone(tmp_path: Path) -> None:
    repository = branches(tmp_path / "r", set(MACHINES), {"cpu"}, set())
    assert repository.git("diff", "--name-only", "HEAD~1") == (
        f"{PLACE}/{entry_name(entry('cpu', 1.0))}"
    )
