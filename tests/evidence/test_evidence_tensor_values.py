from __future__ import annotations

import struct
from pathlib import Path

import pytest
from harness_folder import safetensors_bytes

from gate.adapters.files.files import LocalFiles
from gate.errors import EvidenceError
from gate.evidence import tensor_values
from gate.evidence.tensor_values import gradient_tensors, paired_weights, weights_not_compared
from gate.records.values import FloatPair, FloatTensor

FILES = LocalFiles()
Tensors = dict[str, tuple[str, list[int], bytes]]
State = tuple[Path, str]


def _floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _written(path: Path, tensors: Tensors) -> State:
    path.write_bytes(safetensors_bytes(tensors))
    return path, path.name


def test_weights_are_paired_by_name_and_nothing_else_is(tmp_path: Path) -> None:
    first: Tensors = {
        "model/0/w": ("F32", [1], _floats(1)),
        "model/0/gone": ("F32", [1], _floats(2)),
        "model/0/count": ("I64", [], bytes(8)),
        "model/0/reshaped": ("F32", [2], _floats(3, 4)),
        "optimizer/0/state/0/step": ("F32", [], _floats(5)),
        "parameter/0/1": ("BF16", [1], b"\x80\x3f"),
    }
    second: Tensors = {
        **{name: tensor for name, tensor in first.items() if name != "model/0/gone"},
        "model/0/w": ("F32", [1], _floats(9)),
        "model/0/reshaped": ("F32", [2, 1], _floats(3, 4)),
    }
    states = _written(tmp_path / "a", first), _written(tmp_path / "b", second)
    assert list(paired_weights(FILES, *states)) == [
        FloatPair(dtype="F32", left=_floats(1), right=_floats(9)),
        FloatPair(dtype="BF16", left=b"\x80\x3f", right=b"\x80\x3f"),
    ]
    left_out = ("model/0/count", "model/0/gone", "model/0/reshaped")
    assert weights_not_compared(FILES, *states) == left_out


def test_a_large_tensor_comes_in_stretches(tmp_path: Path) -> None:
    content = bytes(3 * 2**19)
    state = _written(tmp_path / "a", {"model/0/w": ("F16", [3 * 2**18], content)})
    assert [len(pair.left) for pair in paired_weights(FILES, state, state)] == [2**20, 2**19]


def test_a_state_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = _written(tmp_path / "a", {"model/0/w": ("F32", [1], _floats(1))})
    (tmp_path / "b").write_bytes(whole[0].read_bytes()[:-1])
    with pytest.raises(EvidenceError, match="b: tensors cover 4 bytes, the file holds 3"):
        list(paired_weights(FILES, whole, (tmp_path / "b", "b")))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    whole = _written(tmp_path / "a", {"model/0/w": ("F32", [1], _floats(1))})
    (tmp_path / "link").symlink_to(whole[0])
    with pytest.raises(EvidenceError, match="cannot be read"):
        list(paired_weights(FILES, whole, (tmp_path / "link", "link")))


def test_gradients_are_read_up_to_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_values, "MAX_TENSOR_ELEMENTS", 2)
    monkeypatch.setattr(tensor_values, "MAX_ELEMENTS", 3)
    tensors: Tensors = {
        "gradient/0": ("F32", [3], _floats(1, 2, 3)),
        "gradient/1": ("I64", [1], bytes(8)),
        "gradient/2": ("F32", [3], _floats(4, 5, 6)),
        "gradient/3": ("F32", [1], _floats(7)),
    }
    path, shown = _written(tmp_path / "a", tensors)
    assert list(gradient_tensors(FILES, path, shown)) == [
        FloatTensor(name="gradient/0", dtype="F32", data=_floats(1, 2)),
        FloatTensor(name="gradient/2", dtype="F32", data=_floats(4)),
    ]
