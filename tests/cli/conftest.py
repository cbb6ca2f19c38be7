from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Ended, Run
from played_training import Project

from gate.cli import answer

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
    """Run `repro-gate` with these words, as its console script does."""

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
