from __future__ import annotations

import struct
from hashlib import shake_256
from pathlib import Path

import numpy as np
import pytest
from each_row import each_row
from numpy.typing import NDArray

from gate.checkpoint.formats.safetensors_reader import as_path, read_safetensors
from gate.checkpoint.leaves import Leaf
from gate.checkpoint.numbers import BLOCK, SUMS, relative_distance, sketches
from gate.checkpoint.untrusted_files import open_untrusted
from gate.system.files.files import LocalFiles

RANDOM = np.random.default_rng(7)
Array = NDArray[np.float64]


def sketch(folder: Path, values: Array, dtype: str = "F32", name: str = "/model/0/w") -> str:
    stored = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "I64": "<i8"}[dtype]
    data = values.astype(stored).tobytes()
    header = (
        f'{{"{name[1:]}":{{"dtype":"{dtype}","shape":[{len(values)}],"data_offsets":[0,{len(data)}]}}}}'
    ).encode()
    path = folder / "state.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    with open_untrusted(LocalFiles(), path, path.name, max_bytes=1 << 30) as opened:
        leaves: tuple[Leaf, ...] = tuple(read_safetensors(opened, as_path).leaves)
        return sketches(leaves, 2, 4000).get(name, "")


def distance(left: Array, right: Array) -> float:
    larger = max(np.linalg.norm(left), np.linalg.norm(right))
    return float(np.linalg.norm(left - right) / larger)


@each_row("size", [1, SUMS, SUMS + 1, 10_000, BLOCK, 2 * BLOCK + 7])
def test_a_scaled_tensor_has_its_exact_distance(tmp_path: Path, size: int) -> None:
    values = RANDOM.normal(size=size)
    halved = relative_distance(sketch(tmp_path, values), sketch(tmp_path, values / 2))
    assert halved == pytest.approx(0.5, rel=1e-5)


@each_row("tails", [0, 1, 4])
def test_a_small_tensor_has_the_exact_distance_of_any_change(tmp_path: Path, tails: int) -> None:
    """Its sums are exact, so what norms and ends say is never more than the distance is."""
    for _ in range(20):
        one, other = (RANDOM.normal(size=SUMS) ** (1 + 2 * tails) for _ in range(2))
        found = relative_distance(sketch(tmp_path, one), sketch(tmp_path, other))
        assert found == pytest.approx(distance(one, other), rel=1e-5)


def test_an_estimate_is_within_a_factor_of_two_in_nearly_all_cases(tmp_path: Path) -> None:
    ratios = []
    for number in range(200):
        one = RANDOM.normal(size=500)
        other = one + 10.0 ** -RANDOM.uniform(0, 4) * RANDOM.normal(size=500)
        # every second change is of few elements, as of one row of an embedding
        if number % 2:
            other[20:] = one[20:]
        found = relative_distance(sketch(tmp_path, one, "F64"), sketch(tmp_path, other, "F64"))
        assert found is not None
        ratios.append(found / distance(one, other))
    assert sum(0.5 < ratio < 2 for ratio in ratios) >= 198
    # the norm that it is divided by is estimated too, and an inverse is larger in the mean
    assert np.mean(np.square(ratios)) == pytest.approx(SUMS / (SUMS - 2), abs=0.1)


def test_a_turned_tensor_of_the_same_norm_is_far(tmp_path: Path) -> None:
    values = RANDOM.normal(size=1000)
    found = relative_distance(sketch(tmp_path, values), sketch(tmp_path, values[::-1]))
    assert found is not None
    assert found > 0.7


def test_other_blocks_have_other_signs(tmp_path: Path) -> None:
    # a change and its opposite, a block apart: under the same signs they would cancel
    values = np.ones(2 * BLOCK)
    far = [
        relative_distance(sketch(tmp_path, values), sketch(tmp_path, _moved(values, place)))
        for place in range(SUMS)
    ]
    assert sum(one is not None and one > 0 for one in far) > SUMS // 4


@each_row("factor", [0.0, 0.01, 1.0, 1000.0])
def test_a_change_that_leaves_the_sums_alone_is_seen_by_norms_and_ends(
    tmp_path: Path, factor: float
) -> None:
    """The signs are in this repository: whoever wants to finds such weights."""
    bits = np.unpackbits(np.frombuffer(shake_256(b"repro-gate sketch 0").digest(512), np.uint8))
    turned = np.where(bits.reshape(-1, 2, SUMS), 5.0, -5.0) * [[1.0], [-1.0]]
    values = RANDOM.normal(size=4096) / 14
    far = values + factor * turned.reshape(-1)
    found = relative_distance(sketch(tmp_path, values, "F64"), sketch(tmp_path, far, "F64"))
    # what norms bound is less than the distance where little moved, and nearly it where much did
    assert found is not None
    assert distance(values, far) / 4 <= found <= distance(values, far) + 1e-6


def test_a_sketch_of_no_numbers_is_near_to_nothing(tmp_path: Path) -> None:
    known = sketch(tmp_path, np.ones(40))
    for at in (0, SUMS, 2 * SUMS):
        edited = known[: 8 * at] + struct.pack("<f", np.nan).hex() + known[8 * at + 8 :]
        assert relative_distance(known, edited) == relative_distance(edited, known) == 2


def _moved(values: Array, place: int) -> Array:
    moved = values.copy()
    moved[place] += 1
    moved[BLOCK + place] -= 1
    return moved


def test_what_is_no_weight_of_finite_numbers_has_no_sketch(tmp_path: Path) -> None:
    ones = np.ones(4)
    assert sketch(tmp_path, ones, "F16")
    assert not sketch(tmp_path, ones, "I64")
    assert not sketch(tmp_path, ones, name="/optimizer/0/state/0/exp_avg")
    assert not sketch(tmp_path, np.array([1.0, np.inf]))
    assert not sketch(tmp_path, np.array([1e300]), "F64")
    assert relative_distance("", sketch(tmp_path, ones)) is None
    nothing = sketch(tmp_path, np.zeros(4))
    assert relative_distance(nothing, nothing) == 0
    assert relative_distance(nothing, sketch(tmp_path, ones)) == 1
