from __future__ import annotations

import collections
from decimal import Decimal
from pathlib import Path

import pytest
import torch
from checkpoint_digests import content_of, digests_of, leaves_of, root_of, small_tensor
from harness_folder import safetensors_bytes
from torch_states import WEIGHT, Save, row_major

from gate.checkpoint.parts import NOTES

pytestmark = pytest.mark.torch


DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "C64": torch.complex64, "C128": torch.complex128, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items(), ids=DTYPES)
def test_every_dtype_is_read(save: Save, name: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 3]).to(dtype)
    assert digests_of(save(tensor)) == {"": small_tensor(name, (3,), row_major(tensor))}


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
    expected = small_tensor("F32", tuple(tensor.shape), row_major(tensor))
    assert digests_of(save(tensor)) == {"": expected}


def test_plain_values_and_containers(save: Save) -> None:
    state = {
        "list": [1, (2.5, {"x": False})], "set": {3, 1, 2}, "frozen": frozenset({1}), "big": 2**80,
        "bytes": b"ab", "array": bytearray(b"c"), "none": b"", 7: 1, 1.5: 2, True: 3, None: 4,
        "a/b~[{<": 5, "size": torch.Size([8]), "counts": collections.Counter("aab"),
        "default": collections.defaultdict(int, x=1), "complex": 1j, "neg": -(2**70),
        "pairs": {(1, 2)},
    }  # fmt: skip
    found = leaves_of(save(state))
    assert {name: kind for name, (kind, _) in found.items()} == {
        "/list[0]": "int", "/list[1][0]": "float", "/list[1][1]/x": "bool",
        "/set<0>": "int", "/set<1>": "int", "/set<2>": "int", "/frozen<0>": "int",
        "/big": "int", "/neg": "int", "/bytes": "bytes", "/array": "bytes", "/none": "bytes",
        "{7}": "int", "{1.5}": "int", "{True}": "int", "{None}": "int",
        "/a~1b~0~2~3~4": "int", "/size[0]": "int", "/counts/a": "int", "/counts/b": "int",
        "/default/x": "int", "/complex": "object", "/complex/~arguments[0]": "float",
        "/complex/~arguments[1]": "float", "/pairs<0>[0]": "int", "/pairs<0>[1]": "int",
    }  # fmt: skip
    for protocol in (4, 5):
        assert root_of(save(state, protocol=protocol)) == root_of(save(state))


def test_the_order_of_a_set_does_not_count(save: Save) -> None:
    first, second = {0: 1, 8: 1}.keys(), {8: 1, 0: 1}.keys()
    assert list(set(first)) != list(set(second))
    assert root_of(save(set(first))) == root_of(save(set(second)))


def test_texts_and_unknown_objects_count(save: Save) -> None:
    state: dict[str, object] = {
        "name": "x",
        "empty": None,
        "when": Decimal(1),
        "none": [],
        "of": dict,
        "no": set(),
    }
    assert leaves_of(save(state)) == {
        "/name": ("text", None), "/empty": ("none", None), "/when": ("object", None),
        "/when/~arguments[0]": ("text", None), "/none": ("empty sequence", None),
        "/of": ("name", None), "/no": ("empty set", None),
    }  # fmt: skip
    assert root_of(save(state)) != root_of(save({**state, "name": "y"}))
    assert root_of(save([])) != root_of(save({}))


class Holder:
    def __init__(self) -> None:
        self.weight = WEIGHT
        self.count = 3


class Table(dict[str, torch.Tensor]):
    pass


class Row(list[torch.Tensor]):
    pass


class Named(collections.OrderedDict[str, torch.Tensor]):
    pass


def test_tensors_inside_unknown_objects_are_found(save: Save) -> None:
    state = {"h": Holder(), "t": Table(a=WEIGHT), "r": Row([WEIGHT]), "n": Named(a=WEIGHT)}
    found = leaves_of(save(state))
    assert found["/h/~states[0]/weight"] == ("F32", (3, 4))
    assert found["/h/~states[0]/count"] == ("int", None)
    assert found["/t/a"] == ("F32", (3, 4))
    assert found["/r/~items[0]"] == ("F32", (3, 4))
    assert found["/n/a"] == ("F32", (3, 4))


def test_attributes_of_a_dictionary_are_found(save: Save) -> None:
    state = collections.OrderedDict(w=WEIGHT)
    state.extra = torch.ones(2)  # type: ignore[attr-defined] # any OrderedDict takes attributes
    assert leaves_of(save(state)) == {
        "/w": ("F32", (3, 4)),
        "/~attributes[0]/extra": ("F32", (2,)),
    }


class Tagged(torch.Tensor):
    pass


def test_class_and_attributes_of_a_tensor_stand_beside_it(save: Save) -> None:
    tagged = WEIGHT.as_subclass(Tagged)
    tagged.note = 1  # type: ignore[attr-defined] # any tensor takes attributes
    noted = torch.nn.Parameter(WEIGHT)
    noted.note = 1  # type: ignore[attr-defined] # as above
    weight = {"/w": ("F32", (3, 4))}
    note = {"/w/~attributes[0]/note": ("int", None)}
    assert leaves_of(save({"w": noted})) == weight | note
    assert leaves_of(save({"w": tagged})) == weight | note | {"/w/~class": ("name", None)}
    plain = digests_of(save({"w": WEIGHT}))
    assert plain.items() <= digests_of(save({"w": tagged})).items()


def test_what_torch_compile_notes_of_a_tensor_is_left_out_and_told(save: Save) -> None:
    noted = WEIGHT.clone()
    noted._dynamo_static_input_type = "guarded"  # type: ignore[attr-defined] # as above
    noted._dynamo_dynamic_indices = {0, 1}  # type: ignore[attr-defined] # as above
    found = content_of(save({"w": noted}))
    assert found.roots == content_of(save({"w": WEIGHT})).roots
    assert [(rule.reason, rule.leaves) for rule in found.excluded] == [(NOTES, 3)]


def test_an_empty_view_behind_its_storage_is_empty(save: Save) -> None:
    view = torch.zeros(0, 2)[:, 1]
    assert view.storage_offset() > view.untyped_storage().nbytes()
    assert digests_of(save(view)) == {"": small_tensor("F32", (0,), b"")}


def test_an_empty_state_is_an_empty_map_in_both_formats(save: Save, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(safetensors_bytes({}))
    assert leaves_of(save({})) == {"": ("empty map", None)}
    assert root_of(tmp_path / "w.safetensors") == root_of(save({}))


def test_a_bare_storage_is_a_vector(save: Save) -> None:
    assert leaves_of(save({"s": WEIGHT.untyped_storage()})) == {"/s": ("U8", (48,))}


def test_safetensors_and_torch_give_the_same_digests(save: Save, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(safetensors_bytes({"layer.w": ("F32", [3, 4], row_major(WEIGHT))}))
    assert root_of(path) == root_of(save({"layer.w": WEIGHT}))
