from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_digests import content_of, leaves_of
from each_row import each_row
from hostile_archives import Opcodes, archive, call, name, pickled, push, storage, tensor
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint import state_tree
from gate.checkpoint.pickle import reader
from gate.checkpoint.pickle.calls import OpaqueNode, StateError
from gate.checkpoint.pickle.reader import read_pickle
from gate.errors import EvidenceError


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(EvidenceError) as caught:
        content_of(archive(folder, data))
    assert caught.value.message.startswith("bad.pt: ")
    assert caught.value.exit_code == 3
    return caught.value.message.removeprefix("bad.pt: ")


class Command:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_command_in_a_pickle_is_refused_and_never_run(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    problem = refusal(tmp_path, pickle.dumps({"x": Command(canary)}, protocol))
    assert not canary.exists()
    assert problem == "calls 'posix.system' when it is loaded"


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 2**32, 9])
def test_a_frame_that_is_longer_than_the_pickle_is_refused_as_python_does(length: int) -> None:
    data = b"\x80\x04\x95" + length.to_bytes(8, "little") + b"K\x05."
    with pytest.raises((pickle.UnpicklingError, EOFError, OverflowError)):
        pickle.loads(data)  # noqa: S301 - made here
    with pytest.raises(StateError, match="truncated"):
        read_pickle(data)


def test_a_frame_that_fits_is_read() -> None:
    assert read_pickle(b"\x80\x04\x95" + (3).to_bytes(8, "little") + b"K\x05.") == 5


@each_row("opcode", [b"\x8e", b"\x8d", b"\x96", b"\x8b", b"B", b"X"])
def test_a_length_beyond_the_pickle_is_refused_as_python_does(opcode: bytes) -> None:
    width = 8 if opcode in {b"\x8e", b"\x8d", b"\x96"} else 4
    for length in (2 ** (8 * width) - 1, 2 ** (8 * width - 1), 100):
        data = b"\x80\x05" + opcode + length.to_bytes(width, "little") + b"abc."
        with pytest.raises((pickle.UnpicklingError, EOFError, OverflowError)):
            pickle.loads(data)  # noqa: S301 - made here
        with pytest.raises(StateError):
            read_pickle(data)


@pytest.mark.parametrize("name_of_it", ["eval", "exec", "__import__", "open"])
def test_a_builtin_that_acts_is_refused(tmp_path: Path, name_of_it: str) -> None:
    data = f"\x80\x02cbuiltins\n{name_of_it}\nX\x01\x00\x00\x00x\x85R.".encode("latin-1")
    problem = refusal(tmp_path, data)
    assert problem == f"calls 'builtins.{name_of_it}' when it is loaded"


def test_the_command_would_run_if_it_were_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickle.loads(pickle.dumps(Command(canary), 2))  # noqa: S301 - proves that the test above can fail
    assert canary.exists()


def test_a_call_of_a_call_is_opaque() -> None:
    value = read_pickle(pickled(call(call(name("m", "f")), 5)))
    assert isinstance(value, OpaqueNode)
    assert value.made_by == "an object"


