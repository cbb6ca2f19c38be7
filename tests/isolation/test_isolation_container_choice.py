"""Which image, whose folders, and whether a container is tried at all."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from subprocess import CompletedProcess

import pytest
from each_row import each_row
from fake_docker import IMAGE, REFERENCE, EngineRefusalError, FakeDocker
from pydantic import ValidationError

from gate.errors import RunError
from gate.isolation.account_choice import accounts_beside
from gate.isolation.accounts import release_uid
from gate.isolation.container_config import Mount, own_ids, own_mounts, seen_by_engine
from gate.isolation.engine import Engine, connect_docker
from gate.isolation.modes import Isolation, IsolationMode, IsolationSettings
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.isolation.stop_signals import StopSignals
from gate.settings.data import DataSource
from gate.settings.gate_settings import Device, GateSettings, TrainSettings
from gate.training.isolating import ContainerChooser, Isolating, no_container

PAIR = 2
OTHER = "team/trainer@sha256:" + "3" * 64
TABLE = """\
715 700 254:1 /engine/containers/{0}/hostname /etc/hostname rw - ext4 /dev/vda rw
716 700 254:1 /engine/containers/{0}/hosts /etc/hosts rw - ext4 /dev/vda rw
"""


class Answering:
    """A runner of containers that all answer in one way."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self._answers = list(answers)
        self.requests: list[ProcessRequest] = []

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        on_line(b"")
        self.requests.append(request)
        code, output = self._answers.pop(0)
        return ProcessResult(
            exit_code=code,
            timed_out=False,
            wall_seconds=0.1,
            output=output,
            output_bytes=len(output),
        )


def settings(device: Device = Device.AUTO, **isolation: object) -> GateSettings:
    return GateSettings(
        version=1,
        train=TrainSettings(command=("python3", "x.py"), max_steps=1, device=device),
        isolation=IsolationSettings.model_validate({"image": REFERENCE, **isolation}),
    )


def choose(docker: FakeDocker, runner: Answering, asked: GateSettings, folder: Path) -> Isolation:
    chooser = ContainerChooser(engine=Engine(docker.connect), processes=runner, run="ab")
    chosen = chooser.choose(asked, (folder,))
    if chosen.credentials is not None:
        release_uid(chosen.credentials.uid)
    return chosen


def test_containers_that_see_the_same_data_go_one_after_the_other(tmp_path: Path) -> None:
    asked = settings()
    data = (DataSource.model_validate_json('{"path": "/data"}'),)
    alone, shared = (
        choose(FakeDocker(), Answering((0, b"isolated\n")), one, tmp_path)
        for one in (asked, asked.model_copy(update={"data": data}))
    )
    python = "/usr/bin/python3"
    assert len(accounts_beside(alone, Answering(), python, 2)) == PAIR
    with pytest.raises(RunError) as caught:
        accounts_beside(shared, Answering(), python, 2)
    assert caught.value.message == (
        "two runs would share files (declared data is mounted in every container)"
    )


def test_a_container_that_was_found_closed_is_taken(tmp_path: Path) -> None:
    runner = Answering((0, b"isolated\n"))
    chosen = choose(FakeDocker(), runner, settings(), tmp_path)
    assert (chosen.mode, chosen.container) == (
        IsolationMode.CONTAINER,
        runner.requests[0].container,
    )
    assert chosen.container is not None
    assert (chosen.container.image_id, chosen.container.run, chosen.container.gpus) == (
        *(IMAGE, "ab"),
        ("all",),
    )
    assert (chosen.device_groups, chosen.gpu_refusal) == ((), "")
    assert chosen.credentials is not None
    assert chosen.credentials.uid != 0


def test_an_image_without_one_name_of_python_is_asked_by_the_other(tmp_path: Path) -> None:
    runner = Answering((127, b"exec python3 failed"), (0, b"isolated"))
    choose(FakeDocker(), runner, settings(), tmp_path)
    assert [request.argv[0] for request in runner.requests] == ["python3", "python"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ((0, b"it has the network ['eth0']\n"), r"it has the network \['eth0'\]"),
        ((0, b"noise\nisolated\n"), "isolated"),
        ((1, b""), "no answer"),
    ],
)
def test_only_a_full_answer_counts(answer: tuple[int, bytes], told: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=f"not isolated: {told}\n") as caught:
        choose(FakeDocker(), Answering(answer), settings(Device.CPU), tmp_path)
    assert "rootless" in caught.value.hint


@each_row(
    ("asked", "gpus"),
    [
        (settings(Device.CUDA), ("all",)),
        (settings(Device.CUDA, gpus=("1",)), ("1",)),
        (settings(Device.AUTO), ("all",)),
        (settings(Device.AUTO, gpus=("1",)), ("1",)),
        (settings(Device.CPU), ()),
    ],
)
def test_gpus_follow_the_device(asked: GateSettings, gpus: tuple[str, ...], tmp_path: Path) -> None:
    chosen = choose(FakeDocker(), Answering((0, b"isolated")), asked, tmp_path)
    assert chosen.container is not None
    assert chosen.container.gpus == gpus


