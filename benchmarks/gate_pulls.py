"""Pull requests as the action judges them, and a golden test of the same training to compare."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gate_calls import CallError, bare_seconds, child_environment
from gate_workloads import Workload, commit_all, git, make_repository

# the test that a project without the gate would write: train once, compare with committed numbers
GOLDEN_TEST = """\
import json
import runpy
import sys
from pathlib import Path

import torch

GOLDEN = Path(__file__).with_name("golden.json")


def trained(monkeypatch):
    torch.manual_seed(42)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    monkeypatch.setattr(sys, "argv", ["train.py", STEPS])
    return runpy.run_path("train.py")


def summary(names):
    logits = names["logits"].detach().double()
    weights = [value.detach().double() for value in names["model"].parameters()]
    return {
        "logits": logits.sum().item(),
        "weights": [value.sum().item() for value in weights],
    }


def test_the_training_gives_the_golden_numbers(monkeypatch):
    found = summary(trained(monkeypatch))
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(found))
    assert found == json.loads(GOLDEN.read_text())
"""
WAYS: Mapping[str, str] = {
    "default settings": "",
    "`runs.when_reproduced: all`, price from the entry": "cost: {when: nightly}\n",
    "`runs.when_reproduced: one`": "cost: {when: nightly}\nruns: {when_reproduced: one}\n",
    "`runs.unaffected: answer`": "cost: {when: nightly}\nruns: {unaffected: answer}\n",
}
PAGE, SCRIPT = "docs/page.md", "train.py"
RATE, OTHER_RATE = "lr=1e-3", "lr=2e-3"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pull:
    """A call for a pull request: seconds from start to exit, its outcome and number of runs."""

    seconds: float
    outcome: str
    runs: int


class PullScene:
    """A repository with a recorded baseline and two changes: of a page, and of the script."""

    def __init__(self, folder: Path, workload: Workload, settings: str) -> None:
        self.top = make_repository(folder, workload)
        path = self.top / "repro-gate.yml"
        text = path.read_text("utf-8")
        if "unaffected" in settings:
            text = text.replace("  max_steps", f"  files: [{SCRIPT}]\n  max_steps", 1)
        path.write_text(text + settings, "utf-8")
        (self.top / ".gitignore").write_text("out/\n.pytest_cache/\n__pycache__/\n", "utf-8")
        test = GOLDEN_TEST.replace("STEPS", repr(workload.words[0]))
        (self.top / "test_golden.py").write_text(test, "utf-8")
        commit_all(self.top)
        said = self._gate("baseline", "record", "--reason", "benchmark")
        if not (self.top / ".repro-gate").is_dir():
            raise CallError(f"no baseline: {said}")
        commit_all(self.top)
        self.base = self._commit()
        self.page = self._change(PAGE, "another text\n")
        source = (self.top / SCRIPT).read_text("utf-8")
        self.drift = self._change(SCRIPT, source.replace(RATE, OTHER_RATE))

    def bare(self, words: tuple[str, ...]) -> float:
        """Train once by hand on the base commit; return the seconds."""
        git(self.top, "checkout", "--quiet", self.base)
        return bare_seconds(self.top, words, 1)

    def golden(self) -> float:
        """Run the golden test and return its seconds; the first call writes the golden values."""
        git(self.top, "checkout", "--quiet", self.base)
        begun = time.perf_counter()
        self._run("-m", "pytest", "-q", "test_golden.py")
        return time.perf_counter() - begun

    def call(self, head: str) -> Pull:
        """Run the action on a pull request of a commit; raises `CallError` without a verdict."""
        git(self.top, "checkout", "--quiet", head)
        sides = {
            name: {"sha": sha, "ref": ref, "repo": {"full_name": "o/model"}}
            for name, sha, ref in (("head", head, "side"), ("base", self.base, "main"))
        }
        event = self.top / ".git/event.json"
        event.write_text(json.dumps({"pull_request": {"number": 7, **sides}}), "utf-8")
        # if this call fails, an earlier call's verdict must not be taken for its own
        (self.top / "out/verdict.json").unlink(missing_ok=True)
        begun = time.perf_counter()
        said = self._gate(
            "action",
            GITHUB_ACTIONS="true",
            GITHUB_EVENT_NAME="pull_request",
            GITHUB_EVENT_PATH=str(event),
            GITHUB_REPOSITORY="o/model",
            GITHUB_SHA=head,
            GITHUB_WORKSPACE=str(self.top),
            INPUT_COMMENT="false",
            INPUT_OUT="out",
        )
        seconds = time.perf_counter() - begun
        path = self.top / "out/verdict.json"
        verdict = json.loads(path.read_bytes()) if path.is_file() else {"outcome": "error"}
        if verdict["outcome"] == "error":
            raise CallError(verdict.get("cause") or said.splitlines()[0])
        return Pull(seconds=seconds, outcome=verdict["outcome"], runs=len(verdict["runs"]))

    def _change(self, name: str, text: str) -> str:
        git(self.top, "checkout", "--quiet", self.base)
        path = self.top / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        commit_all(self.top)
        return self._commit()

    def _commit(self) -> str:
        return git(self.top, "rev-parse", "HEAD").strip()

    def _gate(self, *words: str, **variables: str) -> str:
        return self._run("-m", "gate", *words, **variables)

    def _run(self, *words: str, **variables: str) -> str:
        # exit code 1 is a verdict too, so any exit code is accepted
        done = subprocess.run(
            (sys.executable, *words),
            cwd=self.top,
            env={**child_environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout or "no output"
