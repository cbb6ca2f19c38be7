"""A git repository, and a server that plays GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_github import FakeGitHub
from git_workshop import Repository
from github_client import connect

from gate.system.github.pull_requests import GitHubComments


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server


@pytest.fixture
def client(github: FakeGitHub) -> Iterator[GitHubComments]:
    with connect(github) as comments:
        yield comments
