"""Tensors that are more than elements in a row, and objects of all kinds."""

from __future__ import annotations

import argparse
import collections
import datetime as dt
import enum
import pathlib
import warnings

import pytest
import torch
from checkpoint_digests import content_of, digests_of, leaves_of, root_of, small_tensor
from hostile_archives import HOOKS, Opcodes, archive, call, name, pickled, push, storage
from torch_states import WEIGHT, Save, row_major

from gate.errors import EvidenceError

pytestmark = pytest.mark.torch


def test_a_sparse_tensor_is_its_indices_and_values(save: Save) -> None:
    sparse = torch.eye(3).to_sparse()
    assert leaves_of(save({"s": sparse})) == {
        "/s": ("object", None), "/s/size[0]": ("int", None), "/s/size[1]": ("int", None),
        "/s/indices": ("I64", (2, 3)), "/s/values": ("F32", (3,)),
    }  # fmt: skip
    assert root_of(save({"s": sparse})) != root_of(save({"s": torch.eye(4).to_sparse()}))
    assert root_of(save({"s": sparse})) != root_of(save({"s": torch.diag(WEIGHT[0]).to_sparse()}))
    parameter = torch.nn.Parameter(sparse)
    assert root_of(save({"s": parameter})) == root_of(save({"s": sparse}))


def test_an_uncoalesced_tensor_is_refused_by_name(save: Save) -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2), check_invariants=True
    )
    with pytest.raises(EvidenceError, match="holds a sparse tensor that is not coalesced") as told:
        content_of(save(twice))
    assert told.value.hint == "Save tensor.coalesce()."
    assert leaves_of(save(twice.coalesce()))["/values"] == ("F32", (1,))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_compressed_layouts_are_read(save: Save, layout: str) -> None:
    make = getattr(WEIGHT[:2].clone(), f"to_sparse_{layout}")
    found = leaves_of(save(make((2, 2)) if layout.startswith("b") else make()))
    names = ("row_offsets", "columns") if layout.endswith("r") else ("column_offsets", "rows")
    assert {"/" + part for part in (*names, "values")} <= set(found)


def quantized() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
        return {
            "tensor": torch.quantize_per_tensor(WEIGHT, 0.1, 2, torch.qint8),
            "channels": torch.quantize_per_channel(WEIGHT, scales, zeros, 0, torch.quint8),
            "wide": torch.quantize_per_tensor(WEIGHT, 0.1, 2, torch.qint32),
        }


def test_a_quantized_tensor_is_its_integers_and_scales(save: Save) -> None:
    tensors = quantized()
    found = digests_of(save(tensors))
    expected = row_major(tensors["tensor"].int_repr())
    assert found["/tensor/int_repr"] == small_tensor("I8", (3, 4), expected)
    kinds = leaves_of(save(tensors))
    assert kinds["/tensor/scale"] == ("float", None)
    assert kinds["/channels/scale"] == ("F64", (3,))
    assert kinds["/channels/axis"] == ("int", None)
    assert kinds["/wide/int_repr"] == ("I32", (3, 4))
    other = torch.quantize_per_tensor(WEIGHT, 0.1, 3, torch.qint8)
    assert root_of(save(tensors["tensor"])) != root_of(save(other))


