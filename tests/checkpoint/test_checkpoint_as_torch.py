"""A file means to the program what it means to `torch.load`, or it is refused.

Somebody who can write a checkpoint would have it sealed with one content and loaded with another.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from as_torch import NOT_LOADED, REFUSED, THE_SAME, meaning
from each_row import each_row
from hostile_archives import HOOKS, Opcodes, call, name, push
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gate.checkpoint.pickle.tensor_attributes import TENSOR_ATTRIBUTES

pytestmark = pytest.mark.torch

GOOD, EVIL = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 6, 6, 6, 6)
UTILS = "torch._utils"
TENSOR = name("torch", "Tensor")


def mapped(pairs: Sequence[tuple[object, object]]) -> Opcodes:
    return Opcodes(b"}(" + b"".join(push(key) + push(value) for key, value in pairs) + b"u")


def listed(*items: object) -> Opcodes:
    return Opcodes(b"](" + b"".join(map(push, items)) + b"e")


def put(value: Opcodes, number: int) -> Opcodes:
    return Opcodes(value + b"q" + bytes([number]))


def get(number: int) -> Opcodes:
    return Opcodes(b"h" + bytes([number]))


def new(kind: Opcodes, *arguments: object) -> Opcodes:
    return Opcodes(kind + push(arguments) + b"\x81")


def stored(
    key: str = "0", kind: str = "FloatStorage", location: object = "cpu", elements: int = 4
) -> Opcodes:
    return Opcodes(push(("storage", name("torch", kind), key, location, elements)) + b"Q")


def arguments(source: Opcodes, *more: object, hooks: object = HOOKS) -> Opcodes:
    return push((source, 0, (4,), (1,), False, hooks, *more))


def weight(key: str = "0", *more: object, hooks: object = HOOKS) -> Opcodes:
    rebuild = name(UTILS, "_rebuild_tensor_v2")
    return Opcodes(rebuild + arguments(stored(key), *more, hooks=hooks) + b"R")


def parameter(tensor: Opcodes, state: object) -> Opcodes:
    return call(name(UTILS, "_rebuild_parameter_with_state"), tensor, True, HOOKS, state)


def typed(state: object, kind: Opcodes = TENSOR) -> Opcodes:
    rebuild = name(UTILS, "_rebuild_tensor_v2")
    inner = arguments(stored())
    return call(name("torch._tensor", "_rebuild_from_type_v2"), rebuild, kind, inner, state)


def with_attributes(attributes: Opcodes, pairs: Sequence[tuple[object, object]]) -> Opcodes:
    """A state dictionary that has attributes, which it is given before its items."""
    head = name("collections", "OrderedDict") + b")R" + attributes + b"b"
    items = b"".join(push(key) + push(value) for key, value in pairs)
    return Opcodes(head + b"(" + items + b"u")


def numbers(code: str, *states: tuple[object, ...], data: bytes = GOOD) -> Opcodes:
    """An array of NumPy whose dtype has these states."""
    text = call(name("_codecs", "encode"), data.decode("latin-1"), "latin1")
    dtype = call(name("numpy", "dtype"), code, False, True)
    for state in states:
        dtype = Opcodes(dtype + push(state) + b"b")
    kind = call(name("_codecs", "encode"), "b", "latin1")
    array = call(
        name("numpy.core.multiarray", "_reconstruct"), name("numpy", "ndarray"), (0,), kind
    )
    return Opcodes(array + push((1, (4,), dtype, False, text)) + b"b")


LITTLE = (3, "<", None, None, None, -1, -1, 0)
BIG = (3, ">", None, None, None, -1, -1, 0)


def written(
    folder: Path, state: Opcodes, records: Mapping[str, bytes] | None = None, *, keys: str = ""
) -> Path:
    """The archive; it has the storages that the state refers to, or those that are named."""
    known = {"0": GOOD, "1": EVIL}
    used = keys or "".join(key for key in known if bytes(push(key)) in bytes(state))
    members = {
        "m/data.pkl": b"\x80\x02" + state + b".",
        "m/version": b"3\n",
        "m/byteorder": b"little",
        **{f"m/data/{key}": known[key] for key in used},
        **(records or {}),
    }
    path = folder / "state.pt"
    with zipfile.ZipFile(path, "w") as target:
        for member, content in members.items():
            target.writestr(zipfile.ZipInfo(member), content)
    return path


ONE = mapped([("w", weight())])
COUNTER, SET = name("collections", "Counter"), name("builtins", "set")
OTHER = {
    "a parameter's state replaces its data": parameter(weight(), mapped([("data", weight("1"))])),
    "a parameter's slots replace its data": parameter(
        weight(), (None, mapped([("data", weight("1"))]))
    ),
    "a subclass's state replaces its data": typed(mapped([("data", weight("1"))])),
    "a state that turns signs around": typed(mapped([("real", weight("1"))])),
    "a state that makes another class of it": typed(
        mapped([("__class__", name("torch.nn.parameter", "Parameter"))])
    ),
    "a mark that is true and not True": weight("0", mapped([("neg", 1)])),
    "a mark that is False, and set": weight("0", mapped([("neg", False)])),
    "a mark that is given twice": weight("0", mapped([("neg", True), ("neg", True)])),
    "another dtype than the tensor's": call(
        name(UTILS, "_rebuild_device_tensor_from_cpu_tensor"),
        weight(), name("torch", "int8"), "cpu", False,
    ),
    "another dtype than the array's": call(
        name(UTILS, "_rebuild_device_tensor_from_numpy"),
        numbers("f4", LITTLE), name("torch", "int8"), "cpu", False,
    ),
    "a tensor on meta": Opcodes(
        name(UTILS, "_rebuild_tensor_v2") + arguments(stored(location="meta")) + b"R"
    ),
    "one storage under two types": with_attributes(
        mapped([("_metadata", stored(kind="IntStorage"))]), [("w", weight())]
    ),
    "hooks": weight(hooks=mapped([(1, name(UTILS, "_rebuild_tensor"))])),
    "hooks that are filled later": Opcodes(
        b"(" + put(HOOKS, 1) + weight(hooks=get(1)) + get(1)
        + push(1) + name(UTILS, "_rebuild_tensor") + b"st"
    ),
    "a Counter of a map that is filled later": Opcodes(
        b"}" + push("m") + COUNTER + put(Opcodes(b"}"), 5) + b"\x85Rs"
        + push("z") + get(5) + b"(" + push("w") + weight() + b"us"
    ),
    "a set of a list that is filled later": Opcodes(
        b"}" + push("m") + SET + put(listed(7), 5) + b"\x85Rs" + push("z") + get(5) + b"K\x08as"
    ),
    "an object of a state that is filled later": Opcodes(
        b"}" + push("m") + name("argparse", "Namespace") + b")\x81" + put(Opcodes(b"}"), 5) + b"bs"
        + push("z") + get(5) + push("w") + weight() + b"ss"
    ),
    "a dtype with two orders": numbers("f4", BIG, BIG),
    "a dtype without an order": numbers("f4"),
    "a tensor whose elements are set": Opcodes(
        call(
            name(UTILS, "_rebuild_qtensor"), stored(kind="QInt8Storage", elements=16), 0, (4,),
            (1,), push((name("torch", "per_tensor_affine"), Opcodes(b"G?" + bytes(7)), 0)), False,
            HOOKS,
        ) + push(0) + Opcodes(b"G?" + bytes(7)) + b"s"
    ),
    "keys that are one to a dictionary": mapped([(1, weight()), (True, weight("1"))]),
    "members that are one to a set": Opcodes(b"\x8f(K\x01\x88\x90"),
}  # fmt: skip


@each_row("state", OTHER.values(), ids=OTHER)
def test_what_torch_would_load_as_something_else_is_refused(tmp_path: Path, state: Opcodes) -> None:
    assert meaning(written(tmp_path, mapped([("w", state)]))) == REFUSED


OTHER_ARRAYS = {
    "a big-endian code": numbers("f4", BIG),
    "a code with its order": numbers(">f4", LITTLE),
    "a Counter by NEWOBJ": new(COUNTER, mapped([("w", weight())])),
    "a set by NEWOBJ": new(SET, listed(7, 8)),
}


@each_row("state", OTHER_ARRAYS.values(), ids=OTHER_ARRAYS)
def test_what_is_read_is_what_torch_gives_or_an_object(tmp_path: Path, state: Opcodes) -> None:
    assert meaning(written(tmp_path, mapped([("w", state)]))) in {THE_SAME, NOT_LOADED}


RECORDS = {
    "another pickle in capitals": {"m/DATA.PKL": b"\x80\x02" + ONE + b"."},
    "another pickle in capitals, and more": {"m/DATA.PKL": b"", "m/zz1": b"", "m/zz2": b""},
    "another order of bytes in capitals": {"m/BYTEORDER": b"big"},
    "a storage that nothing refers to": {"m/data/1": EVIL},
    "a storage in capitals": {"m/DATA/0": EVIL},
    "a storage with a digit of another script": {"m/data/\u0660": EVIL},
    "a folder of its own": {"q/data/0": EVIL},
    "a record of no folder": {"data.pkl": EVIL},
}  # fmt: skip


@each_row("records", RECORDS.values(), ids=RECORDS)
def test_records_that_torch_does_not_write_are_refused(
    tmp_path: Path, records: dict[str, bytes]
) -> None:
    assert meaning(written(tmp_path, ONE, records)) == REFUSED


def mostly(usual: object, *odd: object) -> st.SearchStrategy[object]:
    """Nine times in ten what torch writes."""
    return st.integers(0, 9).flatmap(lambda n: st.sampled_from(odd) if not n else st.just(usual))


@st.composite
def any_storage(draw: st.DrawFn) -> Opcodes:
    kind, elements = draw(
        st.sampled_from([("FloatStorage", 4), ("FloatStorage", 4), ("FloatStorage", 4),
                         ("IntStorage", 4), ("HalfStorage", 8), ("DoubleStorage", 2)])
    )  # fmt: skip
    key = str(draw(mostly("0", "1")))
    location = draw(mostly("cpu", "meta", "cpu:0", 5, b"cpu", listed("cpu")))
    location = Opcodes(b"C\x03cpu") if isinstance(location, bytes) else location
    return stored(key, kind, location, elements)


MARKS = mostly(
    None, Opcodes(b"}"), mapped([("neg", True)]), mapped([("neg", False)]), mapped([("neg", 1)]),
    mapped([("conj", True)]), mapped([("neg", True), ("neg", False)]), mapped([("x", True)]),
    listed("neg"),
)  # fmt: skip


@st.composite
def plain_tensors(draw: st.DrawFn) -> Opcodes:
    version = draw(mostly("_v2", "", "_v3"))
    shape, strides = draw(
        st.sampled_from([((4,), (1,)), ((2, 2), (2, 1)), ((2, 2), (1, 2)), ((), ()), ((2,), (2,))])
    )
    given = [draw(any_storage()), draw(mostly(0, 1, 2)), shape, strides]
    if version:
        filled = mapped([(1, name(UTILS, "_rebuild_tensor"))])
        given += [draw(mostly(False, True, 1, None)), draw(mostly(HOOKS, None, filled, 5))]
    if version == "_v3":
        given.append(name("torch", draw(st.sampled_from(["float32", "uint16", "int8"]))))
    marks = draw(MARKS)
    if version and marks is not None:
        given.append(marks)
    return call(name(UTILS, f"_rebuild_tensor{version}"), *given)


ATTRIBUTES = (
    "note", "note", "_no_weight_decay", "data", "grad", "requires_grad", "_backward_hooks", "real",
    "shape", "detach", "__class__", "T",
)  # fmt: skip


@st.composite
def states_of_tensors(draw: st.DrawFn) -> object:
    pairs = st.tuples(
        st.sampled_from(ATTRIBUTES), st.sampled_from([5, True, None, "x", HOOKS]) | plain_tensors()
    )
    state = mapped(draw(st.lists(pairs, max_size=2)))
    return draw(st.sampled_from([state, state, (state, None), (None, state), None]))


@st.composite
def other_tensors(draw: st.DrawFn) -> Opcodes:
    inner = draw(plain_tensors())
    gradient = draw(mostly(False, True, 1))
    way = draw(st.sampled_from(["parameter", "typed", "processor", "array", "object"]))
    if way == "parameter":
        return parameter(inner, draw(states_of_tensors()))
    if way == "typed":
        kinds = [TENSOR, TENSOR, name("torch.nn.parameter", "Parameter"), name("torch", "Size")]
        return typed(draw(states_of_tensors()), draw(st.sampled_from(kinds)))
    if way == "object":
        make = draw(st.sampled_from([call, new]))
        return make(name("torch.nn.parameter", "Parameter"), inner, gradient)
    dtype = name("torch", str(draw(mostly("float32", "int8", "bfloat16"))))
    device = draw(mostly("cpu", "meta"))
    if way == "processor":
        rebuild = name(UTILS, "_rebuild_device_tensor_from_cpu_tensor")
        return call(rebuild, inner, dtype, device, gradient)
    states = draw(mostly((LITTLE,), (BIG,), (), (LITTLE, BIG), ((3, "|", *LITTLE[2:]),)))
    array = numbers(str(draw(mostly("f4", ">f4", "i4", "<f4"))), *states)  # type: ignore[misc]
    rebuild = name(UTILS, "_rebuild_device_tensor_from_numpy")
    return draw(st.sampled_from([array, call(rebuild, array, dtype, device, gradient)]))


VALUES = plain_tensors() | other_tensors() | st.sampled_from([5, "x", None, True])
KEYS = mostly("w", "v", 1, True, Opcodes(b"G?\xf0" + bytes(6)), "u")


@st.composite
def containers(draw: st.DrawFn) -> Opcodes:
    """Lists, maps and what is made of them; what the memo has may be changed at any time."""
    steps: list[bytes] = []
    known: list[tuple[int, str]] = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["list", "map", "made", "changed"]))
        lists = [place for place, what in known if what == "list"]
        maps = [place for place, what in known if what == "map"]
        if kind == "changed" and known:
            place, what = draw(st.sampled_from(known))
            item = push(draw(VALUES))
            more = item + b"a" if what == "list" else push(draw(KEYS)) + item + b"s"
            made = Opcodes(get(place) + more)
        elif kind == "made" and known:
            place, what = draw(st.sampled_from(known))
            maker = SET if what == "list" else COUNTER
            made = draw(st.sampled_from([call, new]))(maker, get(place))
        elif kind == "map" or lists:
            made = mapped([(draw(KEYS), draw(VALUES)) for _ in range(draw(st.integers(0, 2)))])
            known.append((number + 10, "map"))
        else:
            made = listed(*draw(st.lists(st.sampled_from([5, 6, "x"]) | VALUES, max_size=2)))
            known.append((number + 10, "list"))
        del maps
        steps.append(push(f"k{number}") + put(made, number + 10))
    return Opcodes(b"}(" + b"".join(steps) + b"u")


@st.composite
def whole_states(draw: st.DrawFn) -> Opcodes:
    pairs = [(f"k{number}", draw(VALUES)) for number in range(draw(st.integers(1, 3)))]
    versions = mapped([("", mapped([("version", 1)]))])
    noted = draw(mostly(versions, draw(any_storage()), draw(VALUES)))
    return draw(
        st.sampled_from([
            mapped(pairs), with_attributes(mapped([("_metadata", noted)]), pairs),
            draw(containers()),
        ])
    )  # fmt: skip


@st.composite
def extra_records(draw: st.DrawFn) -> dict[str, bytes]:
    names = mostly(
        "m/version", "m/DATA.PKL", "m/Data/0", "m/byteorder", "m/ByteOrder", "m/data/1",
        "m/data/2", "M/data.pkl", "m/.format_version", "m/.data/serialization_id", "m/aa",
    )  # fmt: skip
    contents = st.sampled_from([b"3\n", b"1", b"big", b"little", EVIL, b"\x80\x02" + ONE + b"."])
    return {str(draw(names)): draw(contents) for _ in range(draw(st.integers(0, 2)))}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(state=whole_states(), records=extra_records())
def test_any_file_means_what_torch_makes_of_it_or_is_refused(
    tmp_path: Path, state: Opcodes, records: dict[str, bytes]
) -> None:
    event(meaning(written(tmp_path, state, records)))


def test_most_that_torch_writes_is_read(tmp_path: Path) -> None:
    """The law above would hold as well if everything were refused."""
    plain = [
        ONE,
        mapped([("w", parameter(weight(), mapped([("note", 5)])))]),
        mapped([("w", weight("0", mapped([("neg", True)]))), ("v", weight("1"))]),
        mapped([("w", typed(mapped([("note", 5)]), name("torch.nn.parameter", "Parameter")))]),
        mapped([("w", numbers("f4", LITTLE)), ("v", call(COUNTER, mapped([("a", 2)])))]),
    ]
    assert [meaning(written(tmp_path, state)) for state in plain] == [THE_SAME] * len(plain)


def test_every_attribute_of_a_tensor_is_known() -> None:
    own = {name for name in dir(torch.Tensor) if not name.startswith("__")}
    assert own <= TENSOR_ATTRIBUTES


class Packed(torch.nn.Parameter):
    """As the 4-bit parameters of bitsandbytes: its state says its data once more."""

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "data": self.data, "requires_grad": self.requires_grad}


class Wrapped(torch.Tensor):
    """A tensor of other tensors, as those of torchao and DTensor are."""

    _local_tensor: torch.Tensor

    @staticmethod
    def __new__(cls: type[Wrapped], local: torch.Tensor) -> Wrapped:  # noqa: PYI034 - as torch's own
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, local.shape, dtype=local.dtype)
        made._local_tensor = local
        return made

    @classmethod
    def __torch_dispatch__(cls, *called: object, **more: object) -> object:
        raise NotImplementedError


def what_libraries_save() -> dict[str, object]:
    """Parameters and tensors with attributes and classes, as real code writes them."""
    megatron = torch.nn.Parameter(torch.ones(2))
    megatron.tensor_model_parallel, megatron.partition_dim = True, 0  # type: ignore[attr-defined]
    megatron._no_weight_decay = True  # type: ignore[attr-defined]
    tagged = torch.ones(2)
    tagged._dynamo_static_input_type = "guarded"  # type: ignore[attr-defined]
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    jagged._get_max_seqlen()  # type: ignore[attr-defined] # which it keeps
    empty = torch.zeros(0)
    model = torch.nn.BatchNorm1d(2)
    model.register_buffer("mine", torch.nn.Buffer(torch.ones(2)))
    return {
        "megatron": megatron,
        "compiled": tagged,
        "packed": Packed(torch.arange(4, dtype=torch.uint8), requires_grad=False),
        "wrapped": Wrapped(torch.ones(2)),
        "jagged": jagged,
        "empty under two types": [empty, empty.view(torch.int32)],
        "module": model,
        "optimizer": torch.optim.AdamW(model.parameters(), fused=False),
        "state": model.state_dict(),
        "array": np.arange(3, dtype=np.float32),
        "scalar": np.float64(2.5),
        "version": torch.__version__,
        "sparse": torch.eye(2).to_sparse(),
    }


SAVED = (
    "megatron", "compiled", "packed", "wrapped", "jagged", "empty under two types", "module",
    "optimizer", "state", "array", "scalar", "version", "sparse",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@each_row("which", SAVED)
@each_row("protocol", [2, 4])
def test_what_libraries_save_is_read(tmp_path: Path, which: str, protocol: int) -> None:
    path = tmp_path / "state.pt"
    torch.save({"x": what_libraries_save()[which]}, path, pickle_protocol=protocol)
    assert meaning(path) in {THE_SAME, NOT_LOADED}
