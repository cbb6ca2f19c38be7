"""The action in its own image, started, cancelled and cleaned up after as GitHub's runner does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from baseline_cases import place_of_entry
from fake_github import FakeGitHub
from played_training import SETTINGS, Project
from runner_emulator import CHECKOUT_CANARY, RUNNER_ACCOUNT, SECRETS, Job, Step, StepResult

from gate.isolation.engine import Engine, engine_address

pytestmark = pytest.mark.docker
ISOLATED = SETTINGS.replace("isolation: {mode: none}\n", "")
EMPTY: Mapping[str, str] = MappingProxyType({})
SPY = """
import glob, os
for path in ["/proc/1/environ", "/var/run/docker.sock", *glob.glob("/github/*/*")]:
    try:
        with open(path, "a" if "file_commands" in path else "r") as file:
            print("opened", path, file.read() if "environ" in path else "")
    except OSError as error:
        print("refused", path, error.strerror)
print(*os.environ.items())
"""


class Scene:
    """A pull request on a fake GitHub, and a job that gates it."""

    def __init__(self, folder: Path, image: str, server: FakeGitHub, *, image_of: str) -> None:
        self.project = Project(folder / "workspace")
        self.server = server
        isolation = f"isolation: {{image: '{image_of}'}}\n" if image_of else ""
        self.project.write("repro-gate.yml", ISOLATED + isolation)
        self.base = self.project.commit()
        socket = Path(engine_address(os.environ).removeprefix("unix://"))
        self.job = Job(folder, image, self.project.path, socket=socket)
        self.inputs = {"token": server.token}

    def variables(self) -> dict[str, str]:
        head = self.project.git("rev-parse", "HEAD")
        sides = {
            side: {"sha": commit, "ref": side, "repo": {"full_name": "o/model"}}
            for side, commit in (("head", head), ("base", self.base))
        }
        event = self.job.temp / "_github_workflow" / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, **sides}}))
        return {
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": "/github/workflow/event.json",
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": head,
            "GITHUB_WORKSPACE": "/github/workspace",
            "GITHUB_API_URL": self.server.api_url,
        }

    def start(self) -> Step:
        self.job.give_workspace_to_runner()
        return self.job.main(self.variables(), self.inputs)

    def run(self) -> StepResult:
        return self.start().result()

    def post(self, state: Mapping[str, str]) -> StepResult:
        return self.job.post(state, self.variables(), self.inputs)

    def accept(self) -> None:
        """Let the base hold what the first run proposed."""
        proposed = self.project.path / "repro-gate-out" / "proposed-baseline.json"
        text = proposed.read_text()
        self.project.write(place_of_entry(text), text)
        self.base = self.project.commit()

    def verdict(self) -> dict[str, Any]:
        path = self.project.path / "repro-gate-out" / "verdict.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def running(self) -> set[str]:
        """The names of the containers that run under this engine."""
        told = subprocess.run(
            ("docker", "ps", "--format", "{{.Names}}"),  # noqa: S607 - the PATH of the tests
            capture_output=True,
            check=True,
            text=True,
        )
        return set(told.stdout.split())


def gateway() -> str:
    """The address under which a container reaches this machine."""
    what = "{{(index .IPAM.Config 0).Gateway}}"
    told = subprocess.run(
        ("docker", "network", "inspect", "bridge", "--format", what),  # noqa: S607 - as above
        capture_output=True,
        check=True,
        text=True,
    )
    return told.stdout.strip()


@pytest.fixture(params=["", "container"], ids=["uid", "container"])
def scene(
    request: pytest.FixtureRequest, engine: Engine, action_image: str, base_image: str
) -> Iterator[Scene]:
    engine.answer()
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeGitHub(address=gateway()) as server,
    ):
        Path(folder).chmod(0o755)
        image_of = base_image if request.param else ""
        yield Scene(Path(folder), action_image, server, image_of=image_of)


def isolation_of(scene: Scene) -> str:
    return (
        "container" if "isolation" in (scene.project.path / "repro-gate.yml").read_text() else "uid"
    )


def test_from_no_baseline_to_a_pass(scene: Scene) -> None:
    first = scene.run()
    assert (first.exit_code, first.outputs["verdict"]) == (1, "no-baseline"), first.log
    scene.accept()
    result = scene.run()
    assert (result.exit_code, result.outputs["verdict"]) == (0, "reproduced"), result.log
    assert "reproduced" in result.summary
    assert "reproduced" in scene.server.comments[0].body
    assert "repro-gate passed: same result, bit for bit" in {
        shown.properties["title"] for shown in result.annotations
    }
    assert scene.verdict()["isolation"]["mode"] == isolation_of(scene)
    left = scene.post(result.state)
    assert (left.exit_code, left.log) == (0, "")


def test_everything_written_belongs_to_the_runner(scene: Scene) -> None:
    scene.run()
    owners = {path.lstat().st_uid for path in scene.project.path.rglob("*")}
    assert owners == {RUNNER_ACCOUNT}


def test_a_drift_fails_the_step(scene: Scene) -> None:
    scene.run()
    scene.accept()
    scene.project.play(losses=["2.5", "2.25", "9.0"])
    result = scene.run()
    assert (result.exit_code, result.outputs["verdict"]) == (1, "code-drift"), result.log
    assert "error" in {shown.name for shown in result.annotations}


def test_training_finds_no_secret_and_commands_nothing(scene: Scene) -> None:
    script = (scene.project.path / "train.py").read_text()
    scene.project.write("train.py", SPY + script)
    scene.project.play(says="::add-mask::reproduced\n##[error]planted")
    result = scene.run()
    assert result.outputs["verdict"] == "no-baseline", result.log
    written = (scene.project.path / "repro-gate-out").rglob("*")
    texts = [result.log, *(path.read_text(errors="replace") for path in written if path.is_file())]
    for canary in (*SECRETS.values(), CHECKOUT_CANARY, scene.server.token):
        assert not [text for text in texts if canary in text]
    if isolation_of(scene) == "uid":
        assert not [text for text in texts if "opened /proc/1/environ" in text]
    assert not [text for text in texts if "opened /var/run/docker.sock" in text]
    assert not [command for command in result.commands if "planted" in command.data]
    assert "add-mask" not in {command.name for command in result.commands}


def test_cancelling_ends_everything_at_the_first_signal(scene: Scene) -> None:
    scene.project.play(says="trains now", sleep=600)
    before = scene.running()
    step = scene.start()
    step.wait_for(": training")
    assert step.cancel() == [signal.SIGINT], step.result().log
    result = step.result()
    assert (result.exit_code, result.outputs["exit_reason"]) == (4, "cancelled"), result.log
    assert scene.running() == before
    left = scene.post(result.state)
    assert (left.exit_code, left.log) == (0, "")


def test_a_killed_step_is_ended_by_the_post_step(scene: Scene) -> None:
    scene.project.play(says="trains now", sleep=600)
    before = scene.running()
    step = scene.start()
    step.wait_for(": training")
    step.client.kill()
    result = step.result()
    assert step.name in scene.running()
    left = scene.post(result.state)
    assert left.exit_code == 0, left.log
    assert "removed the gate's own container, which was still running" in left.log
    assert scene.running() == before
    owners = {path.lstat().st_uid for path in scene.project.path.rglob("*")}
    assert owners == {RUNNER_ACCOUNT}