def test_quantized_tensors_are_the_same_in_legacy_files(save: Save, tmp_path: pathlib.Path) -> None:
    torch.save(quantized(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert root_of(tmp_path / "old.pt") == root_of(save(quantized()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_their_values_and_offsets(save: Save) -> None:
    rows = [torch.ones(2), torch.ones(3)]
    plain = leaves_of(save(torch.nested.nested_tensor(rows)))
    assert plain["/values"] == ("F32", (5,))
    assert plain["/sizes"] == ("I64", (2, 1))
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    assert leaves_of(save(jagged)) == {
        "": ("object", None), "/values": ("F32", (5,)), "/offsets": ("I64", (3,)),
        "/lengths": ("none", None), "/ragged_idx": ("int", None),
    }  # fmt: skip


def test_two_numbers_in_a_byte_are_read(save: Save) -> None:
    packed = torch.arange(4, dtype=torch.uint8).view(2, 2)
    found = digests_of(save(packed.view(torch.float4_e2m1fn_x2)))
    assert found == {"": small_tensor("F4_X2", (2, 2), bytes(range(4)))}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.complex32])
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_marks_of_other_signs_are_resolved(save: Save, dtype: torch.dtype) -> None:
    numbers = torch.complex(WEIGHT, -WEIGHT).to(dtype)
    numbers[0, 0] = torch.tensor(complex(float("nan"), -0.0))
    for marked in (numbers.conj(), numbers.conj().t(), numbers.conj()[1:, ::2]):
        assert marked.is_conj()
        assert root_of(save(marked)) == root_of(save(marked.resolve_conj()))
        assert root_of(save(marked)) != root_of(save(marked.conj().resolve_conj()))
    if dtype is not torch.complex32:
        negated = numbers.conj().imag
        assert negated.is_neg()
        assert root_of(save(negated)) == root_of(save(negated.resolve_neg()))


def marked(dtype_storage: str, mark: str) -> Opcodes:
    marks = Opcodes(b"}" + push(mark) + b"\x88s")
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    return call(rebuild, storage(kind=dtype_storage), 0, (4,), (1,), False, HOOKS, marks)


@pytest.mark.parametrize(
    ("kind", "mark", "told"),
    [
        ("IntStorage", "neg", "holds a tensor of I32 that is marked as conjugated or negated"),
        ("FloatStorage", "conj", "holds a tensor of F32 that is marked as conjugated or negated"),
        ("FloatStorage", "zero", "holds a tensor that is marked with 'zero', which is unknown"),
    ],
)
def test_other_marks_are_refused(tmp_path: pathlib.Path, kind: str, mark: str, told: str) -> None:
    with pytest.raises(EvidenceError, match=told):
        content_of(archive(tmp_path, pickled(marked(kind, mark))))


COO = call(name("torch.serialization", "_get_layout"), "torch.sparse_coo")
ODD = call(name("torch.serialization", "_get_layout"), "torch.odd")
SPARSE, QUANTIZED = name("torch._utils", "_rebuild_sparse_tensor"), "_rebuild_qtensor"
AFFINE = push((name("torch", "per_tensor_affine"), 1, 0))


@pytest.mark.parametrize(
    ("opcodes", "told"),
    [
        (call(SPARSE, ODD, (1, 2, (3,))), "holds a sparse tensor of an unknown layout"),
        (call(SPARSE, COO, 5), "holds a sparse tensor of an unknown layout"),
        (
            call(name("torch._utils", QUANTIZED), storage(), 0, (4,), (1,), AFFINE),
            "holds a quantized tensor whose storage is not quantized",
        ),
        (
            call(name("torch._utils", QUANTIZED), storage(kind="QUInt4x2Storage"), 0, (4,)),
            "holds a storage of type 'QUInt4x2Storage', which is not supported",
        ),
        (
            call(name("torch._utils", QUANTIZED), storage(kind="QInt32Storage"), 0, (4,), (1,), 5),
            "holds a quantized tensor of an unknown scheme",
        ),
        (
            call(name("torch._utils", QUANTIZED), storage(kind="QInt32Storage"), 0, (4,), (1,)),
            "holds a quantized tensor of an unknown scheme",
        ),
    ],
)
def test_special_tensors_that_lie_are_refused(
    tmp_path: pathlib.Path, opcodes: Opcodes, told: str
) -> None:
    with pytest.raises(EvidenceError, match=told):
        content_of(archive(tmp_path, pickled(opcodes)))


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


OBJECTS: dict[str, tuple[object, object]] = {
    "deque": (collections.deque([1, 2], 5), collections.deque([2, 1], 5)),
    "datetime": (dt.date(2024, 1, 2), dt.date(2024, 1, 3)),
    "delta": (dt.timedelta(3), dt.timedelta(4)),
    "path": (pathlib.PurePosixPath("a/b"), pathlib.PurePosixPath("a/c")),
    "enum": (Mode.FAST, Mode.SLOW),
    "slice": (slice(1, 2), slice(1, 3)),
    "namespace": (argparse.Namespace(lr=1.0), argparse.Namespace(lr=2.0)),
    "generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
    "dtype": (torch.float32, torch.float16),
    "device": (torch.device("cpu"), torch.device("cuda:1")),
}


@pytest.mark.parametrize("which", OBJECTS)
def test_objects_are_the_same_under_every_protocol(save: Save, which: str) -> None:
    one, other = OBJECTS[which]
    roots = {root_of(save({"x": one}, protocol=protocol)) for protocol in (2, 3, 4, 5)}
    assert len(roots) == 1
    assert root_of(save({"x": other})) not in roots


def test_a_whole_module_is_its_tensors_and_facts(save: Save) -> None:
    def made(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))

    found = leaves_of(save(made(0)))
    tensors = [path for path, (kind, _) in found.items() if kind == "F32"]
    assert sorted(path.rpartition("/")[2] for path in tensors) == ["bias", "weight"]
    assert root_of(save(made(0))) == root_of(save(made(0), "other.pt", protocol=4))
    assert root_of(save(made(0))) != root_of(save(made(1)))
    assert root_of(save(made(0))) != root_of(save(made(0).eval()))
