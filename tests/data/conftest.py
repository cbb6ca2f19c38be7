from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from data_bench import DataBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[DataBench]:
    made = DataBench(root=tmp_path, environment=dict(os.environ))
    yield made
    made.close()


@pytest.fixture
def other_bench(tmp_path: Path) -> Iterator[DataBench]:
    """A second gate with the same cache."""
    made = DataBench(root=tmp_path, environment=dict(os.environ))
    yield made
    made.close()
