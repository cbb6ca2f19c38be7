"""A server that plays GitHub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_github import FakeGitHub


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server
