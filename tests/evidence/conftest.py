from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness_folder import HarnessFolder

if TYPE_CHECKING:
    from torch_states import Save


@pytest.fixture
def harness(tmp_path: Path) -> HarnessFolder:
    folder = tmp_path / "out"
    folder.mkdir()
    return HarnessFolder(path=folder)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    from torch_states import saver  # noqa: PLC0415 - torch is slow to import, most tests do without

    return saver(tmp_path)
