"""The real client, connected to the server that plays GitHub."""

from __future__ import annotations

from fake_github import FakeGitHub

from gate.edges.github import GitHubComments
from gate.edges.github_http import Patience


def connect(github: FakeGitHub, *, timeout_seconds: float = 5.0) -> GitHubComments:
    return GitHubComments(
        api_url=github.api_url,
        repository="org/repo",
        number=7,
        token=github.token,
        patience=Patience(timeout_seconds=timeout_seconds, backoff_seconds=0.0),
    )
