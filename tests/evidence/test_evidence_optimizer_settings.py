"""Settings of optimizers as numbers that a person can read, and nothing else of a state."""

from __future__ import annotations

import struct

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gate.checkpoint.leaves import HeldBytes, TensorLeaf
from gate.evidence.metric_series import FORMATS, optimizer_settings
from gate.evidence.run_evidence import CheckpointManifest
from gate.evidence.saved_state import ReadState, manifest
from gate.evidence.step_work import MAX_OPTIMIZER_SETTINGS


def _leaf(path: str, dtype: str, number: float, shape: tuple[int, ...] = ()) -> TensorLeaf:
    return TensorLeaf(path, dtype, shape, HeldBytes(struct.pack(FORMATS[dtype], number)))


@each_row(
    ("dtype", "number", "word"),
    [
        ("F64", 0.001, "0.001"),
        ("F32", 0.001, "0.001"),
        ("F64", 1e-08, "1e-08"),
        ("F64", float("inf"), "inf"),
        ("I64", 100, "100"),
        ("BOOL", True, "true"),
    ],
)
def test_a_setting_is_its_shortest_decimal(dtype: str, number: float, word: str) -> None:
    leaf = _leaf("/optimizer/0/group/0/lr", dtype, number)
    assert optimizer_settings((leaf,), "state") == {"state/optimizer/0/group/0/lr": word}


@pytest.mark.parametrize("path", ["/model/0/scale", "/optimizer/0/state/0/step", "/optimizer/0/lr"])
def test_what_is_no_setting_of_an_optimizer_is_left_out(path: str) -> None:
    assert optimizer_settings((_leaf(path, "F64", 1.0),), "state") == {}


def test_a_vector_is_no_setting() -> None:
    assert optimizer_settings((_leaf("/optimizer/0/group/0/lr", "F64", 1.0, (1,)),), "state") == {}


def test_a_hostile_capture_makes_no_long_list() -> None:
    many = [_leaf(f"/optimizer/0/group/{one}/lr", "F64", 1.0) for one in range(2000)]
    assert len(optimizer_settings(many, "state")) == MAX_OPTIMIZER_SETTINGS


@given(st.floats(), st.booleans(), st.integers(-(2**63), 2**63 - 1))
def test_every_number_may_stand_in_a_manifest(real: float, switch: bool, whole: int) -> None:  # noqa: FBT001 - drawn
    leaves = [
        _leaf("/optimizer/0/group/0/a", "F64", real),
        _leaf("/optimizer/0/group/0/b", "BOOL", switch),
        _leaf("/optimizer/0/group/0/c", "I64", whole),
    ]
    read = ReadState(optimizer_settings=optimizer_settings(leaves, "state"))
    assert len(manifest((read,)).optimizer_settings) == 3


def test_other_text_is_refused() -> None:
    empty = manifest(()).model_dump()
    with pytest.raises(ValidationError):
        CheckpointManifest.model_validate(
            empty | {"optimizer_settings": {"state/optimizer/0/group/0/lr": "<img src=x>"}}
        )
