from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import settings_of

from gate.errors import RunError
from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles
from gate.text.untrusted_text import last_lines
from gate.training.failed_run import (
    Hints,
    _ranks_behind,
    raised_at,
    refuse_failed_run,
    short_of_room,
)
from gate.training.launch import Launcher, run_folders
from gate.training.plan import plan_base, plan_gate, plan_record
from gate.training.run_folders import made_harness
from gate.training.runs import Commit, RankEnd, RunEnd, RunMode, Snapshot
from gate.training.timeline import CallTime

NOBODY = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")


class Played:
    """A process runner that ends every process as it was told to."""

    def __init__(self, exit_code: int = 0, output: bytes = b"", *, timed_out: bool = False) -> None:
        self.result = ProcessResult(
            exit_code=exit_code,
            timed_out=timed_out,
            wall_seconds=1.23456,
            output=output,
            output_bytes=len(output),
        )
        self.requests: list[ProcessRequest] = []

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        del on_line
        self.requests.append(request)
        return self.result


def _launch(
    tmp_path: Path,
    processes: Played,
    *,
    isolation: Isolation = NOBODY,
    command: str = "python train.py",
    workdir: str = ".",
) -> Path:
    tree = tmp_path / "snapshot"
    (tree / workdir).mkdir(parents=True, exist_ok=True)
    (tree / workdir / "train.py").write_text("pass")
    launcher = Launcher(
        files=LocalFiles(),
        processes=processes,
        progress=QuietProgress(),
        settings=settings_of(train={"command": tuple(command.split()), "max_steps": 3}),
        isolation=isolation,
        host={"PATH": "/bin"},
        harness=made_harness(LocalFiles()),
        call=CallTime(SystemClock()),
    )
    snapshot = Snapshot(commit="a" * 40, tree=tree, workdir=workdir, digest="0" * 64)
    root = tmp_path / "run"
    root.mkdir(exist_ok=True)
    record, _ = launcher.run(plan_gate(2, priced=True)[0], snapshot, run_folders(root))
    assert (record.label, record.wall_seconds) == ("strict-1", 1.235)
    assert record.isolation == isolation.of_a_run
    return root


def test_the_hint_names_the_folder_that_the_training_starts_in(tmp_path: Path) -> None:
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, Played(1, b"boom\n"), workdir="train/small")
    assert "by hand in train/small of a clean checkout" in caught.value.hint


def test_strict_and_default_runs_take_turns() -> None:
    assert [run.mode for run in plan_gate(2, priced=True)] == [
        *(RunMode.STRICT, RunMode.DEFAULT),
        *(RunMode.DEFAULT, RunMode.STRICT),
    ]
    assert [run.label for run in plan_record(2)] == ["strict-1", "strict-2"]
    assert {run.commit for run in plan_base()} == {Commit.BASE}


def test_every_run_starts_from_empty_folders_and_a_fresh_copy(tmp_path: Path) -> None:
    root = _launch(tmp_path, Played())
    for name in ("home", "tmp", "out", "tree"):
        (root / name / "left-behind").write_text("x")
    (root / "tree" / "train.py").write_text("changed")
    _launch(tmp_path, Played())
    assert list((root / "out").iterdir()) == []
    assert (root / "tree" / "train.py").read_text() == "pass"
    assert not (root / "tree" / "left-behind").exists()


def test_every_run_starts_with_the_harness_as_it_was_made(tmp_path: Path) -> None:
    harness = _launch(tmp_path, Played()) / "harness"
    before = {path: path.read_bytes() for path in harness.rglob("*") if path.is_file()}
    (harness / "sitecustomize.py").write_text("changed")
    (harness / "left-behind.py").write_text("x")
    _launch(tmp_path, Played())
    assert before == {path: path.read_bytes() for path in harness.rglob("*") if path.is_file()}


def test_the_process_gets_its_environment_and_nothing_else(tmp_path: Path) -> None:
    processes = Played()
    root = _launch(tmp_path, processes)
    (request,) = processes.requests
    assert request.argv == ("python", "train.py")
    assert request.workdir == root / "tree" / "."
    assert request.env["HOME"] == str(root / "home")
    assert "SHELL" not in request.env


