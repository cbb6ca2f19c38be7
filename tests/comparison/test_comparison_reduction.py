from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from saved_tensors import floats, raw, write_state

from gate.comparison.weight_noise import (
    ORDERS,
    FloatTensor,
    gradient_tensors,
    reduction_spread,
    sums_in_many_orders,
    tensor_spread,
)
from gate.evidence.saved_state import open_captured
from gate.system.files.files import LocalFiles

SMALL = st.lists(st.integers(-1000, 1000), min_size=1, max_size=300)
FLOATS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=300)


def _tensor(values: list[float], name: str = "gradient/0") -> FloatTensor:
    return FloatTensor(name=name, values=np.array(values, dtype=np.float64))


@given(SMALL)
def test_sums_that_are_exact_have_no_order(values: list[int]) -> None:
    sums = sums_in_many_orders(np.array(values, dtype=np.float32))
    assert sums.shape == (ORDERS,)
    assert set(sums.tolist()) == {float(sum(values))}


@given(FLOATS)
def test_no_order_leaves_the_bound_of_its_rounding_errors(values: list[float]) -> None:
    # Higham, section 4.2: |error| <= (n - 1) u / (1 - (n - 1) u) * sum of magnitudes.
    array = np.array(values, dtype=np.float32)
    errors = np.abs(sums_in_many_orders(array).astype(np.float64) - math.fsum(array.tolist()))
    magnitude = math.fsum(np.abs(array).tolist())
    assert errors.max() <= 1.01 * len(values) * 2**-24 * magnitude + 2**-149


def test_large_and_small_addends_show_a_spread() -> None:
    found = tensor_spread(_tensor([1e8, 1.0, -1e8, 1.0] * 64))
    assert found is not None
    assert found.distinct > 1
    assert 0 < found.of_magnitude < 1e-6
    assert found.of_sum is not None
    assert found.of_sum > 1e-3


def test_the_worst_tensor_is_named() -> None:
    found = reduction_spread([_tensor([1.0, 2.0], "calm"), _tensor([1e8, 1.0, -1e8] * 9, "wild")])
    assert found is not None
    assert (found.worst_tensor, found.tensors, found.elements) == ("wild", 2, 29)
    assert found.median < found.worst


def test_zeros_and_infinities_have_nothing_to_sum() -> None:
    assert reduction_spread([_tensor([0.0, 0.0]), _tensor([math.inf]), _tensor([])]) is None


def test_a_sum_beyond_float32_is_left_out() -> None:
    assert tensor_spread(_tensor([3e38] * 4)) is None


def test_gradients_are_read_up_to_the_limits(tmp_path: Path) -> None:
    path = write_state(
        tmp_path / "gradients",
        **{
            "gradient/0": floats(1, 2, 3),
            "gradient/1": raw("I64", 8),
            "gradient/2": floats(4, 5, 6, dtype="F16"),
            "gradient/3": floats(7),
        },
    )
    with open_captured(LocalFiles(), path) as content:
        found = list(gradient_tensors(content, max_tensor_elements=2, max_elements=3))
    assert [(one.name, one.values.tolist()) for one in found] == [
        ("gradient/0", [1, 2]),
        ("gradient/2", [4]),
    ]


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    path = write_state(tmp_path / "gradients", **{"gradient/0": raw("BF16", 0x3F80, 0x3F81)})
    with open_captured(LocalFiles(), path) as content:
        (found,) = gradient_tensors(content)
    assert found.values.tolist() == [1.0, 1.0078125]
