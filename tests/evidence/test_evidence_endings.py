"""A run stopped on purpose is never a crash, and the crash of any rank is never a stop."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import record_of
from harness_folder import ENVIRONMENT, HarnessFolder, step_line

from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.evidence.harness_files import find_processes
from gate.evidence.ranks import read_end
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import TrainSettings
from gate.system.files.files import LocalFiles
from gate.training.runs import RunEnd

# of one rank: what it left. Only the first two are the gate's stop
SOUND, KILLED_AFTER, RAISED_AFTER, BY_ITSELF, CUT_SHORT, ABSENT = range(6)
LAUNCHER_PID = 90
# of who started the ranks: the exceptions it ended with, whether one of them is the stop, and
# whether that is the stop for sure, or only where all ranks told a sound end
LAUNCHERS: dict[str, tuple[tuple[str, ...], bool, bool | None]] = {
    "ray-holds-the-stop": (("ray.train.WorkerGroupError",), True, True),
    "ray-without-it": (("ray.exceptions.WorkerCrashedError",), False, None),
    "submitit": (("submitit.core.utils.UncompletedJobError",), False, None),
    "ray-of-a-crash": (("ray.train.WorkerGroupError", "builtins.ValueError"), True, False),
    "torchrun": (
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError",),
        False,
        False,
    ),
    "accelerate": (("subprocess.CalledProcessError",), False, False),
    "spawn": (("torch.multiprocessing.spawn.ProcessExitedException",), False, False),
    "its-own-fault": (("builtins.KeyError",), False, False),
    "nobody": ((), False, False),
}


def leave(folder: HarnessFolder, what: int) -> None:
    """Write what a rank of two leaves that ended so."""
    if what == ABSENT:
        return
    folder.attest()
    folder.steps(step_line(1), step_line(2))
    if what == CUT_SHORT:
        return
    folder.state()
    by = "script" if what == BY_ITSELF else "max_steps"
    folder.summary(stopped_by=by, environment=ENVIRONMENT | {"world_size": "2"})
    if what == RAISED_AFTER:
        folder.ended("builtins.ValueError", stopped=True)
    elif what != KILLED_AFTER:
        folder.ended()


def end_of(path: Path, ranks: tuple[int, ...], launcher: str) -> RunEnd:
    path.mkdir()
    for number, what in enumerate(ranks):
        leave(HarnessFolder(path=path, rank=number, pid=11 + number), what)
    exceptions, stopped, _ = LAUNCHERS[launcher]
    if exceptions or stopped:
        HarnessFolder(path=path, pid=LAUNCHER_PID).ended(
            *exceptions, stopped=stopped, trained=False
        )
    return read_end(LocalFiles(), path, find_processes(LocalFiles(), path))


@each_row("launcher", LAUNCHERS)
def test_a_failed_command_was_stopped_only_where_every_rank_and_its_launcher_say_so(
    tmp_path: Path, launcher: str
) -> None:
    sure = LAUNCHERS[launcher][2]
    for place, ranks in enumerate(product(range(6), repeat=2)):
        end = end_of(tmp_path / str(place), ranks, launcher)
        stopped = set(ranks) <= {SOUND, KILLED_AFTER, RAISED_AFTER}
        assert end.stopped == stopped, ranks
        well = set(ranks) <= {SOUND, KILLED_AFTER} if sure else set(ranks) == {SOUND}
        assert end.by_stop == (sure is not False and well), (launcher, ranks)
        assert len(end.failed) == ranks.count(RAISED_AFTER)


def test_that_several_processes_trained_is_known_of_a_failed_command_too(tmp_path: Path) -> None:
    for pid in (11, 12):
        leave(HarnessFolder(path=tmp_path, pid=pid), SOUND)
    end = read_end(LocalFiles(), tmp_path, find_processes(LocalFiles(), tmp_path))
    assert end.several == "2 processes trained without ranks (pids 11, 12)"
    assert end.several_hint.startswith("Processes that update shared weights race")
    other = tmp_path / "ranks"
    assert end_of(other, (SOUND, RAISED_AFTER), "nobody").several == ""


def collect(harness: HarnessFolder) -> RunEvidence:
    train = TrainSettings(command=("python", "train.py"), max_steps=2)
    return collect_run(
        LocalFiles(), record_of("strict-1"), harness.path, harness.path.parent, b"", train
    )


def test_a_rank_that_crashed_is_refused_though_the_command_ended_with_0(
    harness: HarnessFolder,
) -> None:
    harness.whole()
    crashed = harness.of(rank=1, pid=12)
    crashed.whole(stopped_by="script")
    crashed.ended("builtins.OSError")
    with pytest.raises(EvidenceError) as caught:
        collect(harness)
    assert caught.value.message == (
        "rank 1 failed with builtins.OSError, but the command exited with 0"
    )
    assert caught.value.hint.startswith("Let the command fail where a rank does")
