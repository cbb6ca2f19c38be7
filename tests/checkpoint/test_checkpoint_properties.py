"""Random states, saved by torch and safetensors themselves: one state has one digest.

The expected digests come from `specified_digest`, that is from the page's words and torch's own
view of the tensors, not from the program.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_digests import content_of, root_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_states import DTYPES, specified_leaves, specified_roots
from torch_states import Save, saver

from gate.checkpoint.parts import TEXTS

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
]
Changed = tuple[str, object]

NAMES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), max_size=4)
KEYS = st.one_of(
    NAMES,
    st.text(st.characters(categories=["L"]), max_size=3),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=4),
)
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**90), 2**90),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
)


def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same elements lying differently in memory."""
    if layout == "transposed":
        last_first = tuple(reversed(range(tensor.dim())))
        return tensor.permute(last_first).contiguous().permute(last_first)
    if layout == "sliced":
        wide = torch.zeros((*tensor.shape, 2), dtype=tensor.dtype)
        wide[..., 1] = tensor
        return wide[..., 1]
    if layout == "channels_last" and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout == "offset":
        long = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
        return long[3:].copy_(tensor.reshape(-1)).view(tensor.shape)
    return tensor.clone()


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype, random bits (of `BOOL` only 0 and 1), any layout."""
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    bits = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    bits = bits & 1 if dtype is torch.bool else bits
    tensor = bits.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    if shape and draw(st.integers(0, 9)) == 0:
        return tensor[:1].expand(2, *shape[1:]) if shape[0] else tensor
    return laid_out(tensor, draw(st.sampled_from(LAYOUTS)))


LAYOUTS = ("plain", "transposed", "sliced", "channels_last", "offset")
FLAT = st.dictionaries(NAMES.filter(bool), tensors(), max_size=4)
STATES = st.recursive(
    st.one_of(tensors(), PLAIN, st.frozensets(PLAIN, max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def check_one_digest(save: Save, state: object) -> None:
    """Every way of saving gives the digests that the page's words give."""
    expected = {path: row[2] for path, row in specified_leaves(state).items()}
    for protocol in (2, 4):
        found = content_of(save(state, protocol=protocol))
        left_out = sum(rule.leaves for rule in found.excluded)
        digests = {leaf.path: leaf.digest for leaf in found.leaves}
        assert digests.items() <= expected.items()
        assert len(digests) + left_out == len(expected)
        if not left_out:
            assert {**found.roots.parts, "whole": found.roots.whole} == specified_roots(state)


def check_flat(folder: Path, save: Save, state: dict[str, torch.Tensor]) -> None:
    """safetensors and torch give one root, shared or not, parameters or tensors."""
    safetensors = pytest.importorskip("safetensors.torch")
    known = {name: tensor for name, tensor in state.items() if tensor.dtype != torch.complex128}
    known = {name: tensor for name, tensor in known.items() if tensor.dtype not in NOT_THERE}
    safetensors.save_file(
        {name: tensor.contiguous().clone() for name, tensor in known.items()},
        folder / "a.safetensors",
        metadata={"format": "pt", "other": "1"},
    )
    variants = [
        root_of(folder / "a.safetensors"),
        root_of(save(known)),
        root_of(save(dict(reversed(known.items())))),
        root_of(save({name: parameter(tensor) for name, tensor in known.items()})),
    ]
    assert set(variants) == {specified_roots(known)["whole"]}


NOT_THERE = {torch.complex32, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}


def parameter(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor, requires_grad=False)


@st.composite
def changes(draw: st.DrawFn) -> tuple[object, object]:
    """A state, and the same after one change somewhere in it."""
    state = draw(STATES)
    tensor = draw(tensors())
    before, after = draw(st.sampled_from(CHANGES))(tensor, draw(st.integers(0, 2**16)))
    wrap = draw(st.sampled_from(WRAPS))
    return wrap(state, before), wrap(state, after)


def bit_changed(tensor: torch.Tensor, place: int) -> tuple[object, object]:
    other = tensor.clone(memory_format=torch.contiguous_format)
    bits = other.reshape(-1).view(torch.uint8)
    if not bits.numel():
        return tensor, torch.zeros(1)
    bits[place % bits.numel()] ^= 1 if tensor.dtype is torch.bool else 1 << (place % 8)
    return tensor, other


def shape_changed(tensor: torch.Tensor, _: int) -> tuple[object, object]:
    return tensor, tensor.unsqueeze(0)


def dtype_changed(tensor: torch.Tensor, _: int) -> tuple[object, object]:
    bits = tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    other = torch.int8 if tensor.dtype is torch.uint8 else torch.uint8
    same_shape = bits.view(other).reshape(-1)
    return tensor.reshape(-1), same_shape


def key_changed(tensor: torch.Tensor, _: int) -> tuple[object, object]:
    return {"a": tensor}, {"b": tensor}


def kind_of_key_changed(tensor: torch.Tensor, place: int) -> tuple[object, object]:
    return {place: tensor}, {str(place): tensor}


def order_changed(tensor: torch.Tensor, place: int) -> tuple[object, object]:
    return [tensor, place], [place, tensor]


def value_changed(_: torch.Tensor, place: int) -> tuple[object, object]:
    return place, place + 1


def kind_changed(_: torch.Tensor, place: int) -> tuple[object, object]:
    return place, float(place)


def one_more(tensor: torch.Tensor, _: int) -> tuple[object, object]:
    return [tensor], [tensor, tensor]


CHANGES: tuple[Any, ...] = (
    bit_changed, shape_changed, dtype_changed, key_changed, kind_of_key_changed, order_changed,
    value_changed, kind_changed, one_more,
)  # fmt: skip
WRAPS: tuple[Any, ...] = (
    lambda state, part: {"state": state, "x": part},
    lambda state, part: [state, part],
    lambda state, part: {"model": {"deep": [part]}, 3: state},
)
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(FEW, max_examples=1000)


@FEW
@given(state=STATES)
def test_any_state_has_the_specified_digest(save: Save, state: object) -> None:
    check_one_digest(save, state)


@FEW
@given(state=FLAT)
def test_one_state_in_every_format_has_one_digest(
    tmp_path: Path, save: Save, state: dict[str, torch.Tensor]
) -> None:
    check_flat(tmp_path, save, state)


@FEW
@given(pair=changes())
def test_any_single_change_gives_another_digest(save: Save, pair: tuple[object, object]) -> None:
    assert root_of(save(pair[0])) != root_of(save(pair[1]))


@pytest.mark.slow
@MANY
@given(state=STATES, flat=FLAT, pair=changes())
def test_many_states(
    tmp_path: Path, state: object, flat: dict[str, torch.Tensor], pair: tuple[object, object]
) -> None:
    save = saver(tmp_path)
    check_one_digest(save, state)
    check_flat(tmp_path, save, flat)
    assert root_of(save(pair[0])) != root_of(save(pair[1]))


def test_the_values_that_are_left_out_are_no_tensors() -> None:
    assert not TEXTS & set(DTYPES.values())
