from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
from command_line import Ended, Run
from played_training import Project
from real_reader import kept
from recorded_trainings import record_trainings

from gate.cli import answer
from gate.training.isolating import Isolating

PASSPHRASE = "a pass phrase of some length"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A played training, and the current folder in it."""
    made = Project(tmp_path / "project")
    monkeypatch.chdir(made.path)
    monkeypatch.setenv("REPRO_GATE_PASSPHRASE", PASSPHRASE)
    return made


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `repro-gate` with these words, as its console script does.

    In this process, and what reads is started once for a worker: its imports take longer than most
    of what a command does. A played training runs once and is recorded.
    `test_the_module_is_the_same_program` and others start the real thing.
    """
    record_trainings(monkeypatch)
    start = Isolating.answering
    monkeypatch.setattr(
        Isolating, "answering", lambda own, request: kept(partial(start, own))(request)
    )

    def call(*words: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["repro-gate", *map(str, words)])
        try:
            answer([*map(str, words)])
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = capsys.readouterr()
        return Ended(code=code, out=shown.out, err=shown.err)

    return call
