from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from action_scene import Scene
from fake_github import FakeGitHub
from played_training import Project


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    project = Project(tmp_path / "project")
    with FakeGitHub() as server:
        made = Scene(project=project, server=server, folder=tmp_path)
        made.base = project.git("rev-parse", "HEAD")
        yield made
