from __future__ import annotations

import importlib.util

import pytest
from guest_runs import GuestRuns, copy_guest

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> GuestRuns:
    folder = copy_guest(tmp_path_factory.mktemp("streams-guest") / "copy")
    return GuestRuns(folder=folder, runs=tmp_path_factory.mktemp("streams-runs"))
