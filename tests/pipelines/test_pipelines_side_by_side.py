"""Runs beside each other: the same result as one after the other, and no verdict by contention."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from gate_bench import Bench, gate_call
from played_training import SCRIPT, Project

from gate.errors import RunError
from gate.pipelines.prepared import prepare
from gate.pipelines.trainings import Trainings
from gate.system.machine import Room
from gate.training.plan import plan_gate
from gate.training.runs import RunRecord
from gate.verdict.verdict import Outcome, Verdict

GIB = 1024**3
ROOM = Room(cpus=(0, 1), cpu_quota=2, free_bytes=64 * GIB)
# the first strict run fails beside the second one, as where memory is short; made again it does not
CROWDED = """
import os, pathlib, sys, time
crowd = pathlib.Path({folder!r})
if os.environ["REPRO_GATE_MODE"] == "strict":
    (crowd / str(os.getpid())).touch()
    while len(came := sorted(int(one.name) for one in crowd.iterdir())) < 2: time.sleep(0.01)
    if came == [os.getpid(), came[-1]]:
        print({words!r})
        sys.exit(1)
"""
# as the harness does where torch is imported
WAITS = """
import os, time
while not os.path.exists(os.environ["REPRO_GATE_LET_GO"]):
    time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def _root() -> None:
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs root and two cores to let runs go beside each other")


@pytest.fixture(autouse=True)
def _whole(bench: Bench) -> None:
    """When runs go is what these tests are about."""
    bench.whole = True


def judged(bench: Bench, room: Room = ROOM, **options: object) -> Verdict:
    adapters = replace(bench.adapters(), room=lambda: room)
    return gate_call(bench.request(**options), adapters).verdict


def _overlap(one: RunRecord, other: RunRecord) -> bool:
    ends = [run.begun_seconds + run.wall_seconds for run in (one, other)]
    return max(one.begun_seconds, other.begun_seconds) < min(ends)


def _runs(verdict: Verdict) -> dict[str, RunRecord]:
    return {run.label: run for run in verdict.runs}


def test_strict_runs_go_together_and_default_runs_alone(bench: Bench, project: Project) -> None:
    project.write("train.py", WAITS + SCRIPT)
    project.play(sleep=3)
    runs = _runs(judged(bench))
    assert _overlap(runs["strict-1"], runs["strict-2"])
    assert runs["strict-1"].lane != runs["strict-2"].lane
    for label in ("default-1", "default-2"):
        assert not any(_overlap(runs[label], run) for run in runs.values() if run.label != label)
    assert list(runs) == ["strict-1", "default-1", "default-2", "strict-2"]


@pytest.mark.parametrize(
    ("parallel", "room"),
    [
        ("never", ROOM),
        ("auto", replace(ROOM, cpu_quota=1)),
        ("auto", replace(ROOM, free_bytes=GIB)),
    ],
)
def test_one_after_the_other_where_it_is_asked_for_or_there_is_no_room(
    bench: Bench, project: Project, parallel: str, room: Room
) -> None:
    project.settings(f"runs: {{parallel: {parallel}}}\n")
    project.play(sleep=0.3)
    runs = list(judged(bench, room).runs)
    assert not any(_overlap(one, other) for one in runs for other in runs if one is not other)
    assert {run.lane for run in runs} == {0}


def test_a_baseline_of_one_way_is_reproduced_by_the_other(bench: Bench, project: Project) -> None:
    bench.record()
    assert judged(bench).outcome is Outcome.REPRODUCED
    project.settings("runs: {parallel: never}\n")
    assert judged(bench).outcome is Outcome.REPRODUCED


def crowded(project: Project, folder: Path, words: str) -> None:
    folder.mkdir()
    # the default run goes first, and shows that nothing takes a port
    project.write("train.py", WAITS + CROWDED.format(folder=str(folder), words=words) + SCRIPT)
    project.commit()


