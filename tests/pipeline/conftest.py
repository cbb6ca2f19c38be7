from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from played_training import Project


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(Project(tmp_path / "project"), tmp_path / "out")


@pytest.fixture
def project(bench: Bench) -> Project:
    return bench.project