@each_row(
    ("opcodes", "told"),
    [
        (tensor(offset=1), "a tensor reaches outside its storage"),
        (tensor(offset=-1), "a tensor's offset, shape and strides do not match"),
        (tensor(shape=(5,)), "a tensor reaches outside its storage"),
        (tensor(shape=(2,), strides=(4,)), "a tensor reaches outside its storage"),
        (
            tensor(shape=(2,), strides=(-1,)),
            "a tensor's strides has a value that is not a size from 0",
        ),
        (tensor(shape=(2**70,)), "a tensor's shape has a value that is not a size from 0"),
        (tensor(shape=("4",)), "a tensor's shape has a value that is not a size from 0"),
        (tensor(shape=(1,) * 65), "a tensor's shape is not a short tuple"),
        (tensor(shape=4), "a tensor's shape is not a short tuple"),
        (tensor(shape=(2, 2)), "a tensor's offset, shape and strides do not match"),
        (tensor(shape=(2**40,), strides=(0,)), "an expanded or strided tensor is too large"),
        (tensor(shape=(2**31,), strides=(0,)), "an expanded or strided tensor is too large"),
        (tensor(source=push(1)), "rebuilds a tensor from something that is not a storage"),
        (tensor(source=storage(elements=5)), "storage '0' has 16 bytes, not the 5 elements"),
        (tensor(source=storage(elements=3)), "storage '0' has 16 bytes, not the 3 elements"),
        (tensor(source=storage(elements=-4)), "storage '0' has an invalid size"),
        (tensor(source=storage(key="1")), "storage '1' is missing"),
        (tensor(source=storage(key="../data.pkl")), "storage '../data.pkl' is missing"),
        (tensor(source=storage(key=0)), "refers to an external object that is not a storage"),
        (tensor(source=storage(kind="QInt8Storage")), "holds a storage of type 'QInt8Storage'"),
        (Opcodes(push("0") + b"Q"), "refers to an external object that is not a storage"),
        (
            Opcodes(push(("storage", name("os", "FloatStorage"), "0", "cpu", 4)) + b"Q"),
            "holds a storage of type 'FloatStorage', which is not supported",
        ),
        (
            call(name("torch._utils", "_rebuild_tensor_v3"), storage(), 0, (4,), (1,), None, None),
            "holds a tensor of an unknown dtype",
        ),
        (
            call(name("torch._utils", "_rebuild_meta_tensor_no_storage"), 1),
            "holds a tensor on the meta device",
        ),
        (call(name("_codecs", "encode"), "\u20ac", "latin1"), "holds bytes in an invalid"),
        (Opcodes(name("m", "f") + b"NR"), "makes a call whose arguments are not a tuple"),
    ],
)
def test_tensors_and_calls_that_lie_are_refused(
    tmp_path: Path, opcodes: Opcodes, told: str
) -> None:
    assert told in refusal(tmp_path, pickled(opcodes))


def test_a_tensor_that_pickle_saved_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """The file is sound: that somebody damaged it must not be all that is said."""
    inner = call(name("torch.storage", "_load_from_bytes"), b"a file of torch.save")
    with pytest.raises(EvidenceError) as refused:
        content_of(archive(tmp_path, pickled(tensor(source=inner))))
    assert "save it with torch.save" in refused.value.hint


@each_row(
    ("data", "told"),
    [
        (b"", "is not a pickle of protocol 2 to 5"),
        (b"\x80\x02", "its pickle is truncated"),
        (b"\x80\x02\xff.", "uses the opcode 0xff, which no state needs"),
        (b"\x80\x02X\xff\xff\xff\xffa.", "its pickle is truncated"),
        (b"}.", "is not a pickle of protocol 2 to 5"),
        (b"\x80\x01}.", "is not a pickle of protocol 2 to 5"),
        (b"\x80\x02}.}.", "ends with unused values or trailing bytes"),
        (b"\x80\x02}}.", "ends with unused values or trailing bytes"),
        (b"\x80\x02(}.", "ends with unused values or trailing bytes"),
        (b"\x80\x02.", "ends with unused values or trailing bytes"),
        (b"\x80\x020.", "closes a group that it did not open"),
        (b"\x80\x02}(NNa.", "adds items to something that cannot hold any"),
        (b"\x80\x02a.", "takes a value from an empty stack"),
        (b"\x80\x02t.", "closes a group that it did not open"),
        (b"\x80\x02h\x01.", "recalls a value that it did not remember"),
        (b"\x80\x02NNa.", "adds items to something that cannot hold any"),
        (b"\x80\x02]NNs.", "sets keys in something that cannot have any"),
        (b"\x80\x02}(Nu.", "sets keys in something that cannot have any"),
        (b"\x80\x02]}b.", "sets attributes of something that cannot have any"),
        (b"\x80\x04NN\x93.", "refers to a name that is not text"),
        (b"\x80\x02(ios\nsystem\n.", "uses the opcode INST, which no state needs"),
        (b"\x80\x02\x82\x01.", "uses the opcode EXT1, which no state needs"),
        (b"\x80\x02Pname\n.", "uses the opcode PERSID, which no state needs"),
    ],
)
def test_a_malformed_pickle_is_refused(tmp_path: Path, data: bytes, told: str) -> None:
    assert told in refusal(tmp_path, data)


