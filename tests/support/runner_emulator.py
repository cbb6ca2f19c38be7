"""Emulates GitHub's runner as a Docker action sees it: the same `docker run`, files and signals.

The command line is the runner's: a name, a label, the working folder, every variable by name only,
six mounts and no options. The workspace belongs to the runner's account, and the container runs as
root. A cancellation signals the engine's client, as the runner does, on the runner's schedule.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from runner_rules import Command, obeyed, read_values, shown_annotations, shown_summary

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
RUNNER_ACCOUNT = 1001
INTERRUPT_SECONDS = 7.5
TERMINATE_SECONDS = 2.5
# only a guard against a step that hangs: compilers take minutes on a busy machine
STEP_SECONDS = 800
FILES = {
    "GITHUB_OUTPUT": "set_output",
    "GITHUB_ENV": "set_env",
    "GITHUB_PATH": "add_path",
    "GITHUB_STATE": "save_state",
    "GITHUB_STEP_SUMMARY": "step_summary",
}
# secrets that the runner gives every Docker action, and that a training must never see
SECRETS = {
    "ACTIONS_RUNTIME_TOKEN": "canary-of-the-runtime-token",
    "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "canary-of-the-identity-token",
}
CHECKOUT_CANARY = "canary-of-the-checkout-token"
EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class StepResult:
    """What the runner reads of a step that has ended."""

    exit_code: int
    log: str
    outputs: dict[str, str]
    state: dict[str, str]
    summary: str
    annotations: list[Command]
    commands: list[Command]
    wall_seconds: float


@dataclass
class Step:
    """A step that is running; `client` is the process of `docker run`."""

    job: Job
    name: str
    files: dict[str, Path]
    client: subprocess.Popen[bytes]
    log: Path
    started_at: float = field(default_factory=time.monotonic)

    def wait_for(self, text: str) -> None:
        """Wait until the log contains a text; fails the test if the step ends before."""
        while text not in self.log.read_text("utf-8", "replace"):
            assert self.client.poll() is None, self.log.read_text("utf-8", "replace")
            time.sleep(0.05)

    def cancel(self) -> list[signal.Signals]:
        """Cancel the step on the runner's schedule; return the signals that were needed."""
        sent = []
        for number, seconds in (
            (signal.SIGINT, INTERRUPT_SECONDS),
            (signal.SIGTERM, TERMINATE_SECONDS),
            (signal.SIGKILL, TERMINATE_SECONDS),
        ):
            self.client.send_signal(number)
            sent.append(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.client.wait(seconds)
                break
        return sent

    def result(self) -> StepResult:
        """Wait for the step to end, then read its output and files with the runner's rules."""
        code = self.client.wait(STEP_SECONDS)
        log = self.log.read_text("utf-8", "replace")
        return StepResult(
            exit_code=code,
            log=log,
            outputs=read_values(self.files["GITHUB_OUTPUT"].read_text("utf-8")),
            state=read_values(self.files["GITHUB_STATE"].read_text("utf-8")),
            summary=shown_summary(self.files["GITHUB_STEP_SUMMARY"].read_bytes()),
            annotations=shown_annotations(log),
            commands=obeyed(log),
            wall_seconds=time.monotonic() - self.started_at,
        )


class Job:
    """A job on a runner: its temporary folder, its workspace, and the engine's socket."""

    def __init__(self, folder: Path, image: str, workspace: Path, *, socket: Path) -> None:
        self.temp = folder / "_temp"
        self.image = image
        self.workspace = workspace
        self.socket = socket
        for name in ("_github_home", "_github_workflow", "_runner_file_commands"):
            (self.temp / name).mkdir(parents=True)
        self.temp.chmod(0o755)
        # current versions of actions/checkout keep their token in such a file
        (self.temp / f"git-credentials-{uuid.uuid4()}.config").write_text(CHECKOUT_CANARY)

    def main(self, variables: Mapping[str, str], inputs: Mapping[str, str] = EMPTY) -> Step:
        """Start the action's main step."""
        return self._start(ACTION["runs"]["entrypoint"], variables, inputs)

    def post(
        self, state: Mapping[str, str], variables: Mapping[str, str], inputs: Mapping[str, str]
    ) -> StepResult:
        """Run the post step: a new container with the same arguments and the saved state."""
        told = {f"STATE_{name}": value for name, value in state.items()}
        entrypoint = ACTION["runs"]["post-entrypoint"]
        return self._start(entrypoint, {**variables, **told}, inputs).result()

    def image_alone(self, entrypoint: str, words: Sequence[str]) -> StepResult:
        """Run a step that `uses: docker://` the image: it has no inputs, but its own arguments."""
        event = {"GITHUB_EVENT_NAME": "push", "GITHUB_REPOSITORY": "o/model"}
        place = {"GITHUB_SHA": "a" * 40, "GITHUB_WORKSPACE": "/github/workspace"}
        return self._start(entrypoint, {**event, **place}, EMPTY, words).result()

    def give_workspace_to_runner(self) -> None:
        """Make the runner's account the owner of the workspace, as a checkout does."""
        for path in (self.workspace, *self.workspace.rglob("*")):
            os.chown(path, RUNNER_ACCOUNT, RUNNER_ACCOUNT, follow_symlinks=False)

    def _start(
        self,
        entrypoint: str,
        variables: Mapping[str, str],
        inputs: Mapping[str, str],
        words: Sequence[str] = tuple(ACTION["runs"]["args"]),
    ) -> Step:
        name = uuid.uuid4().hex
        files = {
            variable: self.temp / "_runner_file_commands" / f"{kind}_{name}"
            for variable, kind in FILES.items()
        }
        for path in files.values():
            path.touch()
            os.chown(path, RUNNER_ACCOUNT, RUNNER_ACCOUNT)
        environment = {
            **self._given(inputs),
            **{key: f"/github/file_commands/{path.name}" for key, path in files.items()},
            **SECRETS,
            **variables,
        }
        log = self.temp.parent / f"log-{name}"
        with log.open("wb") as out:
            client = subprocess.Popen(
                [*self._command_line(name, entrypoint, environment), *words],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return Step(job=self, name=name, files=files, client=client, log=log)

    def _given(self, inputs: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of all declared inputs: as given, or with their default.

        A default with an expression becomes empty, because only GitHub can evaluate it.
        """
        unknown = inputs.keys() - ACTION["inputs"].keys()
        assert not unknown, f"the action has no input {unknown}"
        values = {name: entry["default"] for name, entry in ACTION["inputs"].items()}
        plain = {name: "" if "${{" in text else text for name, text in values.items()}
        return {f"INPUT_{name.upper()}": text for name, text in {**plain, **inputs}.items()}

    def _command_line(
        self, name: str, entrypoint: str, environment: Mapping[str, str]
    ) -> list[str]:
        mounts = {
            self.socket: "/var/run/docker.sock",
            self.temp: "/github/runner_temp",
            self.temp / "_github_home": "/github/home",
            self.temp / "_github_workflow": "/github/workflow",
            self.temp / "_runner_file_commands": "/github/file_commands",
            self.workspace: "/github/workspace",
        }
        docker = shutil.which("docker")
        assert docker
        return [
            *(docker, "run", "--name", name, "--label", "repro-gate-runner"),
            *("--workdir", "/github/workspace", "--rm"),
            *(word for variable in environment for word in ("-e", variable)),
            *("-e", "HOME=/github/home", "-e", "GITHUB_ACTIONS=true", "-e", "CI=true"),
            *("--entrypoint", entrypoint),
            *(word for here, there in mounts.items() for word in ("-v", f"{here}:{there}")),
            self.image,
        ]