NO_DEVICE = 'starting failed: could not select device driver "" with capabilities: [[gpu]]'


class WithoutGpus(Answering):
    """An engine that has no GPU to give."""

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        assert request.container is not None
        if request.container.gpus:
            self.requests.append(request)
            raise RunError(NO_DEVICE, hint="x")
        return super().run(request, on_line)


def test_an_engine_without_gpus_trains_on_the_cpu_and_says_why(tmp_path: Path) -> None:
    chosen = choose(FakeDocker(), WithoutGpus((0, b"isolated")), settings(), tmp_path)
    assert chosen.container is not None
    assert (chosen.container.gpus, chosen.gpu_refusal) == ((), NO_DEVICE)


@pytest.mark.parametrize(
    "asked", [settings(Device.CUDA), settings(gpus=("0",)), settings(Device.CUDA, gpus=("0",))]
)
def test_a_gpu_that_was_asked_for_and_cannot_be_had_is_an_error(
    asked: GateSettings, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match="could not select device driver"):
        choose(FakeDocker(), WithoutGpus(), asked, tmp_path)


def test_a_container_that_will_not_do_either_way_is_told_as_such(tmp_path: Path) -> None:
    runner = WithoutGpus((0, b"it has the network ['eth0']\n"))
    with pytest.raises(RunError, match="it has the network"):
        choose(FakeDocker(), runner, settings(), tmp_path)


def test_groups_that_own_its_device_files_are_given_to_a_container(tmp_path: Path) -> None:
    runner = Answering((0, b"isolated wants 44 107"), (0, b"isolated groups 44 107"))
    chosen = choose(FakeDocker(), runner, settings(), tmp_path)
    assert chosen.credentials is not None
    assert chosen.credentials.groups == chosen.device_groups == (44, 107)
    assert chosen.described == (
        "container (own processes, network, terminals, files), device groups 44 107"
    )


def test_groups_that_the_engine_gave_by_itself_are_told(tmp_path: Path) -> None:
    chosen = choose(FakeDocker(), Answering((0, b"isolated groups 44")), settings(), tmp_path)
    assert chosen.device_groups == (44,)


def test_a_missing_image_is_pulled_by_its_digest() -> None:
    docker = FakeDocker()
    assert Engine(docker.connect).image_id(OTHER) == IMAGE
    assert docker.pulled == [OTHER]


def test_an_image_that_cannot_be_pulled_is_named() -> None:
    docker = FakeDocker(
        refuses={"pull": EngineRefusalError(500, "pull access denied for team/trainer")}
    )
    with pytest.raises(RunError, match=f"pulling the image {OTHER} failed: pull access") as caught:
        Engine(docker.connect).image_id(OTHER)
    assert caught.value.hint.startswith("The registry requires a login")


def test_another_digest_is_refused() -> None:
    docker = FakeDocker()
    docker.images[OTHER] = docker.images[REFERENCE]
    with pytest.raises(RunError, match=f"image {OTHER} has another digest: sha256:111") as caught:
        Engine(docker.connect).image_id(OTHER)
    assert caught.value.hint == "Pull it again by its digest, or correct isolation.image."


def test_removal_takes_the_containers_of_one_call_alone() -> None:
    docker = FakeDocker()
    engine = Engine(docker.connect)
    for run in ("ab", "ab", "cd"):
        engine.create({"Labels": {"repro-gate.run": run}})
    assert engine.remove_run("ab") == 2
    assert [made.config["Labels"] for made in docker.containers_made.values()] == [
        {"repro-gate.run": "cd"}
    ]
    assert engine.remove_run("cd") == 1


@pytest.mark.parametrize("mode", [IsolationMode.NONE, IsolationMode.UID])
def test_other_modes_try_none(mode: IsolationMode) -> None:
    asked = settings(mode=mode).isolation
    assert no_container(asked, Engine(FakeDocker().connect)) == f"isolation.mode is {mode.value}"


def test_auto_tries_one_when_there_is_an_image_and_an_engine() -> None:
    docker = FakeDocker()
    assert no_container(IsolationSettings(), Engine(docker.connect)) == "isolation.image is not set"
    assert no_container(settings().isolation, Engine(docker.connect)) == ""
    docker.refuses["info"] = EngineRefusalError(500, "starting up")
    assert no_container(settings().isolation, Engine(docker.connect)) == (
        "asking the container engine failed: starting up"
    )


