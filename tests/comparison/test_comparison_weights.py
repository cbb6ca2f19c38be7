"""Reruns' final weights: the same numbers as `repro-gate diff`, over all weights together."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from saved_tensors import Stored, array, difference_of, floats, raw, write_state

from gate.comparison.measurements import MAX_DISTANCE_CLASSES, WeightDistance
from gate.comparison.tensor_numbers import CLASSES
from gate.comparison.weight_noise import weight_distance, weight_noise
from gate.errors import EvidenceError
from gate.evidence.saved_state import open_captured
from gate.system.files.files import LocalFiles

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
PAIRS = st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=20)
MAX_BYTES = 1024**3
State = dict[str, Stored]


def _distance(folder: Path, left: State, right: State, *, threads: int = 2) -> WeightDistance:
    one = write_state(folder / "one", **left)
    other = write_state(folder / "other", **right)
    files = LocalFiles()
    with open_captured(files, one) as ours, open_captured(files, other) as theirs:
        return weight_distance(ours, theirs, threads=threads, max_bytes=MAX_BYTES)


def _of(folder: Path, left: Stored, right: Stored) -> WeightDistance:
    return _distance(folder, {"model/0/w": left}, {"model/0/w": right})


def test_weights_are_paired_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    first = {
        "model/0/w": floats(1),
        "model/0/gone": floats(2),
        "model/0/count": raw("I64", 3),
        "model/0/complex": Stored("C64", (1,), bytes(8)),
        "model/0/reshaped": floats(3, 4),
        "optimizer/0/state/0/step": floats(5),
        "parameter/0/1": raw("BF16", 0x3F80),
    }
    second = {name: tensor for name, tensor in first.items() if name != "model/0/gone"}
    second["model/0/w"] = floats(9)
    second["model/0/reshaped"] = Stored("F32", (2, 1), struct.pack("<2f", 3, 4))
    second["optimizer/0/state/0/step"] = floats(6)
    found = _distance(tmp_path, first, second)
    assert (found.elements, found.differing) == (2, 1)
    left_out = ("model/0/complex", "model/0/count", "model/0/gone", "model/0/reshaped")
    assert found.not_compared == left_out


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(PAIRS)
def test_one_tensor_has_the_numbers_of_the_difference_of_two_states(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[float, float]]
) -> None:
    left, right = zip(*pairs, strict=True)
    folder = tmp_path_factory.mktemp("pair")
    found = _of(folder, floats(*left), floats(*right))
    differences = difference_of(folder / "one", folder / "other").differences
    if not differences:
        assert (found.differing, found.relative_l2) == (0, 0.0)
        return
    numbers = differences[0].numbers
    assert numbers is not None
    assert (found.differing, found.relative_l2) == (numbers.differing, numbers.relative_l2)
    quantiles = weight_noise((found,)).ulp
    assert [one.distance for one in quantiles] == [one.distance for one in numbers.ulp]


def test_the_norm_is_over_all_weights_also_those_that_are_equal(tmp_path: Path) -> None:
    left = {"model/0/a": floats(3.0), "model/0/b": floats(4.0, dtype="F64")}
    found = _distance(tmp_path, left, {**left, "model/0/a": floats(0.0)})
    assert found.relative_l2 == 3 / 5


@pytest.mark.parametrize("threads", [1, 4])
def test_large_tensors_are_summed_over_all_stretches(tmp_path: Path, threads: int) -> None:
    left = np.random.default_rng(7).standard_normal(3_000_000).astype(np.float32)
    right = left.copy()
    right[-1] += np.float32(1)
    found = _distance(tmp_path, {"model/0/w": array(left)}, {"model/0/w": array(right)})
    again = _distance(
        tmp_path, {"model/0/w": array(left)}, {"model/0/w": array(right)}, threads=threads
    )
    assert found == again
    assert (found.elements, found.differing, sum(found.distances)) == (3_000_000, 1, 3_000_000)


def test_quantiles_count_every_weight(tmp_path: Path) -> None:
    one = 1.0 + 2**-23
    noise = weight_noise((_of(tmp_path, floats(*[1.0] * 10), floats(*[1.0] * 8, one, 2.0)),))
    assert [(each.share, each.distance) for each in noise.ulp] == [
        (0.5, 0),
        (0.9, 1),
        (0.99, 2**23),
        (1.0, 2**23),
    ]
    assert (noise.elements, noise.elements_that_differ) == (10, 2)


def test_reruns_count_together_and_the_worst_is_told(tmp_path: Path) -> None:
    near = _of(tmp_path, floats(1.0), floats(1.0 + 2**-23))
    far = _of(tmp_path, floats(1.0), floats(2.0))
    noise = weight_noise((near, far))
    assert [each.distance for each in noise.ulp] == [1, 2**23, 2**23, 2**23]
    assert noise.relative_l2 == (near.relative_l2, far.relative_l2)
    assert noise.largest_relative_l2 == 0.5


def test_what_is_not_finite_is_counted_and_left_out(tmp_path: Path) -> None:
    found = _of(tmp_path, floats(math.nan, math.inf, 1.0), floats(1.0, 1.0, 1.0))
    assert (found.elements, found.not_finite, found.relative_l2) == (3, 2, 0.0)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@given(data=st.binary(min_size=16, max_size=64))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_bytes_are_counted_without_a_warning(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, data: bytes
) -> None:
    whole = data[: len(data) // 8 * 8]
    shape = (len(whole) // {"F64": 8, "F32": 4}.get(dtype, 2),)
    left, right = Stored(dtype, shape, whole), Stored(dtype, shape, bytes(len(whole)))
    found = _of(tmp_path_factory.mktemp("any"), left, right)
    assert sum(found.distances) + found.not_finite == found.elements


def test_a_norm_beyond_float64_is_not_told(tmp_path: Path) -> None:
    noise = weight_noise((_of(tmp_path, floats(1e300, dtype="F64"), floats(1.0, dtype="F64")),))
    assert (noise.relative_l2, noise.largest_relative_l2) == ((None,), None)


def test_nothing_to_compare_has_no_distance(tmp_path: Path) -> None:
    found = _distance(tmp_path, {"optimizer/0/s": floats(1)}, {"optimizer/0/s": floats(2)})
    assert (found.elements, found.distances) == (0, ())
    assert {each.distance for each in weight_noise((found,)).ulp} == {0}


def test_a_state_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = write_state(tmp_path / "a", **{"model/0/w": floats(1)})
    (tmp_path / "b").write_bytes(whole.read_bytes()[:-1])
    with pytest.raises(EvidenceError, match="b: tensors cover 4 bytes, the file holds 3"):
        open_captured(LocalFiles(), tmp_path / "b").__enter__()


def test_the_record_holds_every_class_of_distances() -> None:
    assert MAX_DISTANCE_CLASSES == CLASSES
