"""`org/repro-gate/container` in a job's container: each side trains with its own locked packages.

Everything is real but GitHub: a container that holds Python and git, this checkout's `start.py`,
wheels with their hashes, the accounts, the gate.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from played_training import WITH_PACKAGE, Project

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.docker
SETTINGS = "version: 1\ntrain: {command: python3 train.py, max_steps: 3, device: cpu}\n"
JOB_IMAGE = "repro-gate-job:test"
RECIPE = """\
FROM {base}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends git python3-venv
"""


def _docker(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ("docker", *words),  # noqa: S607 - the PATH of the tests
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def job_image(base_image: str) -> Iterator[str]:
    """What a project trains in: Python, git, and no package of its own."""
    recipe = RECIPE.format(base=base_image)
    built = _docker("build", "--quiet", "--tag", JOB_IMAGE, "-", stdin=recipe)
    if built.returncode:
        pytest.skip(f"git cannot be installed into an image here: {built.stderr[-200:]}")
    yield JOB_IMAGE
    _docker("rmi", "--force", JOB_IMAGE)


class Job:
    """A pull request, and the container that its job runs in."""

    def __init__(self, place: Path, image: str) -> None:
        self.place, self.image = place, image
        self.wheels = place / "wheels"
        self.wheels.mkdir()
        self.project = Project(place / "workspace")
        self.project.write("train.py", WITH_PACKAGE)
        self.project.write("repro-gate.yml", SETTINGS)
        self.ask_for("1.0", scale=1.0)
        self.base = self.project.commit()

    def ask_for(self, version: str, scale: float) -> str:
        """Lock a version of the package, which multiplies every loss."""
        wheel = self.wheels / f"auditlib-{version}-py3-none-any.whl"
        about = f"auditlib-{version}.dist-info"
        files = {
            "auditlib/__init__.py": f"VERSION, SCALE = {version!r}, {scale!r}\n",
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: auditlib\nVersion: {version}\n",
            f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{about}/RECORD": "",
        }
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.project.write("requirements.lock", f"auditlib=={version} --hash=sha256:{digest}\n")
        return self.project.commit()

    def accept(self) -> None:
        """Let the base branch hold the baseline that a run proposed."""
        program = (sys.executable, "-m", "gate", "baseline", "accept", "--reason", "first")
        subprocess.run(program, cwd=self.project.path, check=True, capture_output=True)
        self.base = self.project.commit()

    def run(self) -> subprocess.CompletedProcess[str]:
        """The step, as the runner starts it in a container of the job."""
        head = self.project.git("rev-parse", "HEAD")
        sides = {
            side: {"sha": commit, "ref": side, "repo": {"full_name": "o/model"}}
            for side, commit in (("head", head), ("base", self.base))
        }
        event = self.place / "event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, **sides}}))
        variables = {
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
            "PIP_FIND_LINKS": "/wheels",
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": "/event.json",
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": head,
            "GITHUB_WORKSPACE": "/github/workspace",
            "INPUT_COMMENT": "false",
            "INPUT_REQUIREMENTS": "requirements.lock",
            "INPUT_OUT": "repro-gate-out",
        }
        return _docker(
            "run",
            "--rm",
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
            *("--volume", f"{ROOT}:/action:ro", "--volume", f"{self.wheels}:/wheels:ro"),
            *("--volume", f"{event}:/event.json:ro"),
            *("--volume", f"{self.project.path}:/github/workspace"),
            *("--workdir", "/github/workspace", self.image),
            *("python3", "-I", "/action/container/start.py"),
        )

    def verdict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            (self.project.path / "repro-gate-out/verdict.json").read_text()
        )
        return found


@pytest.fixture
def job(job_image: str) -> Iterator[Job]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        job = Job(Path(folder), job_image)
        first = job.run()
        assert first.returncode == 1, first.stdout + first.stderr
        assert job.verdict()["outcome"] == "no-baseline"
        job.accept()
        yield job


def test_a_bump_that_moves_the_numbers_is_judged_against_the_bases_own_packages(job: Job) -> None:
    job.ask_for("1.1", scale=1.01)
    ended = job.run()
    verdict = job.verdict()
    assert (ended.returncode, verdict["outcome"]) == (1, "dependency-drift"), ended.stdout
    assert verdict["brought"]["files"] == ["requirements.lock"]
    ran = [(run["label"], run["environment"]) for run in verdict["runs"] if run["commit"] == "base"]
    assert ran == [("base-1", "base"), ("base-2", "base"), ("base-here", "head")]
    assert verdict["answers"]["base_here"] == "equal"


def test_a_bump_that_moves_nothing_passes(job: Job) -> None:
    job.ask_for("1.1", scale=1.0)
    ended = job.run()
    assert (ended.returncode, job.verdict()["outcome"]) == (0, "reproduced"), ended.stdout
