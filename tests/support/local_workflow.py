"""Run workflows with act, which reads a workflow file as GitHub does and uses local containers.

It is a second opinion on the runner: another reader of action.yml and of what a step writes. What
it does otherwise than GitHub's runner, seen with act 0.2.89:

- `actions/checkout` of the workflow's own repository is left out: the work tree is there already.
  So nothing here says whether a fetch brings the base commit.
- An image is built by the engine's old builder, which knows no `RUN --mount`. So the image that was
  built from the Dockerfile gets the name that act would give to its own, and is taken as it is.
- The workspace is at the path that it has on this machine. There is no /github: the command files
  are in /var/run/act/workflow, open to every account, `RUNNER_TEMP` is /tmp, `HOME` is /root.
- No runtime token and no identity token are given; inputs come a second time as plain variables.
- `GITHUB_API_URL` is GitHub's own whatever a test sets, so no token is given and nothing comments.
- What `actions/upload-artifact` keeps is listed and kept nowhere.
- `permissions`, `concurrency`, and labels after the first that has an image decide nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ACTION = "org/repro-gate@v1"
SLIM_ACTION = "org/repro-gate/slim@v1"
# act's names for images that it builds for actions; `--rebuild=false` uses an existing one
ACTION_IMAGES = tuple(
    f"act-{re.sub('[^a-z0-9]', '-', name)}-dockeraction:latest"
    for name in (ACTION, f"{SLIM_ACTION}/slim")
)
# act would fetch this action from GitHub; the stand-in prints what it is asked to upload
UPLOAD = re.compile(r"uses: (actions/upload-artifact@\S+)")
UPLOAD_STAND_IN = ROOT / "tests" / "support" / "upload_artifact"
WORKFLOW_SECONDS = 300


@dataclass(frozen=True)
class WorkflowRun:
    """The output of one call of act: a JSON record per line."""

    exit_code: int
    records: list[dict[str, Any]]
    complaints: str

    @property
    def log(self) -> str:
        """The whole output, as a person reads it."""
        told = "\n".join(record["msg"].rstrip() for record in self.records)
        return f"{told}\n{self.complaints}"

    @property
    def said(self) -> str:
        """The output of the steps, without the commands that act obeyed."""
        return "".join(record["msg"] for record in self.records if record.get("raw_output"))

    @property
    def outputs(self) -> dict[str, str]:
        return {record["name"]: record["arg"] for record in self._commands if "name" in record}

    @property
    def obeyed(self) -> list[tuple[str, str]]:
        """The workflow commands that took effect, with their arguments."""
        return [(record["command"], record["arg"]) for record in self._commands]

    @property
    def summary(self) -> str:
        told = [record for record in self.records if record.get("command") == "summary"]
        return "".join(record["content"] for record in told)

    @property
    def results(self) -> dict[str, str]:
        """The result of each step, by its stage and what it uses; `job` is the whole job."""
        ended = {
            f"{record['stage']} {record['step']}": record["stepResult"]
            for record in self.records
            if "stepResult" in record and "stage" in record
        }
        jobs = [record["jobResult"] for record in self.records if "jobResult" in record]
        return {**ended, "job": " ".join(jobs)}

    @property
    def _commands(self) -> list[dict[str, Any]]:
        return [record for record in self.records if "command" in record and "arg" in record]


def uploads(workspace: Path) -> list[str]:
    """Return act's options that replace each version of the upload action by the stand-in.

    Covers the workflows of the workspace, and the reusable workflow that they may call.
    """
    called = ROOT / ".github" / "workflows" / "reusable.yml"
    files = (*(workspace / ".github" / "workflows").glob("*.yml"), called)
    used = {name for file in files for name in UPLOAD.findall(file.read_text("utf-8"))}
    return [f"{name}={UPLOAD_STAND_IN}" for name in sorted(used)]


# what the workflows of the documents run on
RUNNER_LABELS = ("self-hosted", "ubuntu-latest")


@dataclass(frozen=True)
class Act:
    """The program act, the image of its jobs, the engine, and a folder for its files."""

    program: str
    job_image: str
    engine: str
    home: Path

    def pull_request(self, workspace: Path, event: Path) -> WorkflowRun:
        """Run the jobs that the workspace's workflows have for a pull request."""
        options = {
            "eventpath": event,
            "container-daemon-socket": self.engine,
            # by default act uses the machine's network, which a runner does not
            "network": "bridge",
        }
        # nothing is fetched: neither an image nor an action
        flags = ("--pull=false", "--rebuild=false", "--action-offline-mode", "--no-cache-server")
        words = [f"--{name}={value}" for name, value in options.items()]
        words += [f"--platform={label}={self.job_image}" for label in RUNNER_LABELS]
        words += [
            f"--local-repository={used}" for used in (f"{ACTION}={ROOT}", *uploads(workspace))
        ]
        done = subprocess.run(
            [self.program, "pull_request", *words, *flags, "--bind", "--rm", "--json"],
            cwd=workspace,
            # act reads settings, caches and secrets below HOME, so give it an empty one
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "DOCKER_HOST": self.engine,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=WORKFLOW_SECONDS,
        )
        records = [json.loads(line) for line in done.stdout.splitlines()]
        return WorkflowRun(done.returncode, records, done.stderr.decode("utf-8", "replace"))