@given(st.binary(max_size=60))
def test_random_bytes_never_break_the_reader(data: bytes) -> None:
    with suppress(StateError):
        read_pickle(b"\x80\x02" + data + b".")


def test_every_cut_of_a_pickle_is_refused() -> None:
    whole = pickled((tensor(), "text", 5))
    read_pickle(whole)
    for end in range(len(whole)):
        with pytest.raises(StateError):
            read_pickle(whole[:end])


def test_too_many_opcodes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_OPCODES", 100_000)
    data = b"\x80\x02" + b"N0" * 1_000_000 + b"N."
    assert refusal(tmp_path, data) == "has more than 100,000 opcodes"


def test_a_memo_that_unfolds_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_tree, "MAX_VISITS", 10_000)
    doubled = b"".join(
        b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) + b"0" for n in range(100)
    )
    data = b"\x80\x02)q\x00" + b"0" + doubled + b"h\x64."
    assert refusal(tmp_path, data) == "holds more than 10,000 values"


@pytest.mark.parametrize("opcode", [b"\x85", b"]a"], ids=["tuples", "lists"])
def test_deep_nesting_is_refused_without_recursion(tmp_path: Path, opcode: bytes) -> None:
    depth = 50_000
    data = b"]" * depth + b"a" * (depth - 1) if opcode == b"]a" else b"N" + opcode * depth
    assert refusal(tmp_path, b"\x80\x02" + data + b".") == (
        "is nested deeper than 200 levels, or contains itself"
    )


def test_a_subclass_inside_itself_is_refused_without_recursion(tmp_path: Path) -> None:
    wrapper = b"ctorch._tensor\n_rebuild_from_type_v2\n"
    data = b"\x80\x02" + wrapper + b"(" + (wrapper + b"N(") * 5000 + b"t" * 5000 + b"tR."
    assert refusal(tmp_path, data) == "is nested deeper than 200 levels, or contains itself"


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    data = b"\x80\x02}(" + push("a") + push(1) + push("a") + push(2) + b"u."
    assert refusal(tmp_path, data) == "'/a' occurs twice"


def test_old_and_rare_forms_are_read(tmp_path: Path) -> None:
    rows = {
        "counter": call(name("collections", "Counter")),
        "pairs": call(name("collections", "OrderedDict"), (1, 2)),
        "counts": call(name("collections", "Counter"), 1, 2),
        "set": call(name("builtins", "set"), 1),
        "size": call(name("torch", "Size"), 1),
        "bytes": call(name("builtins", "bytes"), 1),
        "parameter": call(name("torch._utils", "_rebuild_parameter"), 1),
        "subclass": call(name("torch._tensor", "_rebuild_from_type_v2"), 1),
        "plain": call(name("torch._utils", "_rebuild_tensor"), storage(), 0, (2, 2), (2, 1)),
    }  # fmt: skip
    data = b"\x80\x02}(" + b"".join(push(key) + value for key, value in rows.items()) + b"u."
    found = leaves_of(archive(tmp_path, data))
    assert found["/plain"] == ("F32", (2, 2))
    assert {path.split("/")[1].partition("<")[0] for path in found} >= {"plain", "counts"}


def test_objects_made_with_keywords_keep_them(tmp_path: Path) -> None:
    value = Opcodes(name("m", "C") + push((1,)) + b"}" + push("k") + push(2) + b"s\x92")
    known = Opcodes(name("collections", "OrderedDict") + b")}\x92")
    found = leaves_of(archive(tmp_path, pickled((value, known))))
    assert set(found) == {"[0]", "[0]/~new[0]", "[0]/~keywords[0]/k", "[1]", "[1]/~keywords[0]"}


def test_a_state_that_is_no_map_is_kept(tmp_path: Path) -> None:
    value = Opcodes(b"}" + push(7) + b"b" + b"20")
    assert set(leaves_of(archive(tmp_path, pickled(value)))) == {"/~attributes[0]"}


def test_groups_can_be_dropped(tmp_path: Path) -> None:
    assert leaves_of(archive(tmp_path, b"\x80\x02(NN1" + push(3) + b".")) == {"": ("int", None)}
