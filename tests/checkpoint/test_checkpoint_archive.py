from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from checkpoint_digests import digests_of, leaves_of, root_of, small_tensor
from hostile_archives import written_again
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_states import WEIGHT, Save, row_major

pytestmark = pytest.mark.torch


def stepped() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_every_tensor_has_the_digest_of_its_bytes(save: Save) -> None:
    model, _ = stepped()
    found = digests_of(save({"model": model.state_dict()}))
    assert len(found) == len(model.state_dict())
    for name, tensor in model.state_dict().items():
        dtype = "I64" if tensor.dtype is torch.int64 else "F32"
        expected = small_tensor(dtype, tuple(tensor.shape), row_major(tensor))
        assert found[f"/model/{name}"] == expected


def test_an_optimizer_gives_tensors_and_numbers(save: Save) -> None:
    found = leaves_of(save({"optimizer": stepped()[1].state_dict(), "epoch": 3, "best": True}))
    assert found["/optimizer/state{0}/exp_avg"] == ("F32", (3, 4))
    assert found["/optimizer/param_groups[0]/lr"] == ("float", None)
    assert found["/epoch"] == ("int", None)
    assert found["/best"] == ("bool", None)


def test_the_same_weights_give_the_same_root(save: Save) -> None:
    model, _ = stepped()
    state = model.state_dict()
    shared = torch.zeros(100)
    variants: list[object] = [
        dict(reversed(state.items())),
        {name: tensor.clone() for name, tensor in state.items()},
        {name: strided(tensor) for name, tensor in state.items()},
        {name: parameter(tensor) for name, tensor in state.items()},
        {name: view_of(shared.clone(), tensor) for name, tensor in state.items()},
    ]
    roots = {root_of(save(state)), root_of(save(state, "other-name.bin"))}
    roots |= {root_of(save(variant)) for variant in variants}
    roots |= {root_of(save(state, protocol=protocol)) for protocol in (3, 4, 5)}
    assert len(roots) == 1


def strided(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def parameter(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor


def view_of(storage: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    part = storage[7 : 7 + tensor.numel()].view(tensor.shape)
    return part.copy_(tensor)


def test_tied_and_cloned_tensors_give_the_same_root(save: Save) -> None:
    tied = root_of(save({"a": WEIGHT, "b": WEIGHT}))
    assert tied == root_of(save({"a": WEIGHT, "b": WEIGHT.clone()}))


def test_time_and_layout_of_the_archive_do_not_count(save: Save, tmp_path: Path) -> None:
    path = save({"w": WEIGHT})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new.pt", "w") as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name, (2024, 5, 6, 7, 8, 9)), old.read(name))
    assert root_of(tmp_path / "new.pt") == root_of(path)


def test_the_device_in_the_archive_does_not_count(save: Save) -> None:
    path = save({"w": WEIGHT})
    before = root_of(path)
    assert path.read_bytes().count(b"\x03\0\0\0cpu") == 1
    written_again(path, b"\x03\0\0\0cpu", b"\x03\0\0\0gpu")
    assert root_of(path) == before


@pytest.mark.parametrize(
    "changed",
    [
        {"w": WEIGHT.index_fill(0, torch.tensor([2]), 1.0)},
        {"v": WEIGHT},
        {"w": WEIGHT.reshape(4, 3)},
        {"w": WEIGHT.to(torch.float64)},
        {"w": WEIGHT.view(torch.int32)},
        {"w": WEIGHT, "epoch": 1},
        {"w": WEIGHT.t()},
        {"w": -WEIGHT},
    ],
)
def test_other_weights_give_another_root(save: Save, changed: object) -> None:
    assert root_of(save({"w": WEIGHT})) != root_of(save(changed))


def test_one_flipped_bit_gives_another_root(save: Save) -> None:
    path, data = save({"w": WEIGHT}), row_major(WEIGHT)
    before = root_of(path)
    written_again(path, data, bytes([data[0] ^ 1]) + data[1:])
    assert root_of(path) != before


TENSORS = st.builds(
    lambda shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
LEAVES = st.one_of(
    TENSORS, st.integers(), st.booleans(), st.floats(), st.binary(max_size=4), st.none()
)
STATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(st.characters(codec="ascii", categories=["L"]), max_size=3), inner
        )
    ),
    max_leaves=8,
)


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(state=STATES)
def test_any_state_has_one_root_under_every_protocol(save: Save, state: object) -> None:
    roots = {root_of(save(state, protocol=protocol)) for protocol in (2, 4)}
    assert len(roots) == 1
    assert len(leaves_of(save([state, 1]))) == len(leaves_of(save(state))) + 1
