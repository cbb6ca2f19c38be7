from __future__ import annotations

import collections
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from checkpoint_digests import content_of, leaves_of, root_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.codec.digests import tensor_digest
from gate.errors import EvidenceError
from gate.evidence import state_tree, tensor_bytes, torch_archive

pytestmark = pytest.mark.torch
WEIGHT = torch.arange(12, dtype=torch.float32).reshape(3, 4)
Save = Callable[..., Path]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def saved(state: object, name: str = "state.pt", protocol: int = 2) -> Path:
        torch.save(state, tmp_path / name, pickle_protocol=protocol)
        return tmp_path / name

    return saved


def row_major(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def stepped() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_every_tensor_has_the_digest_of_its_bytes(save: Save) -> None:
    model, _ = stepped()
    found = {item.name: item for item in content_of(save({"model": model.state_dict()})).tensors}
    assert len(found) == len(model.state_dict())
    for name, tensor in model.state_dict().items():
        dtype = "I64" if tensor.dtype is torch.int64 else "F32"
        full = f"checkpoint/model/{name}"
        assert found[full] == tensor_digest(full, dtype, tuple(tensor.shape), [row_major(tensor)])


def test_an_optimizer_gives_tensors_and_numbers(save: Save) -> None:
    found = leaves_of(save({"optimizer": stepped()[1].state_dict(), "epoch": 3, "best": True}))
    assert found["checkpoint/optimizer/state[0]/exp_avg"] == ("F32", (3, 4))
    assert found["checkpoint/optimizer/param_groups[0]/lr"] == ("F64", ())
    assert found["checkpoint/epoch"] == ("I64", ())
    assert found["checkpoint/best"] == ("BOOL", ())


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
    content = path.read_bytes()
    assert content.count(b"\x03\0\0\0cpu") == 1
    path.write_bytes(content.replace(b"\x03\0\0\0cpu", b"\x03\0\0\0gpu"))
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
    path = save({"w": WEIGHT})
    before, content = root_of(path), bytearray(path.read_bytes())
    content[content.index(row_major(WEIGHT))] ^= 1
    path.write_bytes(content)
    assert root_of(path) != before


DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "C64": torch.complex64, "C128": torch.complex128, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items(), ids=DTYPES)
def test_every_dtype_is_read(save: Save, name: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 3]).to(dtype)
    (found,) = content_of(save(tensor)).tensors
    assert found == tensor_digest("checkpoint", name, (3,), [row_major(tensor)])


SHAPES = {
    "scalar": torch.tensor(1.5),
    "empty": torch.zeros(0, 3),
    "transposed": WEIGHT.t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "diagonal": torch.arange(9.0).reshape(3, 3).diagonal(),
    "column": WEIGHT[:, 1],
    "large": torch.arange(600_000.0).reshape(600, 1000).t(),
    "one-row": WEIGHT.t()[1:2],
}


@pytest.mark.parametrize("tensor", SHAPES.values(), ids=SHAPES)
def test_strides_are_read_in_row_major_order(save: Save, tensor: torch.Tensor) -> None:
    (found,) = content_of(save(tensor)).tensors
    assert found == tensor_digest("checkpoint", "F32", tuple(tensor.shape), [row_major(tensor)])


