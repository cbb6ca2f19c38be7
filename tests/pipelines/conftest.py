from __future__ import annotations

from pathlib import Path

import pytest
from data_training import LOSSES
from gate_bench import Bench
from played_training import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def bench(project: Project, tmp_path: Path) -> Bench:
    """Without default runs: see `priced`."""
    made = Bench(project, tmp_path / "out")
    made.priced = False
    return made


@pytest.fixture
def priced(bench: Bench) -> Bench:
    """Its calls make default runs too."""
    bench.priced = True
    return bench


@pytest.fixture
def mini(tmp_path: Path) -> Path:
    """A data set outside of the repository."""
    folder = tmp_path / "srv" / "mini"
    folder.mkdir(parents=True)
    (folder / "losses.txt").write_text(LOSSES)
    (folder / "rows.csv").write_text("a\n0.4\n0.6\n")
    return folder
