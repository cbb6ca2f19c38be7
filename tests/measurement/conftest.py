from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from played_training import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def bench(project: Project, tmp_path: Path) -> Bench:
    return Bench(project, tmp_path / "out")