def test_plain_values_and_containers(save: Save) -> None:
    state = {
        "list": [1, (2.5, {"x": False})], "set": {3, 1, 2}, "frozen": frozenset({1}), "big": 2**80,
        "bytes": b"ab", "array": bytearray(b"c"), "none": b"", 7: 1, 1.5: 2, True: 3, None: 4,
        "a/b~[": 5, "size": torch.Size([8]), "counts": collections.Counter("aab"),
        "default": collections.defaultdict(int, x=1), "complex": 1j, "neg": -(2**70),
    }  # fmt: skip
    found = leaves_of(save(state))
    assert {name: dtype for name, (dtype, _) in found.items()} == {
        "checkpoint/list[0]": "I64", "checkpoint/list[1][0]": "F64",
        "checkpoint/list[1][1]/x": "BOOL", "checkpoint/set[0]": "I64", "checkpoint/set[1]": "I64",
        "checkpoint/set[2]": "I64", "checkpoint/frozen[0]": "I64", "checkpoint/big": "TEXT",
        "checkpoint/bytes": "U8", "checkpoint/array": "U8", "checkpoint/none": "U8",
        "checkpoint[7]": "I64", "checkpoint[1.5]": "I64", "checkpoint[True]": "I64",
        "checkpoint[None]": "I64", "checkpoint/a~1b~0~2": "I64", "checkpoint/size[0]": "I64",
        "checkpoint/counts/a": "I64", "checkpoint/counts/b": "I64", "checkpoint/default/x": "I64",
        "checkpoint/complex/~arguments[0]": "F64", "checkpoint/complex/~arguments[1]": "F64",
        "checkpoint/neg": "TEXT",
    }  # fmt: skip
    for protocol in (4, 5):
        assert root_of(save(state, protocol=protocol)) == root_of(save(state))


def test_the_order_of_a_set_does_not_count(save: Save) -> None:
    first, second = {0: 1, 8: 1}.keys(), {8: 1, 0: 1}.keys()
    assert list(set(first)) != list(set(second))
    assert root_of(save(set(first))) == root_of(save(set(second)))


def test_texts_and_unknown_objects_are_counted(save: Save) -> None:
    state = {"name": "x", "empty": None, "when": Fraction(1, 2), "device": torch.device("cpu")}
    content = content_of(save(state))
    assert content.tensors == ()
    assert content.notes == (
        "state.pt: 4 texts and empty values not compared",
        "state.pt: 1 object(s) of 'fractions.Fraction' compared only by what is inside",
        "state.pt: 1 object(s) of 'torch.device' compared only by what is inside",
    )


class Holder:
    def __init__(self) -> None:
        self.weight = WEIGHT
        self.count = 3


class Box(collections.UserList[torch.Tensor]):
    pass


class Table(dict[str, torch.Tensor]):
    pass


class Row(list[torch.Tensor]):
    pass


class Named(collections.OrderedDict[str, torch.Tensor]):
    pass


def test_tensors_inside_unknown_objects_are_found(save: Save) -> None:
    state = {"h": Holder(), "t": Table(a=WEIGHT), "r": Row([WEIGHT]), "n": Named(a=WEIGHT)}
    found = leaves_of(save(state))
    assert found["checkpoint/h/~states[0]/weight"] == ("F32", (3, 4))
    assert found["checkpoint/h/~states[0]/count"] == ("I64", ())
    assert found["checkpoint/t/a"] == ("F32", (3, 4))
    assert found["checkpoint/r/~items[0]"] == ("F32", (3, 4))
    assert found["checkpoint/n/a"] == ("F32", (3, 4))


def test_attributes_of_a_dictionary_are_found(save: Save) -> None:
    state = collections.OrderedDict(w=WEIGHT)
    state.extra = torch.ones(2)  # type: ignore[attr-defined] # any OrderedDict takes attributes
    assert leaves_of(save(state)) == {
        "checkpoint/w": ("F32", (3, 4)),
        "checkpoint/~attributes[0]/extra": ("F32", (2,)),
    }


class Tagged(torch.Tensor):
    pass


def test_a_tensor_subclass_is_its_tensor(save: Save) -> None:
    tagged = WEIGHT.as_subclass(Tagged)
    tagged.note = 1  # type: ignore[attr-defined] # any tensor takes attributes
    noted = torch.nn.Parameter(WEIGHT)
    noted.note = 1  # type: ignore[attr-defined] # as above
    assert (
        root_of(save({"w": tagged})) == root_of(save({"w": noted})) == root_of(save({"w": WEIGHT}))
    )


def test_sparse_tensors_are_hashed_by_their_parts(save: Save) -> None:
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, 2]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
    )
    found = leaves_of(save({"s": sparse}))
    assert found["checkpoint/s/~arguments[1][0]"] == ("I64", (1, 2))
    assert found["checkpoint/s/~arguments[1][1]"] == ("F32", (2,))


