"""Isolation `container` against a real engine: what is promised is tried from inside."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gate.errors import CancelledError, RunError
from gate.isolation.containers import ContainerProcesses
from gate.isolation.engine import Engine, connect_docker, engine_address
from gate.isolation.modes import (
    ContainerSettings,
    Credentials,
    Isolation,
    IsolationMode,
    TrainingContainer,
)
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.stop_signals import StopSignals
from gate.settings.load import parse_settings
from gate.system.files.files import LocalFiles
from gate.training.isolating import ContainerChooser
from gate.training.run_folders import install_harness

pytestmark = pytest.mark.docker
ACCOUNT = Credentials(uid=61042, gid=61042)
Run = Callable[..., ProcessResult]


@pytest.fixture
def request_for(base_image: str, open_folder: Path, run_id: str) -> Callable[..., ProcessRequest]:
    out = open_folder / "out"
    out.mkdir()
    if os.geteuid() == 0:
        os.chown(out, ACCOUNT.uid, ACCOUNT.gid)
    account = ACCOUNT if os.geteuid() == 0 else Credentials(uid=os.geteuid(), gid=os.getegid())

    def made(program: str, *, seconds: float = 60, **limits: object) -> ProcessRequest:
        return ProcessRequest(
            argv=("python3", "-c", program),
            env={"GREETING": "hello"},
            workdir=out,
            timeout_seconds=seconds,
            output_limit_bytes=8192,
            credentials=account,
            container=TrainingContainer(
                image_id=base_image, run=run_id, limits=ContainerSettings.model_validate(limits)
            ),
            writable=(out,),
        )

    return made


@pytest.fixture
def run(engine: Engine, request_for: Callable[..., ProcessRequest]) -> Run:
    def run_it(program: str, **how: object) -> ProcessResult:
        return ContainerProcesses(engine).run(request_for(program, **how), lambda _: None)

    return run_it


def attempt(run: Run, program: str) -> str:
    """What a Python program in the container could do: its last line."""
    return run(program).output.decode().strip().splitlines()[-1]


def test_output_of_both_streams_and_the_exit_code_come_back(run: Run) -> None:
    result = run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (result.exit_code, result.timed_out, result.out_of_memory) == (3, False, False)
    assert sorted(result.output.split()) == [b"err", b"out"]
    assert result.output_bytes == 8


def test_environment_is_what_was_asked_for_and_the_images_own(run: Run) -> None:
    found = attempt(run, "import os; print(*sorted(os.environ))")
    assert found == "GREETING HOME HOSTNAME LANG PATH"


def test_working_folder_is_writable_and_keeps_its_path(run: Run, open_folder: Path) -> None:
    run("open('made', 'w').write('by the training')")
    assert (open_folder / "out" / "made").read_text() == "by the training"


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("open('/etc/planted', 'w')", "OSError: [Errno 30] Read-only file system"),
        ("import os; os.setuid(0)", "PermissionError: [Errno 1] Operation not permitted"),
        (
            "import socket; socket.create_connection(('10.0.0.1', 80), 2)",
            "OSError: [Errno 101] Network is unreachable",
        ),
        ("open('/var/run/docker.sock')", "FileNotFoundError: [Errno 2]"),
    ],
)
def test_the_rest_is_closed(run: Run, program: str, answer: str) -> None:
    assert attempt(run, program).startswith(answer)


def test_no_capability_is_left_and_none_can_be_gained(run: Run) -> None:
    rows = run("print(open('/proc/self/status').read())").output.decode().splitlines()
    facts = dict(row.split(":\t", 1) for row in rows if ":\t" in row)
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {
        "0" * 16
    }
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_loopback_works_so_ranks_can_meet(run: Run) -> None:
    program = (
        "import socket; here = socket.create_server((socket.getfqdn(), 0));"
        "socket.create_connection(here.getsockname()); print('met')"
    )
    assert attempt(run, program) == "met"


def test_shared_memory_has_the_size_that_was_asked_for(run: Run) -> None:
    program = "import os; facts = os.statvfs('/dev/shm'); print(facts.f_frsize * facts.f_blocks)"
    assert run(program, shm_bytes=256 * 1024**2).output.strip() == b"268435456"
    assert run(program).output.strip() == b"1073741824"


def test_processes_are_limited(run: Run) -> None:
    program = "import os\nwhile True:\n if os.fork() == 0: import time; time.sleep(60)"
    assert "BlockingIOError: [Errno 11]" in run(program, pids=16).output.decode()


def test_want_of_memory_is_known(run: Run) -> None:
    result = run("x = bytearray(512 * 1024**2)", memory_bytes=64 * 1024**2)
    assert (result.exit_code, result.out_of_memory) == (-9, True)


def test_a_signal_is_told_as_one(run: Run) -> None:
    assert run("import os; os.abort()").exit_code == -6


def test_time_limit_ends_the_container(run: Run) -> None:
    result = run("import time; print('on', flush=True); time.sleep(600)", seconds=2)
    assert (result.timed_out, result.output) == (True, b"on\n")


def test_a_flood_is_cut_in_its_middle(run: Run) -> None:
    result = run("for number in range(400_000): print('line', number)")
    assert len(result.output) < 9000
    assert result.output.startswith(b"line 0\n")
    assert result.output.endswith(b"line 399999\n")


def test_output_closed_early_is_not_the_end(run: Run) -> None:
    program = "import os, time; os.close(1); os.close(2); time.sleep(1); os._exit(5)"
    assert run(program).exit_code == 5


def test_a_daemon_does_not_outlive_its_container(run: Run, engine: Engine, run_id: str) -> None:
    program = "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(600)"
    assert run(program).exit_code == 0
    assert engine.remove_run(run_id) == 0


def test_cancellation_removes_the_container(
    engine: Engine, request_for: Callable[..., ProcessRequest]
) -> None:
    interrupts = StopSignals()
    asked = request_for("import time; print('ready', flush=True); time.sleep(600)")

    def cancel(line: bytes) -> None:
        assert line == b"ready"
        interrupts._handle(15, None)

    with pytest.raises(CancelledError, match="cancelled by SIGTERM"):
        ContainerProcesses(engine, (), interrupts).run(asked, cancel)


def test_a_second_signal_removes_it_through_another_connection(
    engine: Engine, request_for: Callable[..., ProcessRequest]
) -> None:
    codes: list[int] = []
    interrupts = StopSignals(leave=codes.append)
    asked = request_for("import time; print('ready', flush=True); time.sleep(600)")

    def stop_at_once(_: bytes) -> None:
        interrupts._stop_at_once()

    with pytest.raises(RunError, match="No such container"):
        ContainerProcesses(engine, (), interrupts).run(asked, stop_at_once)
    assert codes == [4]


def test_harness_is_found_by_the_images_python(
    engine: Engine, request_for: Callable[..., ProcessRequest], open_folder: Path
) -> None:
    harness = open_folder / "harness"
    install_harness(LocalFiles(), harness)
    program = (
        "import os, repro_gate_harness as harness; print(harness.__file__);"
        "print(bool(os.statvfs(harness.__file__).f_flag & os.ST_RDONLY))"
    )
    asked = request_for(program)
    asked = replace(asked, env={"PYTHONPATH": str(harness)}, readable=(harness,))
    output = ContainerProcesses(engine).run(asked, lambda _: None).output.decode()
    assert output.splitlines() == [f"{harness}/repro_gate_harness/__init__.py", "True"]


def choose(engine: Engine, image: str, folder: Path, extra: str = "") -> Isolation:
    settings = parse_settings(
        f"version: 1\ntrain: {{command: python3 x.py, max_steps: 1{extra}}}\n"
        f"isolation: {{image: '{image}'}}\n".encode(),
        "repro-gate.yml",
    )
    chooser = ContainerChooser(engine=engine, processes=ContainerProcesses(engine), run="ab")
    return chooser.choose(settings, (folder,))


def test_choice_is_made_by_trying(engine: Engine, base_image: str, open_folder: Path) -> None:
    chosen = choose(engine, base_image, open_folder)
    assert chosen.mode is IsolationMode.CONTAINER
    assert chosen.reason == "the training runs in a separate container"
    assert chosen.container is not None
    assert chosen.container.image_id == base_image


def test_an_image_that_is_not_there_is_named(engine: Engine, open_folder: Path) -> None:
    image = "sha256:" + "0" * 64
    with pytest.raises(
        RunError, match=f"looking for the image {image} failed: no such image"
    ) as at:
        choose(engine, image, open_folder)
    assert at.value.hint.startswith("Give isolation.image as name@sha256:...")


def test_a_gpu_that_is_not_there_is_an_error(
    engine: Engine, base_image: str, open_folder: Path
) -> None:
    with pytest.raises(RunError, match="could not select device driver") as caught:
        choose(engine, base_image, open_folder, ", device: cuda")
    assert caught.value.hint.startswith("The engine has no NVIDIA runtime")


def test_a_socket_that_is_not_there_is_named() -> None:
    address = engine_address({"DOCKER_HOST": "unix:///no/such.sock"})
    with pytest.raises(RunError, match="No such file or directory") as caught:
        Engine(connect_docker(address), address).answer()
    assert caught.value.hint.startswith("Nothing listens at unix:///no/such.sock.")
