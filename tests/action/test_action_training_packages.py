"""The base commit's own requirements, read from the commit that the event names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from git_workshop import Repository

from gate.action.training_packages import base_requirements
from gate.errors import RepositoryError, SettingsError

NAME = "requirements.lock"


def _variables(project: Repository, folder: Path, base: str, kind: str) -> dict[str, str]:
    repository = {"full_name": "o/model"}
    head = {"sha": project.git("rev-parse", "HEAD"), "repo": repository}
    event = {
        "pull_request": {"number": 7, "head": head, "base": {"sha": base, "repo": repository}},
        "merge_group": {"base_sha": base},
    }
    (folder / "event.json").write_text(json.dumps(event))
    return {
        "GITHUB_EVENT_NAME": kind,
        "GITHUB_EVENT_PATH": str(folder / "event.json"),
        "GITHUB_REPOSITORY": "o/model",
        "GITHUB_SHA": head["sha"],  # type: ignore[dict-item] # the hash
        "GITHUB_WORKSPACE": str(project.path),
    }


@pytest.fixture
def bumped(tmp_path: Path) -> tuple[Repository, str]:
    """A project whose last commit changes the lock, and the commit before."""
    project = Repository(tmp_path / "project")
    project.write(NAME, "one")
    base = project.commit()
    project.write(NAME, "two")
    project.commit()
    return project, base


@pytest.mark.parametrize("kind", ["pull_request", "merge_group"])
def test_the_base_commits_version_is_written(
    bumped: tuple[Repository, str], tmp_path: Path, kind: str
) -> None:
    project, base = bumped
    variables = _variables(project, tmp_path, base, kind)
    assert base_requirements(NAME, variables) == b"one"
    assert base_requirements("none.lock", variables) == b""


def test_a_push_has_no_base(bumped: tuple[Repository, str], tmp_path: Path) -> None:
    project, base = bumped
    assert base_requirements(NAME, _variables(project, tmp_path, base, "push")) == b""


def test_what_cannot_be_read_is_said(bumped: tuple[Repository, str], tmp_path: Path) -> None:
    project, _ = bumped
    with pytest.raises(RepositoryError, match="there is no commit"):
        base_requirements(NAME, _variables(project, tmp_path, "f" * 40, "pull_request"))
    with pytest.raises(SettingsError, match="not supported"):
        base_requirements(NAME, _variables(project, tmp_path, "f" * 40, "issues"))