def test_a_bare_storage_is_a_vector(save: Save) -> None:
    assert leaves_of(save({"s": WEIGHT.untyped_storage()})) == {"checkpoint/s": ("U8", (48,))}


def test_safetensors_and_torch_give_the_same_digests(save: Save, tmp_path: Path) -> None:
    from guest_folder import safetensors_bytes  # noqa: PLC0415 - only here

    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({"layer.w": ("F32", [3, 4], row_major(WEIGHT))}))
    assert content_of(path).tensors == content_of(save({"layer.w": WEIGHT})).tensors


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            {"w": torch.ones(2, dtype=torch.complex64).conj()},
            "only marked as conjugated or negated",
        ),
        (
            {"w": torch.ones(2, device="meta")},
            "a tensor on the meta device, which has no plain bytes",
        ),
        ({(1, 2): WEIGHT}, "has a key of type tuple, which has no plain name"),
        ({2**70: WEIGHT}, "has a key of type int, which has no plain name"),
        ({"a\x1b": WEIGHT}, r"key '/a\x1b' is above 900 characters or not printable"),
        ({"a" * 901: WEIGHT}, "is above 900 characters or not printable"),
        ({"w": torch.zeros(2, dtype=torch.float4_e2m1fn_x2)}, "holds a tensor of an unknown dtype"),
    ],
)
def test_what_cannot_be_compared_is_an_error(save: Save, state: object, told: str) -> None:
    path = save(state)
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.message.startswith("state.pt: ")
    assert told in caught.value.message


def test_the_legacy_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"w": WEIGHT}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(EvidenceError, match=r"the legacy \(non-zip\) torch format is not read"):
        content_of(path)


def test_torchscript_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as archive:
        archive.writestr("script/data.pkl", b"")
        archive.writestr("script/constants.pkl", b"")
    with pytest.raises(EvidenceError, match=r"script.pt: is a TorchScript archive, not a state"):
        content_of(tmp_path / "script.pt")


def test_a_state_nested_too_deep_is_refused(save: Save) -> None:
    state: object = WEIGHT
    for _ in range(190):
        state = [state]
    assert len(content_of(save(state)).tensors) == 1
    for _ in range(20):
        state = [state]
    with pytest.raises(EvidenceError, match="nested deeper than 200 levels, or contains itself"):
        content_of(save(state))


def test_a_state_that_contains_itself_is_refused(save: Save) -> None:
    state: list[object] = []
    state.append(state)
    with pytest.raises(EvidenceError, match="nested deeper than 200 levels, or contains itself"):
        content_of(save(state))


def test_a_state_that_unfolds_without_end_is_refused(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_tree, "MAX_VISITS", 10_000)
    state: object = []
    for _ in range(100):
        state = [state, state]
    with pytest.raises(EvidenceError, match="holds more than 10,000 values"):
        content_of(save(state))


def test_limits_on_what_is_hashed(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    many = save({"a": 1, "b": 2}, "many.pt")
    large = save({"a": WEIGHT}, "large.pt")
    two = save({"a": WEIGHT, "b": WEIGHT + 1}, "two.pt")
    wide = save({"a": torch.ones(1).expand(100)}, "wide.pt")
    monkeypatch.setattr(torch_archive, "MAX_LEAVES", 1)
    with pytest.raises(EvidenceError, match=r"many.pt: more than 1 tensors and numbers"):
        content_of(many)
    monkeypatch.undo()
    monkeypatch.setattr(torch_archive, "MAX_TENSOR_BYTES", 50)
    with pytest.raises(EvidenceError, match=r"two.pt: all tensors together exceed 50 bytes"):
        content_of(two)
    monkeypatch.setattr(tensor_bytes, "MAX_TENSOR_BYTES", 40)
    with pytest.raises(EvidenceError, match=r"large.pt: a tensor has more than 40 bytes"):
        content_of(large)
    monkeypatch.undo()
    monkeypatch.setattr(tensor_bytes, "MAX_STRIDED_ELEMENTS", 99)
    with pytest.raises(EvidenceError, match=r"wide.pt: an expanded or strided tensor is too large"):
        content_of(wide)


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