@each_row(
    ("processes", "message", "hint"),
    [
        (Played(1, b"boom\n"), "python train.py exited with 1", "by hand in a clean checkout"),
        (Played(-signal.SIGBUS), "was killed by SIGBUS", "--shm-size"),
        (Played(-signal.SIGKILL), "was killed by SIGKILL", "lack of memory"),
        (Played(-signal.SIGXFSZ), "was killed by SIGXFSZ", "64 GiB"),
        (Played(-signal.SIGSYS), "was killed by SIGSYS", "32-bit program"),
        (Played(-99), "was killed by signal 99", "by hand in a clean checkout"),
        (
            Played(1, b"RuntimeError: x does not have a deterministic implementation"),
            "exited with 1",
            "An operator has no deterministic form",
        ),
        (Played(1, b"No module named 'torch'"), "exited with 1", "lacks a package"),
        (Played(1, b"code: -98, name: EADDRINUSE"), "exited with 1", "torchrun --standalone"),
        (
            Played(
                1, b"NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9)"
            ),
            "exited with 1",
            "isolation.shm_bytes",
        ),
        (
            Played(1, b"RuntimeError: pidfd_getfd: Operation not permitted"),
            "1",
            "expandable_segments",
        ),
        (
            Played(1, b"RuntimeError: In the deterministic mode of Inductor, we will avoid those"),
            "exited with 1",
            "determinism.knobs.inductor_deterministic",
        ),
        (
            Played(
                1, b"RuntimeError: Failed to find C compiler. Please specify via CC environment"
            ),
            "exited with 1",
            "gcc, g++ and libc6-dev",
        ),
        (Played(1, b"InvalidCxxCompiler: No working C++ compiler found in x"), "1", "libc6-dev"),
        (
            Played(1, b"CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            "exited with 1",
            "repro-gate doctor",
        ),
        (Played(1, b"all CUDA-capable devices are busy or unavailable"), "1", "-c DEFAULT"),
        (Played(0, timed_out=True), "timed out after 1800 s", "Lower train.max_steps"),
    ],
)
def test_a_run_that_ends_badly_says_how_and_what_to_do(
    tmp_path: Path, processes: Played, message: str, hint: str
) -> None:
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, processes)
    assert message in caught.value.message
    assert hint in caught.value.hint


@each_row(
    ("command", "output", "hint"),
    [
        (
            "python train.py",
            b"torch.distributed.DistNetworkError: ...",
            ("Ranks communicate over loopback"),
        ),
        (
            "python train.py",
            b"Cannot resolve 127.0.0.1 to a (local) address",
            ("Ranks communicate over"),
        ),
        ("torchrun train.py", b"", "Ranks communicate over loopback sockets"),
        (
            "python train.py",
            b"<urlopen error [Errno 13] Permission denied>",
            ("blocks network connections"),
        ),
        ("python train.py", b"No module named 'torch'", "lacks a package"),
        ("python train.py", b"PermissionError: [Errno 13] Permission denied: '/srv/a'", "$TMPDIR"),
        ("python train.py", b"OSError: [Errno 30] Read-only file system: '/a'", "$TMPDIR"),
    ],
)
def test_a_training_that_isolation_hinders_is_told_what_to_do(
    tmp_path: Path, command: str, output: bytes, hint: str
) -> None:
    itself = Credentials(uid=os.getuid(), gid=os.getgid())
    apart = replace(NOBODY, mode=IsolationMode.UID, credentials=itself)
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, Played(1, output), isolation=apart, command=command)
    assert hint in caught.value.hint
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, Played(1, output), isolation=replace(apart, network=True))
    assert "isolation.network" not in caught.value.hint


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/work/tree/train.py", line 12, in <module>',
    "    main()",
    '  File "/work/tree/data/read.py", line 3, in main',
    "    return open(path)",
    '  File "/usr/lib/python3.11/codecs.py", line 905, in open',
    "FileNotFoundError: [Errno 2] No such file or directory: 'x'",
)


def test_the_innermost_line_of_the_project_is_what_raised() -> None:
    assert raised_at(TRACEBACK, Path("/work/tree")) == ("data/read.py", 3)
    assert raised_at(TRACEBACK, Path("/elsewhere")) == ("", 0)


@each_row(
    "line",
    [
        '  File "../secret.py", line 1, in <module>',
        '  File "/work/tree/../../etc/passwd", line 1, in x',
        '  File "<string>", line 1, in <module>',
        '  File "train.py", line 99999999999, in x',
        'File "train.py", line 1',
    ],
)
def test_a_printed_line_that_is_no_place_of_the_project_is_none(line: str) -> None:
    assert raised_at((line,), Path("/work/tree")) == ("", 0)


