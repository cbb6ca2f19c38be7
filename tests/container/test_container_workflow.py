"""The workflows that users copy, run by act, with the image that was built from the Dockerfile.

Nothing in them is changed. `org/repro-gate@v1` and its `slim` are this checkout, and each runner
is the base image.
tests/support/local_workflow.py says what act does otherwise than GitHub's runner.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from git_workshop import Repository
from local_workflow import ACTION, ACTION_IMAGES, ROOT, SLIM_ACTION, Act, WorkflowRun
from played_training import SETTINGS, Project
from runner_emulator import ACTION as ACTION_FILE
from runner_emulator import RUNNER_ACCOUNT
from workflows_in_documents import workflows

from gate.isolation.engine import Engine, engine_address

pytestmark = pytest.mark.docker
README = workflows((ROOT / "README.md").read_text("utf-8"))[0]
COPIED = ROOT / "examples" / "workflows"
OWN_IMAGE = (COPIED / "own-image.yml").read_text("utf-8")
CALLING = (COPIED / "eight-lines.yml").read_text("utf-8")
# GitHub has known `queue` since 2026, and act 0.2.89 does not
MATRIX = (COPIED / "matrix-gpus.yml").read_text("utf-8").replace("      queue: max", "      #")
DIGITS = ROOT / "examples" / "digits"
PLAYED = SETTINGS.replace("isolation: {mode: none}\n", "")
RUNS = ACTION_FILE["runs"]
ENTRY_POINT = re.compile(r'docker run .*entrypoint=\["([^"]+)"')
PLANTED = "::set-output name=verdict::reproduced\n::add-mask::nothing\n##[error]planted"
SPY = """
for path in ["/var/run/act/workflow/outputcmd.txt", "/var/run/docker.sock", "/proc/1/environ"]:
    try:
        open(path, "a")
        print("opened", path)
    except OSError as error:
        print("refused", path, error.strerror)
"""


class PullRequest:
    """A repository with a workflow that users copy, and a commit that is to be merged into it."""

    def __init__(self, repository: Repository, workflow: str, act: Act) -> None:
        self.repository = repository
        self.act = act
        repository.git("remote", "add", "origin", "https://github.com/o/model.git")
        repository.write(".github/workflows/repro-gate.yml", workflow)
        self.base = repository.commit()

    def check(self) -> WorkflowRun:
        """As a push to the pull request's branch does."""
        head = self.repository.git("rev-parse", "HEAD")
        sides = {
            side: {"sha": commit, "ref": side, "repo": {"full_name": "o/model"}}
            for side, commit in (("head", head), ("base", self.base))
        }
        event = self.act.home / "event.json"
        event.write_text(json.dumps({"number": 7, "pull_request": {"number": 7, **sides}}))
        # as a checkout leaves it
        for path in (self.repository.path, *self.repository.path.rglob("*")):
            os.chown(path, RUNNER_ACCOUNT, RUNNER_ACCOUNT, follow_symlinks=False)
        run = self.act.pull_request(self.repository.path, event)
        assert "docker build" not in run.log, run.log
        return run

    def merge_the_proposal(self, run: WorkflowRun) -> None:
        """Let the base branch hold the baseline that a run proposed."""
        proposed = self.repository.path / run.outputs["proposed_baseline_path"]
        target = run.outputs["proposed_baseline_target"]
        self.repository.write(target, proposed.read_text())
        self.base = self.repository.commit()


def docker(*words: str) -> list[str]:
    told = subprocess.run(
        ("docker", *words),  # noqa: S607 - the PATH of the tests
        capture_output=True,
        check=True,
        text=True,
    )
    return told.stdout.split()


