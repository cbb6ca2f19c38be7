from __future__ import annotations

import importlib.util

import pytest
from harness_runs import HarnessRuns, copy_harness

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    folder = copy_harness(tmp_path_factory.mktemp("fingerprints-harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("fingerprints-runs"))