def test_a_run_that_runs_out_of_memory_beside_another_is_repeated_alone(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    crowded(project, tmp_path / "crowd", "torch.OutOfMemoryError: CUDA out of memory")
    verdict = judged(bench)
    assert verdict.outcome is Outcome.NO_BASELINE
    assert [run.failed_beside for run in verdict.runs].count(("strict-2",)) == 1
    messages = {one.code: one.message for one in verdict.findings}
    assert messages["repeated-alone"] == (
        "re-run on its own: strict-1 (it failed side by side with strict-2)"
    )
    repeated = next(run for run in verdict.runs if run.failed_beside)
    assert not any(_overlap(repeated, run) for run in verdict.runs if run is not repeated)


def test_another_failure_beside_another_run_is_the_trainings_own(
    bench: Bench, project: Project, tmp_path: Path
) -> None:
    crowded(project, tmp_path / "crowd", "ValueError: no such file")
    with pytest.raises(RunError, match=r"run strict-1: python3 train.py exited with 1"):
        judged(bench)


def test_nobody_waits_for_a_run_beside_one_that_has_failed(bench: Bench, project: Project) -> None:
    """The first to come fails, the other one would sleep for ten minutes."""
    crowd = project.path.parent / "crowd"
    script = (
        "import os, pathlib, sys, time\n"
        f"crowd = pathlib.Path({str(crowd)!r})\n"
        "(crowd / str(os.getpid())).touch()\n"
        "while len(list(crowd.iterdir())) < 2: time.sleep(0.01)\n"
        "first = min(crowd.iterdir(), key=lambda one: int(one.name)).name == str(os.getpid())\n"
        "sys.exit('no such file') if first else time.sleep(600)\n"
    )
    crowd.mkdir()
    project.write("train.py", script)
    project.settings("cost: {when: never}\n")
    with pytest.raises(RunError, match=r"run strict-[12]: python3 train.py exited with 1"):
        judged(bench)


@pytest.mark.parametrize(
    ("words", "clauses"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory", ["", ""]),
        ("boom", ["run strict-2: python3 train.py exited with 1", ""]),
    ],
)
def test_a_run_that_is_to_fail_ends_no_other_and_one_short_of_memory_is_repeated(
    bench: Bench, project: Project, tmp_path: Path, words: str, clauses: list[str]
) -> None:
    crowded(project, tmp_path / "crowd", words)
    script = (project.path / "train.py").read_text()
    # the second one fails
    project.write("train.py", script.replace("[os.getpid(), came[-1]]", "[came[0], os.getpid()]"))
    project.commit()
    adapters = replace(bench.adapters(), room=lambda: ROOM)
    first, default, _, *killed = plan_gate(3, priced=True)
    with prepare(bench.request(), adapters, at_a_time=2) as prepared:
        trainings = Trainings(prepared)
        trainings.run(default)
        evidence, ended = trainings.resumed(first, tuple(killed))
        with closing(ended):
            assert [trainings.how_it_ended(one) for one in ended] == clauses
        # every place is free again
        assert trainings.together((first, *killed))[0].steps == evidence.steps
    assert evidence.run.label == "strict-1"


def test_what_was_started_ahead_and_is_not_needed_is_ended(bench: Bench, project: Project) -> None:
    """The first run fails: of the one that was started ahead nothing is left."""
    script = (
        "import os, pathlib, sys, time\n"
        f"pathlib.Path({str(project.path.parent)!r}, os.environ['REPRO_GATE_MODE'])"
        ".write_text(str(os.getpid()))\n"
        "time.sleep(600) if os.environ['REPRO_GATE_MODE'] == 'strict' else time.sleep(1)\n"
        "sys.exit(1)\n"
    )
    project.write("train.py", script)
    project.commit()
    with pytest.raises(RunError, match="run default-1"):
        judged(bench)
    assert not Path(f"/proc/{(project.path.parent / 'strict').read_text()}").exists()