def test_a_failed_training_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def read():\n    raise ValueError('no')\nread()\n")
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, check=False
    )
    lines = last_lines(done.stderr)
    assert raised_at(lines, tmp_path) == ("train.py", 2)


def test_last_lines_are_printable_and_bounded() -> None:
    output = b"\x1b[31mred\x1b[0m\n\n" + b"x" * 1000 + b"\n\xff\n" + b"line\n" * 30
    lines = last_lines(output)
    assert len(lines) == 20
    assert last_lines(b"\x1b[31mred\x1b[0m\x07\n")[0] == "red "
    assert len(last_lines(b"x" * 1000)[0]) == 300


SCRIPT_FAILED = (
    b"Traceback (most recent call last):\n"
    b'  File "/work/tree/train.py", line 3, in <module>\n'
    b"    import nothing_like_it\n"
    b"ModuleNotFoundError: No module named 'nothing_like_it'\n"
)
LAUNCHER_FAILED = (
    b"Traceback (most recent call last):\n"
    + b'  File "/usr/lib/launcher.py", line 7, in main\n    run()\n' * 15
    + b"subprocess.CalledProcessError: Command '['python', 'train.py']' returned exit status 1.\n"
)


@pytest.mark.parametrize("teller", [b"", b"[rank0]: ", b"(train_func pid=7) "])
def test_a_launchers_traceback_does_not_hide_the_scripts_own(tmp_path: Path, teller: bytes) -> None:
    told = b"".join(teller + line for line in SCRIPT_FAILED.splitlines(keepends=True))
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, Played(1, told + LAUNCHER_FAILED), command="accelerate launch train.py")
    assert "exited with 1: ModuleNotFoundError: No module named 'nothing_like_it'" in str(
        caught.value
    )
    assert caught.value.details[-1].endswith("No module named 'nothing_like_it'")


STOPPED = b"(worker pid=7) repro_gate_harness.lifecycle.session.TrainingStopped: 0\n"
RAY_FAILED = b"ray.train.base_trainer.TrainingFailedError: The Ray Train run failed.\n"


def _refused(printed: bytes, end: RunEnd, *, timed_out: bool = False) -> RunError:
    planned = plan_gate(2, priced=True)[0]
    request = ProcessRequest(
        argv=("python", "train.py"),
        env={},
        workdir=Path("/w"),
        timeout_seconds=1,
        output_limit_bytes=1000,
    )
    result = ProcessResult(
        exit_code=1, timed_out=timed_out, wall_seconds=1, output=printed, output_bytes=len(printed)
    )
    with pytest.raises(RunError) as caught:
        refuse_failed_run(planned, result, request, Hints(known="", workdir="."), end)
    return caught.value


def test_of_a_command_with_several_trainings_the_script_is_not_blamed() -> None:
    raised = b'Traceback:\n  File "/w/run_all.py", line 4, in <module>\nIndexError: list index\n'
    end = RunEnd(several="2 processes trained one after the other (pids 7, 8)", several_hint="One.")
    refused = _refused(raised, end)
    assert refused.message.startswith(
        "run strict-1: 2 processes trained one after the other (pids 7, 8), and the gate stops "
        "such a run; the command exited with 1: IndexError: list index"
    )
    assert refused.hint == "One."


def test_a_command_that_waits_for_a_process_that_was_stopped_is_told_as_that() -> None:
    refused = _refused(b"epoch 1\n", RunEnd(stopped=True), timed_out=True)
    assert refused.message == (
        "run strict-1: the gate stopped every rank after train.max_steps steps, and then the "
        "command went on until it timed out after 1 s (train.timeout_seconds)"
    )
    assert (refused.hint or "").startswith("Let the script end by itself: pass it the number of")
    failed = _refused(b"", RunEnd(stopped=True, failed=("KeyError",)), timed_out=True)
    assert failed.message == "run strict-1: timed out after 1 s (train.timeout_seconds)"


def test_a_command_that_fails_after_every_rank_was_stopped_is_told_as_that() -> None:
    refused = _refused(STOPPED + RAY_FAILED, RunEnd(stopped=True))
    assert refused.message == (
        "run strict-1: the gate stopped every rank after train.max_steps steps, and then the "
        "command exited with 1: ray.train.base_trainer.TrainingFailedError: The Ray Train run "
        "failed."
    )
    assert "Let the script end by itself" in refused.hint


