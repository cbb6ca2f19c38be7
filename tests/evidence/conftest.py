from __future__ import annotations

from pathlib import Path

import pytest
from guest_folder import GuestFolder

from gate.edges.files import LocalFiles


@pytest.fixture
def files() -> LocalFiles:
    return LocalFiles()


@pytest.fixture
def guest(tmp_path: Path) -> GuestFolder:
    folder = tmp_path / "out"
    folder.mkdir()
    return GuestFolder(path=folder)