@pytest.fixture
def act(engine: Engine, base_image: str, open_folder: Path) -> Iterator[Act]:
    engine.answer()
    beside = Path(sys.executable).parent
    program = shutil.which("act", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("act is not here; `make container` installs it (requirements/act.txt)")
    home = open_folder / "home"
    home.mkdir()
    volumes = docker("volume", "ls", "--quiet")
    jobs = ("ps", "--all", "--quiet", "--filter", "name=act-")
    before = docker(*jobs)
    yield Act(program, base_image, engine_address(os.environ), home)
    assert docker(*jobs) == before
    made = set(docker("volume", "ls", "--quiet")) - set(volumes)
    if made:
        docker("volume", "rm", *made)


@contextmanager
def taken_for_the_action(image: str) -> Iterator[None]:
    for name in ACTION_IMAGES:
        docker("tag", image, name)
    try:
        yield
    finally:
        docker("rmi", *ACTION_IMAGES)


def answer(run: WorkflowRun) -> tuple[int, str, str]:
    """What a person looks for first: act's exit code, the end of the job, the verdict."""
    return run.exit_code, run.results["job"], run.outputs.get("verdict", "")


def entry_points(run: WorkflowRun) -> list[str]:
    """The programs of the containers that act started, the job's own left out."""
    started = [ENTRY_POINT.search(record["msg"]) for record in run.records]
    return [found[1] for found in started if found][1:]


def notices(run: WorkflowRun, words: str) -> list[str]:
    """What a step told by a workflow command."""
    return [told for _, told in run.obeyed if words in told]


@pytest.fixture
def project(open_folder: Path) -> Project:
    return Project(open_folder / "workspace")


@pytest.fixture(params=["readme", "own-image"])
def played(
    request: pytest.FixtureRequest, act: Act, action_image: str, project: Project
) -> Iterator[PullRequest]:
    own = request.param == "own-image"
    image = f"isolation: {{mode: container, image: '{act.job_image}'}}\n" if own else ""
    project.write("repro-gate.yml", PLAYED + image)
    with taken_for_the_action(action_image):
        yield PullRequest(project, OWN_IMAGE if own else README, act)


def test_from_no_baseline_through_a_pass_to_a_drift(played: PullRequest, project: Project) -> None:
    first = played.check()
    assert answer(first) == (1, "failure", "no-baseline"), first.log
    assert "no comment: no token was given" in first.said
    # README's links the page too
    steps = len(notices(first, "not linked: no token was given")) + 1
    assert entry_points(first) == [RUNS["entrypoint"]] * steps + [RUNS["post-entrypoint"]] * steps
    posts = [first.results.get(f"Post {action}") for action in (ACTION, SLIM_ACTION)]
    assert sorted(filter(None, posts)) == ["success"]
    for name in ("report.html", "proposed-baseline.json", "verdict.json", "package.tar"):
        assert f"artifact repro-gate holds repro-gate-out/{name}" in first.said
    played.merge_the_proposal(first)
    passed = played.check()
    assert answer(passed) == (0, "success", "reproduced"), passed.log
    assert "repro-gate passed: same result, bit for bit" in passed.summary
    assert str(project.path) not in passed.summary
    project.play(losses=["2.5", "2.25", "9.0"])
    drifted = played.check()
    assert answer(drifted) == (1, "failure", "code-drift"), drifted.log
    assert "repro-gate failed: this change moves the result" in drifted.summary


def test_a_workflow_of_eight_lines_calls_the_one_of_the_gate(
    act: Act, action_image: str, project: Project
) -> None:
    project.write("repro-gate.yml", PLAYED)
    with taken_for_the_action(action_image):
        played = PullRequest(project, CALLING, act)
        first = played.check()
        assert answer(first) == (1, "failure", "no-baseline"), first.log
        assert "artifact repro-gate holds repro-gate-out/verdict.json" in first.said
        # the page's address went from the upload to the step that links it
        assert "artifact artifact holds repro-gate-out/report.html" in first.said
        assert len(notices(first, "not linked: no token was given")) == 1
        played.merge_the_proposal(first)
        assert answer(played.check()) == (0, "success", "reproduced")


def test_each_leg_of_a_matrix_is_a_gate_of_its_own(
    act: Act, action_image: str, project: Project
) -> None:
    project.write("repro-gate.yml", PLAYED)
    with taken_for_the_action(action_image):
        played = PullRequest(project, MATRIX, act)
        first = played.check()
        assert first.exit_code == 1
        for leg in ("a100", "h100"):
            held = f"artifact repro-gate-{leg} holds repro-gate-out-{leg}/proposed-baseline.json"
            assert held in first.said, first.log
        played.merge_the_proposal(first)
        passed = played.check()
        assert passed.exit_code == 0, passed.log
        for leg in ("a100", "h100"):
            assert f"repro-gate ({leg}) passed: same result, bit for bit" in passed.summary


def test_what_the_training_prints_or_tries_changes_nothing(
    played: PullRequest, project: Project
) -> None:
    project.write("train.py", SPY + (project.path / "train.py").read_text())
    project.play(says=PLANTED, exit=3)
    run = played.check()
    assert answer(run) == (1, "failure", "error"), run.log
    assert (run.said.count("refused /"), run.said.count("opened /")) == (3, 0), run.said
    assert "planted" in run.said
    assert not [told for told in run.obeyed if "planted" in told[1] or told[0] == "add-mask"]
    assert ("set-output", "reproduced") not in run.obeyed


@pytest.fixture
def digits(act: Act, torch_image: str, open_folder: Path) -> Iterator[PullRequest]:
    """The example as a repository of its own; only the script's folder is named in its settings."""
    repository = Repository(open_folder / "workspace")
    settings = (DIGITS / "repro-gate.yml").read_text("utf-8")
    repository.write("repro-gate.yml", settings.replace("python train.py", "python src/train.py"))
    repository.write("src/train.py", (DIGITS / "train.py").read_bytes())
    data = ROOT / "examples" / "data" / "digits.csv.gz"
    repository.write("data/digits.csv.gz", data.read_bytes())
    with taken_for_the_action(torch_image):
        yield PullRequest(repository, README, act)


def test_digits_train_for_real(digits: PullRequest) -> None:
    first = digits.check()
    assert answer(first) == (1, "failure", "no-baseline"), first.log
    digits.merge_the_proposal(first)
    passed = digits.check()
    assert answer(passed) == (0, "success", "reproduced"), passed.log
    assert passed.outputs["checkpoint_digest"] == first.outputs["checkpoint_digest"]
    script = (DIGITS / "train.py").read_text("utf-8")
    digits.repository.write("src/train.py", script.replace("= 5e-3", "= 6e-3"))
    digits.repository.commit()
    drifted = digits.check()
    assert answer(drifted) == (1, "failure", "code-drift"), drifted.log
