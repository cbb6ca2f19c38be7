"""A pull request, the server that it lives on, and the runner's variables, for the whole action."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from baseline_cases import place_of_entry
from fake_github import FakeGitHub
from lead_words import words_before_table
from played_training import Project
from real_reader import kept
from recorded_trainings import recorded
from scenes import baseline_of

from gate.action.main import (
    Runner,
    github_comments,
    github_history,
    github_pull_request,
    github_status,
    run_action,
)
from gate.errors import ExitCode
from gate.isolation.modes import Isolation, IsolationMode, IsolationSettings
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import build_adapters
from gate.report.lead import MOST_WORDS
from gate.settings.gate_settings import GateSettings
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles

FILES = LocalFiles()
EMPTY: Mapping[str, str] = MappingProxyType({})
APART = Isolation(mode=IsolationMode.UID, credentials=None, reason="played: an account of its own")


@dataclass
class Scene:
    """A pull request, the server that it lives on, and the runner's variables.

    `whole`: every training runs, and none is taken from its recording.
    """

    project: Project
    server: FakeGitHub
    folder: Path
    base: str = ""
    base_branch: str = "main"
    said: list[str] = field(default_factory=list)
    apart: Isolation = APART
    calls: int = 0
    whole: bool = False
    asked: list[IsolationSettings] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def event(self, *, fork: bool) -> dict[str, object]:
        """Return the content of the event file of a pull request, from a fork or not."""
        head = self.project.git("rev-parse", "HEAD")
        return {
            "pull_request": {
                "number": 7,
                "head": {"sha": head, "repo": {"full_name": "fork/model" if fork else "o/model"}},
                "base": {
                    "sha": self.base,
                    "ref": self.base_branch,
                    "repo": {"full_name": "o/model"},
                },
            },
            "merge_group": {
                "base_sha": self.base,
                "base_ref": f"refs/heads/{self.base_branch}",
            },
        }

    def run(
        self,
        changed: Mapping[str, str] = EMPTY,
        *,
        fork: bool = False,
        event: Mapping[str, object] | None = None,
    ) -> ExitCode:
        """Run the action once; `changed` overrides the runner's variables."""
        head = self.project.git("rev-parse", "HEAD")
        (self.folder / "event.json").write_text(json.dumps(event or self.event(fork=fork)))
        variables = {
            "GITHUB_EVENT_NAME": "pull_request",
            "GITHUB_EVENT_PATH": str(self.folder / "event.json"),
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": head,
            "GITHUB_WORKSPACE": str(self.project.path),
            "GITHUB_API_URL": self.server.api_url,
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_STEP_SUMMARY": str(self.folder / "summary"),
            "INPUT_TOKEN": self.server.token,
            "PATH": os.environ["PATH"],
            **changed,
        }
        self.variables = variables
        self.calls += 1
        runner = Runner(
            variables=variables,
            files=FILES,
            adapters=self._adapters,
            comments=github_comments,
            status=github_status,
            history=github_history,
            find=github_pull_request,
            clock=SystemClock(),
            say=self.said.append,
        )
        return run_action(runner)

    def _adapters(self, top: Path) -> Adapters:
        adapters = build_adapters(FILES, top, QuietProgress(), StopSignals(), self.variables)

        def isolate(settings: GateSettings, _: tuple[Path, ...]) -> Isolation:
            self.asked.append(settings.isolation)
            return self.apart

        known = replace(adapters, isolate=isolate, answering=kept(adapters.answering))
        return known if self.whole else recorded(known)

    def with_baseline(self) -> None:
        """Commit the baseline that a first run proposes to the base branch.

        That run uses another server, and happens once per test run.
        """
        plain = type(self) is Scene and self.apart is APART
        if plain and baseline_of(self.project, "", "proposed", self._proposed):
            self.base = self.project.commit()
        else:
            self.base = self.propose()

    def _proposed(self, folder: Path) -> None:
        with FakeGitHub() as server, TemporaryDirectory() as elsewhere:
            first = Scene(
                project=self.project, server=server, folder=Path(elsewhere), base=self.base
            )
            text = first.proposal()
            (folder / Path(place_of_entry(text)).name).write_text(text)
        shutil.rmtree(self.project.path / "repro-gate-out")

    def propose(self) -> str:
        """Run the action, and commit the baseline that it proposes."""
        text = self.proposal()
        self.project.write(place_of_entry(text), text)
        return self.project.commit()

    def proposal(self) -> str:
        """Run the action, and return the baseline that it proposes."""
        self.run()
        return (self.project.path / "repro-gate-out" / "proposed-baseline.json").read_text()

    def statuses(self) -> list[dict[str, str]]:
        """Return the statuses of the project's commit, newest last."""
        return list(self.server.statuses(self.project.git("rev-parse", "HEAD")))

    def output(self, name: str) -> str:
        """Return the last value that any call wrote to an output."""
        lines = (self.folder / "output").read_text().splitlines()
        start = max(n for n, line in enumerate(lines) if line.startswith(f"{name}<<"))
        return lines[start + 1]

    @property
    def comment(self) -> str:
        """Return the text of the only comment, and check the rules for every comment."""
        (comment,) = self.server.comments
        # a law over every comment of a whole call
        assert words_before_table(comment.body) <= MOST_WORDS
        return comment.body