@pytest.mark.parametrize(
    ("printed", "end"),
    [
        # a rank has another end than the one that is printed last
        (STOPPED + RAY_FAILED, RunEnd()),
        (STOPPED, RunEnd(stopped=True, failed=("rank 1 failed with builtins.ValueError",))),
        # behind the stop, in a process that is no rank
        (STOPPED + SCRIPT_FAILED, RunEnd(stopped=True)),
    ],
)
def test_a_crash_is_never_told_as_the_gates_stop(printed: bytes, end: RunEnd) -> None:
    refused = _refused(printed, end)
    assert "python train.py exited with 1" in refused.message
    assert "the gate stopped" not in refused.message
    assert all(name in refused.message for name in end.failed)


def test_a_missing_module_that_the_repository_has_is_no_package(tmp_path: Path) -> None:
    (tmp_path / "snapshot" / "ours").mkdir(parents=True)
    with pytest.raises(RunError) as caught:
        _launch(tmp_path, Played(1, b"ModuleNotFoundError: No module named 'ours.data'"))
    assert caught.value.hint.startswith("ours is a folder of this repository: set train.workdir")


@each_row(
    ("ended", "may_be_short"),
    [
        ({"timed_out": True}, True),
        ({"out_of_memory": True}, True),
        ({"exit_code": -9}, True),
        ({"exit_code": 1, "output": b"RuntimeError: CUDA error: out of memory"}, True),
        ({"exit_code": 1, "output": b"OSError: [Errno 98] Address already in use"}, True),
        ({"exit_code": 1, "output": b"ValueError: no"}, False),
        ({"exit_code": 0, "output": b"out of memory was read about"}, False),
    ],
)
def test_a_run_that_lacked_time_memory_or_a_port_is_known(
    ended: dict[str, object], *, may_be_short: bool
) -> None:
    plain = ProcessResult(exit_code=0, timed_out=False, wall_seconds=1, output=b"", output_bytes=0)
    assert short_of_room(replace(plain, **ended)) is may_be_short  # type: ignore[arg-type] # by name


KILLED = RankEnd(rank=1, node="n2", last_step=3, exit_code=-9)
LOST_ITS_PEER = RankEnd(rank=0, node="n1", last_step=3, failed="builtins.RuntimeError")
LATE = RankEnd(rank=2, node="n2", last_step=3, exit_code=-15)
TIMED_OUT = b"RuntimeError: Timed out waiting 4000ms for recv operation to complete\n"


def test_the_rank_that_was_killed_goes_before_those_that_lost_it() -> None:
    refused = _refused(b"", RunEnd(ranks=(LOST_ITS_PEER, KILLED, LATE)))
    said = "python train.py exited with 1 (rank 1 on n2: last step 3, killed by SIGKILL)"
    assert said in refused.message
    assert refused.details[1] == LOST_ITS_PEER.described


def test_a_rank_that_others_waited_for_in_vain_is_named() -> None:
    refused = _refused(TIMED_OUT, RunEnd(ranks=(LOST_ITS_PEER, LATE)))
    assert (
        "(rank 2 on n2: last step 3, still running when the others failed (SIGTERM); others timed "
        "out waiting)" in refused.message
    )
    assert "barrier" in refused.hint


@pytest.mark.parametrize(
    "output", [b"", b"ReadTimeoutError: HTTPSConnectionPool(host='h', port=443): Read timed out.\n"]
)
def test_without_a_timeout_of_torchs_own_nobody_is_called_late(output: bytes) -> None:
    refused = _refused(output, RunEnd(ranks=(LOST_ITS_PEER, LATE)))
    assert "(rank 0 on n1: last step 3, failed with builtins.RuntimeError)" in refused.message


def test_a_rank_that_was_never_there_is_named() -> None:
    refused = _refused(b"", RunEnd(ranks=(LOST_ITS_PEER, RankEnd(rank=1))))
    assert "(rank 1: no step, no word of its end)" in refused.message


def test_of_a_run_that_never_ends_the_rank_that_is_behind_is_named() -> None:
    ranks = (RankEnd(rank=0, last_step=5), RankEnd(rank=1, node="n2", last_step=4, exit_code=0))
    assert _ranks_behind(ranks) == "; rank 1 on n2: last step 4, exit code 0"
    assert _ranks_behind(ranks[:1]) == ""
