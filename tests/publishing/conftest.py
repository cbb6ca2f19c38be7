"""Registries to push to, and a server that plays GitHub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_github import FakeGitHub
from oci_double import OciDouble


@pytest.fixture(params=[False, True], ids=["tag", "referrers"])
def either(request: pytest.FixtureRequest) -> Iterator[OciDouble]:
    with OciDouble(keeps_referrers=request.param) as server:
        yield server


@pytest.fixture
def oci() -> Iterator[OciDouble]:
    with OciDouble() as server:
        yield server


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as server:
        yield server
