from __future__ import annotations

import importlib.util

import pytest
from real_training import Trainings

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings(root=tmp_path_factory.mktemp("trainings"))
