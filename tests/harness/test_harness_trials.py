"""What the harness does in a run that tries one setting."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

POOLS = """
import json, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool

if __name__ == "__main__":
    with ThreadPoolExecutor(4) as first, ThreadPoolExecutor(max_workers=3) as second:
        threads = [pool._max_workers for pool in (first, second)]
    with ProcessPoolExecutor(4) as pool:
        processes = pool._max_workers
    with get_context("fork").Pool(4) as forked, ThreadPool(processes=2) as beside:
        pools = [len(forked._pool), len(beside._pool)]
        squares = forked.map(abs, range(3))
    print(json.dumps([threads, processes, pools, squares]))
"""
LOADERS = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.arange(6.0).reshape(6, 1))
    loaders = [
        DataLoader(data, 2, num_workers=2, persistent_workers=True, prefetch_factor=4, timeout=60),
        DataLoader(data, 2, False, None, None, 1, multiprocessing_context="fork"),
    ]
    seen = [[batch[0].sum().item() for batch in loader] for loader in loaders]
    print(json.dumps([[loader.num_workers for loader in loaders], seen]))
"""
EMPTY = """
import json, numpy, torch
from numpy import empty
arrays = [
    numpy.empty(3, dtype="int16"),
    empty((2, 2), dtype="int16", order="F"),
    numpy.empty_like(numpy.ones((), dtype="int16")),
    numpy.empty(0),
    numpy.empty(2, dtype=object),
    numpy.empty(100_000, dtype="int16"),
]
print(json.dumps([sorted(map(str, set(array.reshape(-1).tolist()))) for array in arrays]))
"""
ORDER = """
from multiprocessing.pool import ThreadPool
import torch
with ThreadPool(3) as pool:
    print(list(pool.imap_unordered(abs, range(3))))
"""
THREADS = "import torch; print(torch.get_num_interop_threads())"


def said(harness: Harness, source: str, **variables: str) -> object:
    outcome = harness.run(source, **variables)
    told: object = json.loads(outcome.stdout)
    return told


def test_each_pool_has_one_worker(harness: Harness) -> None:
    assert said(harness, POOLS) == [[4, 3], 4, [4, 2], [0, 1, 2]]
    assert said(harness, POOLS, REPRO_GATE_TRIAL="one-worker") == [[1, 1], 1, [1, 1], [0, 1, 2]]


def test_one_worker_leaves_the_order_of_results_recorded(harness: Harness) -> None:
    outcome = harness.run(ORDER, REPRO_GATE_TRIAL="one-worker")
    (told,) = [json.loads(path.read_bytes()) for path in outcome.out.glob("sources-*.jsonl")]
    assert (outcome.stdout, told["kind"]) == ("[0, 1, 2]\n", "completion")


def test_a_dataloader_reads_without_workers(harness: Harness) -> None:
    batches = [[1.0, 5.0, 9.0]] * 2
    assert said(harness, LOADERS) == [[2, 1], batches]
    assert said(harness, LOADERS, REPRO_GATE_TRIAL="no-loader-workers") == [[0, 0], batches]


def test_arrays_that_nobody_wrote_hold_the_byte(harness: Harness) -> None:
    filled = [str(0x5555)]
    told = said(harness, EMPTY, REPRO_GATE_TRIAL=f"fill:{0x55}")
    assert told == [filled, filled, filled, [], ["None"], filled]


def test_torchs_threads_between_operators_are_one(harness: Harness) -> None:
    assert said(harness, THREADS, REPRO_GATE_TRIAL="one-thread") == 1
