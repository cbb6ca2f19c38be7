from __future__ import annotations

import importlib.util

import pytest
from harness_runs import HarnessRuns, copy_harness
from traced_runs import TracedRuns

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def harness_runs(tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    folder = copy_harness(tmp_path_factory.mktemp("tracing-harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("tracing-runs"))


@pytest.fixture(scope="session")
def traced(harness_runs: HarnessRuns) -> TracedRuns:
    return TracedRuns(harness_runs)
