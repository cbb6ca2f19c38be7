"""The program that all-reduces gradients, started by torch's own launcher with real ranks."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gate.comparison.measurements import AllReduceSpread
from gate.text.documents import read_document
from gate.training.run_folders import ALL_REDUCE_PROGRAM

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
]
REPETITIONS = 6


def safetensors(path: Path, tensors: dict[str, list[float]]) -> None:
    """A file of float32 vectors, written by hand."""
    header, content = {}, b""
    for name, values in tensors.items():
        data = struct.pack(f"<{len(values)}f", *values)
        ends = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": ends}
        content += data
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + content)


def all_reduced(folder: Path, *ranks: dict[str, list[float]]) -> AllReduceSpread:
    program = folder / "all_reduce.py"
    program.write_bytes(ALL_REDUCE_PROGRAM.read_bytes())
    for rank, tensors in enumerate(ranks):
        safetensors(folder / f"rank-{rank}.safetensors", tensors)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    words = (*launcher, f"--nproc-per-node={len(ranks)}", program, str(REPETITIONS))
    variables = {**os.environ, "REPRO_GATE_OUT": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run(words, env=variables, check=True, capture_output=True)
    found = folder / "all-reduce.json"
    return read_document(AllReduceSpread, found.read_bytes(), found.name)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> AllReduceSpread:
    """One launch, in which torch is imported three times."""
    long, bad = [1.0, 2.0], [float("nan")]
    one = {"bad": bad, "long": long, "w": [0.1 * (k + 1) for k in range(64)]}
    other = {"bad": [1.0], "long": long[:1], "w": [1e7 / (k + 1) for k in range(64)]}
    return all_reduced(tmp_path_factory.mktemp("two-ranks"), one, other)


def test_of_two_ranks_no_placement_moves_a_bit(of_two: AllReduceSpread) -> None:
    found = of_two
    assert (found.ranks, found.backend, found.tensors, found.elements) == (2, "gloo", 1, 64)
    assert (found.same_results, found.placed_results) == (1, 1)
    assert (found.spread, found.deviation) == (0.0, 0.0)
    # what float32 cannot hold of the exact sum
    assert found.error is not None
    assert 0 < found.error < 2**-23


def test_of_three_ranks_the_placement_shows_and_grows_with_what_cancels(tmp_path: Path) -> None:
    parts = [{"w": [((k * 7919 + 31 * r) % 1000) / 997 for k in range(300)]} for r in range(3)]
    found = all_reduced(tmp_path, *parts)
    # where every rank keeps its part, gloo adds in one order, whatever the load
    assert found.same_results == 1
    assert found.placed_results > 1
    assert found.spread is not None
    assert 0 < found.spread < 2**-21
    spreads = [one.spread for one in found.growth]
    assert all(spread is not None for spread in spreads)
    assert spreads[4] > 100 * spreads[1] > 0  # type: ignore[operator]  # just looked


def test_what_is_not_finite_or_has_another_size_is_skipped(of_two: AllReduceSpread) -> None:
    assert (of_two.tensors, of_two.skipped, of_two.worst_tensor) == (1, 2, "w")
