"""Isolation `container` without an engine: what one is asked, and what becomes of its answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_docker import IMAGE, EngineRefusalError, FakeDocker

from gate.errors import CancelledError, RunError
from gate.isolation.container_config import container_config
from gate.isolation.containers import ContainerProcesses, Frames, RoutedProcesses
from gate.isolation.engine import Engine
from gate.isolation.modes import ContainerSettings, Credentials, TrainingContainer
from gate.isolation.private_view import COUNTERS, COUNTING_FOLDERS
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.processes import LocalProcesses
from gate.isolation.stop_signals import StopSignals

ACCOUNT = Credentials(uid=61042, gid=61042)
CONTAINER = TrainingContainer(image_id=IMAGE, run="0123456789abcdef", limits=ContainerSettings())


@pytest.fixture
def docker() -> FakeDocker:
    return FakeDocker()


def asked(folder: Path, program: str, seconds: float = 30) -> ProcessRequest:
    return ProcessRequest(
        argv=(sys.executable, "-c", program),
        env={"B": "2", "A": "1"},
        workdir=folder,
        timeout_seconds=seconds,
        output_limit_bytes=8192,
        credentials=ACCOUNT,
        container=CONTAINER,
        writable=(folder,),
    )


def run(
    docker: FakeDocker, request: ProcessRequest, show: Callable[[bytes], None] = lambda _: None
) -> ProcessResult:
    result = ContainerProcesses(Engine(docker.connect)).run(request, show)
    assert docker.containers_made == {}
    return result


def config(request: ProcessRequest, container: TrainingContainer = CONTAINER) -> dict[str, Any]:
    return container_config(request, container, lambda path: f"/engine{path}")


def test_output_and_exit_code_come_back(docker: FakeDocker, tmp_path: Path) -> None:
    seen: list[bytes] = []
    program = "import os; print('here', os.environ['A']); raise SystemExit(3)"
    result = run(docker, asked(tmp_path, program), seen.append)
    assert (result.exit_code, result.output, seen) == (3, b"here 1\n", [b"here 1"])
    assert (result.timed_out, result.out_of_memory, result.output_bytes) == (False, False, 7)


def test_a_signal_is_told_as_one(docker: FakeDocker, tmp_path: Path) -> None:
    result = run(docker, asked(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert result.exit_code == -9


def test_want_of_memory_is_passed_on(tmp_path: Path) -> None:
    docker = FakeDocker(out_of_memory=True)
    assert run(docker, asked(tmp_path, "raise SystemExit(1)")).out_of_memory


def test_time_limit_asks_and_then_removes(docker: FakeDocker, tmp_path: Path) -> None:
    result = run(docker, asked(tmp_path, "import time; time.sleep(60)", seconds=0.5))
    assert (result.timed_out, result.exit_code) == (True, -15)


def test_cancellation_leaves_no_container(docker: FakeDocker, tmp_path: Path) -> None:
    interrupts = StopSignals()
    program = "import time; print('on', flush=True); time.sleep(60)"
    with pytest.raises(CancelledError):
        ContainerProcesses(Engine(docker.connect), (), interrupts).run(
            asked(tmp_path, program), lambda _: interrupts._handle(15, None)
        )
    assert docker.containers_made == {}


@pytest.mark.parametrize("call", ["attach", "start"])
def test_a_container_that_cannot_run_is_not_left_behind(call: str, tmp_path: Path) -> None:
    docker = FakeDocker(refuses={call: EngineRefusalError(500, "out of disk")})
    with pytest.raises(RunError, match="the training's container failed: out of disk"):
        run(docker, asked(tmp_path, "print()"))
    assert docker.containers_made == {}


def test_a_gpu_that_the_engine_has_not_is_explained(tmp_path: Path) -> None:
    words = 'could not select device driver "" with capabilities: [[gpu]]'
    docker = FakeDocker(refuses={"start": EngineRefusalError(500, words)})
    with pytest.raises(RunError) as caught:
        run(docker, asked(tmp_path, "print()"))
    assert caught.value.message == f"starting the training's container failed: {words}"
    assert caught.value.hint == (
        "The engine has no NVIDIA runtime: install nvidia-container-toolkit on the machine, or "
        "set train.device to cpu and leave isolation.gpus empty."
    )


def test_engines_words_cannot_command_the_runner(tmp_path: Path) -> None:
    docker = FakeDocker(refuses={"create": EngineRefusalError(500, "::add-mask::x\n##[error]y")})
    with pytest.raises(RunError, match=r": : :add-mask: :x\\n# #\[error\]y"):
        run(docker, asked(tmp_path, "print()"))


def test_missing_working_folder_is_found_before_the_engine_makes_it(docker: FakeDocker) -> None:
    with pytest.raises(RunError, match="working directory /no/such is not a folder"):
        run(docker, replace(asked(Path("/no/such"), ""), writable=()))
    assert docker.configs == []


def test_root_is_refused(docker: FakeDocker, tmp_path: Path) -> None:
    root = replace(asked(tmp_path, ""), credentials=Credentials(uid=0, gid=0))
    with pytest.raises(RunError, match="an account that is not root"):
        run(docker, root)


def test_folders_are_named_as_the_engine_knows_them(tmp_path: Path) -> None:
    docker = FakeDocker(own={"c" * 12: {str(tmp_path): "/srv/job", "/var/run/docker.sock": "/s"}})
    made = tmp_path / "run"
    made.mkdir()
    ContainerProcesses(Engine(docker.connect), ("f" * 12, "c" * 12)).run(
        asked(made, "print()"), lambda _: None
    )
    (mount,) = docker.configs[0]["HostConfig"]["Mounts"]
    assert (mount["Source"], mount["Target"]) == ("/srv/job/run", str(made))


def test_everything_that_can_be_closed_is_closed(tmp_path: Path) -> None:
    made = config(asked(tmp_path, ""))
    host = made["HostConfig"]
    assert made["User"] == "61042:61042"
    assert made["Env"] == ["A=1", "B=2"]
    assert made["Labels"] == {"repro-gate.run": "0123456789abcdef"}
    assert (host["NetworkMode"], host["ReadonlyRootfs"], host["Privileged"]) == (
        "none",
        True,
        False,
    )
    assert set(map(str, (*COUNTERS, *COUNTING_FOLDERS))) < set(host["MaskedPaths"])
    assert (host["CapDrop"], host["SecurityOpt"]) == (["ALL"], ["no-new-privileges"])
    assert (host["PidsLimit"], host["ShmSize"], host["Memory"]) == (4096, 1024**3, 0)
    assert host["DeviceRequests"] == []
    assert "docker.sock" not in str(made)


def test_harness_is_mounted_to_be_read_only(tmp_path: Path) -> None:
    request = replace(asked(tmp_path, ""), readable=(Path("/harness"),))
    assert config(request)["HostConfig"]["Mounts"] == [
        {
            "Type": "bind",
            "Source": f"/engine{tmp_path}",
            "Target": str(tmp_path),
            "ReadOnly": False,
        },
        {"Type": "bind", "Source": "/engine/harness", "Target": "/harness", "ReadOnly": True},
    ]


CAPABILITIES = [["gpu", "compute", "utility"]]


@pytest.mark.parametrize(
    ("gpus", "devices"),
    [
        (("all",), [{"Capabilities": CAPABILITIES, "Count": -1}]),
        (("0", "GPU-1a"), [{"Capabilities": CAPABILITIES, "DeviceIDs": ["0", "GPU-1a"]}]),
    ],
)
def test_gpus_are_asked_for(gpus: tuple[str, ...], devices: list[object], tmp_path: Path) -> None:
    made = config(asked(tmp_path, ""), replace(CONTAINER, gpus=gpus))
    assert made["HostConfig"]["DeviceRequests"] == devices
    assert made["HostConfig"]["GroupAdd"] == []


def test_groups_of_device_files_are_given(tmp_path: Path) -> None:
    request = asked(tmp_path, "")
    assert request.credentials is not None
    given = replace(request, credentials=replace(request.credentials, groups=(44, 107)))
    assert config(given, CONTAINER)["HostConfig"]["GroupAdd"] == ["44", "107"]


def test_limits_are_the_settings(tmp_path: Path) -> None:
    limits = ContainerSettings(memory_bytes=2**30, shm_bytes=2**21, pids=99)
    host = config(replace(asked(tmp_path, ""), network=True), replace(CONTAINER, limits=limits))[
        "HostConfig"
    ]
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (2**30, 2**30, 2**21)
    assert (host["PidsLimit"], host["NetworkMode"]) == (99, "bridge")


@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_frames_may_come_in_pieces(size: int) -> None:
    data = b"\x01\0\0\0\0\0\0\x03one\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\x03two"
    frames = Frames()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert b"".join(part for piece in pieces for part in frames.feed(piece)) == b"onetwo"


def test_only_what_names_a_container_goes_to_the_engine(docker: FakeDocker, tmp_path: Path) -> None:
    beside = ContainerProcesses(Engine(docker.connect))
    routed = RoutedProcesses(LocalProcesses(), beside)
    alone = replace(
        asked(tmp_path, "print(1)"), container=None, credentials=None, env=dict(os.environ)
    )
    assert routed.run(alone, lambda _: None).output == b"1\n"
    assert docker.configs == []
    routed.run(asked(tmp_path, "print(1)"), lambda _: None)
    assert len(docker.configs) == 1