@pytest.mark.usefixtures("root")
def test_auto_says_why_it_takes_less_than_the_image(
    system_python: str, open_folder_for_all: Path
) -> None:
    docker = FakeDocker(refuses={"info": EngineRefusalError(500, "starting up")})
    isolating = Isolating(Engine(docker.connect), StopSignals(), system_python)
    chosen = isolating.choose(settings(), (open_folder_for_all,))
    isolating.release()
    assert chosen.mode is IsolationMode.UID
    assert chosen.reason.startswith(
        "the training runs under a separate account without network access; "
    )
    assert chosen.reason.endswith(
        "; not in isolation.image: asking the container engine failed: starting up"
    )


def test_clean_up_removes_what_a_call_left(tmp_path: Path) -> None:
    docker = FakeDocker()
    isolating = Isolating(Engine(docker.connect), StopSignals(), "python3")
    chosen = choose(docker, Answering((0, b"isolated")), settings(), tmp_path)
    Engine(docker.connect).create({"Labels": {"repro-gate.run": "ab"}})
    isolating.clean_up(chosen)
    assert docker.containers_made == {}


def test_mode_container_wants_an_image_by_digest() -> None:
    with pytest.raises(ValidationError, match=r"mode container needs isolation\.image"):
        IsolationSettings(mode=IsolationMode.CONTAINER)
    with pytest.raises(ValidationError, match="String should match pattern"):
        IsolationSettings(image="team/trainer:latest")


def test_a_socket_that_nobody_serves_is_told_from_one_that_is_missing(tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/engine.sock"
    engine = Engine(connect_docker(address), address)
    with pytest.raises(RunError, match="No such file or directory") as caught:
        engine.answer()
    assert caught.value.hint.startswith(f"Nothing listens at {address}.")
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(f"{tmp_path}/engine.sock")
    with pytest.raises(RunError, match="Connection refused"):
        engine.answer()


@pytest.mark.usefixtures("root")
def test_a_socket_of_another_account_is_told_apart(
    tmp_path: Path, python: Callable[..., CompletedProcess[bytes]]
) -> None:
    program = (
        "import os, sys\n"
        "from gate.isolation.engine import connect_docker\n"
        "from gate.errors import RunError\n"
        "os.setuid(60900)\n"
        "try: connect_docker(sys.argv[1])(1)\n"
        "except RunError as error: print(error)\n"
    )
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/engine.sock")
        told = python("-c", program, f"unix://{tmp_path}/engine.sock").stdout.decode()
    assert "Permission denied" in told
    assert "hint: The gate's account may not use unix://" in told


@pytest.mark.parametrize("login", ["no base64", "bm8tY29sb24=", "/w=="])
def test_logins_that_cannot_be_read_are_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"x": {"auth": login}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    address = f"unix://{tmp_path}/engine.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/engine.sock")
        listening.listen()
        with pytest.raises(RunError, match="registry logins of this account cannot") as caught:
            Engine(connect_docker(address), address).answer()
    assert caught.value.hint.startswith("Correct or remove config.json")


def test_an_engine_far_away_is_refused() -> None:
    with pytest.raises(RunError, match="tcp://far:2375 is not on a local socket"):
        Engine(connect_docker("tcp://far:2375")).answer()


def test_own_names_come_from_the_mount_table_and_the_host_name() -> None:
    long, short = "a" * 64, "b" * 12
    assert own_ids(TABLE.format(long), short) == (long, short)
    assert own_ids("1 2 3:4 / / rw - ext4 /dev/vda rw\n", "laptop") == ()


def test_a_container_that_runs_beside_is_not_the_gates_own() -> None:
    beside = f"/var/lib/docker/containers/{'c' * 64}"
    table = f"9 2 0:51 / {beside}/mounts/shm rw - tmpfs shm rw\n"
    overlay = f"8 2 0:50 {beside}/hostname /mnt/other rw - ext4 /dev/vda rw\n"
    assert own_ids(table + overlay, "laptop") == ()


def test_paths_are_equal_outside_any_container(tmp_path: Path) -> None:
    assert own_mounts(Engine(FakeDocker().connect), ("a" * 64,)) is None
    assert seen_by_engine(tmp_path, None) == str(tmp_path)


def test_the_nearest_mount_counts() -> None:
    mounts = tuple(
        Mount(here=PurePosixPath(here), there=PurePosixPath(there))
        for here, there in [("/w", "/srv/work"), ("/w/deep", "/data"), ("/wide", "/no")]
    )
    assert seen_by_engine(Path("/w/deep/er"), mounts) == "/data/er"
    assert seen_by_engine(Path("/w"), mounts) == "/srv/work"
    with pytest.raises(RunError, match="/opt/x is inside the gate's own container") as caught:
        seen_by_engine(Path("/opt/x"), mounts)
    assert caught.value.hint.startswith("Put the output folder into the workspace")
