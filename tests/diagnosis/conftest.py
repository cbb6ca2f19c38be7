from __future__ import annotations

import pytest
from harness_runs import HarnessRuns, copy_harness
from traced_runs import TracedRuns


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> HarnessRuns:
    folder = copy_harness(tmp_path_factory.mktemp("diagnosis-harness") / "copy")
    return HarnessRuns(folder=folder, runs=tmp_path_factory.mktemp("diagnosis-runs"))


@pytest.fixture(scope="session")
def traced(runs: HarnessRuns) -> TracedRuns:
    return TracedRuns(runs)
