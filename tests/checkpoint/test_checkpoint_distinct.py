"""Different states that are written alike, and one state that is written differently."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from checkpoint_digests import content_of, leaves_of, root_of
from each_row import each_row
from hostile_archives import Opcodes, archive, call, name, pickled, push, tensor

from gate.checkpoint import state_tree
from gate.errors import EvidenceError


def root(folder: Path, opcodes: Opcodes) -> str:
    return root_of(archive(folder, pickled(opcodes)))


def made(arguments: object = (), *, keywords: Opcodes | None = None) -> Opcodes:
    """An object, with keywords when they are given."""
    ending = b"\x81" if keywords is None else keywords + b"\x92"
    return Opcodes(name("m", "C") + push(arguments) + ending)


ONE = Opcodes(b"}" + push("k") + push(1) + b"s")
VERSIONS = Opcodes(b"}" + push("layer") + b"}" + push("version") + push(2) + b"ss")
DIFFERENT = {
    "a class in a module, and a class in a class": (
        call(name("a.b", "C")),
        call(name("a", "b.C")),
    ),
    "a name in a module, and a name in a class": (name("a.b", "c"), name("a", "b.c")),
    "long names that differ at their ends": (
        call(name("m", "x" * 300 + "a")),
        call(name("m", "x" * 300 + "b")),
    ),
    "keywords and a state": (
        made(keywords=ONE),
        Opcodes(made(keywords=Opcodes(b"}")) + ONE + b"b"),
    ),
    "what else stands beside the versions of a state_dict, and nothing": (
        Opcodes(b"}}" + push("_metadata") + push(7) + b"sb"),
        Opcodes(b"}"),
    ),
    "a call of a class, and its __new__ alone": (
        call(name("m", "C"), 1),
        made((1,)),
    ),
    "arguments and items": (made((1,)), Opcodes(made() + push(1) + b"a")),
    "a state of a map that is a map, and its value": (
        Opcodes(b"}}" + push("state") + push(7) + b"sb"),
        Opcodes(b"}" + push(7) + b"b"),
    ),
    "a key of text, and a key that is a number": (
        Opcodes(b"}" + push("1") + b"Ns"),
        Opcodes(b"}" + push(1) + b"Ns"),
    ),
    "a number and a truth value as keys": (Opcodes(b"}K\x01Ns"), Opcodes(b"}\x88Ns")),
    "text and bytes as keys": (Opcodes(b"}" + push("a") + b"Ns"), Opcodes(b"}C\x01aNs")),
    "a key that looks like an argument": (
        Opcodes(b"}" + push("~arguments[0]") + b"Ns"),
        made((None,)),
    ),
    "a key with a slash, and two levels": (
        Opcodes(b"}" + push("a/b") + b"Ns"),
        Opcodes(b"}" + push("a") + b"}" + push("b") + b"Nss"),
    ),
    "a list and a map of numbers": (Opcodes(b"]Na"), Opcodes(b"}K\x00Ns")),
    "a list and a set": (Opcodes(b"]Na"), Opcodes(b"\x8f(N\x90")),
    "nothing and an empty list": (Opcodes(b"N"), Opcodes(b"]")),
    "an empty list and an empty map": (Opcodes(b"]"), Opcodes(b"}")),
    "zero and false": (Opcodes(b"K\x00"), Opcodes(b"\x89")),
    "one, as number and as text": (push(1), push("1")),
    "text and bytes": (push("a"), Opcodes(b"C\x01a")),
    "one name and the text of it": (name("m", "c"), push("m:c")),
    "zeros of two signs": (Opcodes(b"G" + b"\0" * 8), Opcodes(b"G\x80" + b"\0" * 7)),
    "two kinds of NaN": (
        Opcodes(b"G\x7f\xf8" + b"\0" * 6),
        Opcodes(b"G\x7f\xf8" + b"\0" * 5 + b"\1"),
    ),
    "a set in a set, and its members": (
        Opcodes(b"\x8f((" + push(1) + b"\x91\x90"),
        Opcodes(b"\x8f(" + push(1) + b"\x90"),
    ),
}
THE_SAME = {
    "a list and a tuple": (Opcodes(b"]Na"), Opcodes(b"N\x85")),
    "a number in one byte and in four": (Opcodes(b"K\x05"), Opcodes(b"J\x05\0\0\0")),
    "bytes and a byte array": (
        Opcodes(b"C\x01a"),
        call(name("builtins", "bytearray"), Opcodes(b"C\x01a")),
    ),
    "tuples in a set, in two orders": (
        Opcodes(b"\x8f(" + push(("a", 1)) + push(("b", 0)) + b"\x90"),
        Opcodes(b"\x8f(" + push(("b", 0)) + push(("a", 1)) + b"\x90"),
    ),
    "objects in a set, in two orders": (
        Opcodes(b"\x8f(" + made((1,)) + made((2,)) + b"\x90"),
        Opcodes(b"\x8f(" + made((2,)) + made((1,)) + b"\x90"),
    ),
    "sets in a set, in two orders": (
        Opcodes(b"\x8f((" + push(1) + push(2) + b"\x91(" + push(3) + b"\x91\x90"),
        Opcodes(b"\x8f((" + push(3) + b"\x91(" + push(2) + push(1) + b"\x91\x90"),
    ),
    "names of Python 2": (name("__builtin__", "unicode"), name("builtins", "str")),
    "a version that state_dict() notes": (
        Opcodes(b"}}" + push("_metadata") + VERSIONS + b"sb"),
        Opcodes(b"}"),
    ),
}


@each_row("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_different_states_have_different_roots(
    tmp_path: Path, pair: tuple[Opcodes, Opcodes]
) -> None:
    assert root(tmp_path, pair[0]) != root(tmp_path, pair[1])


@each_row("pair", THE_SAME.values(), ids=THE_SAME)
def test_what_is_no_part_of_a_state_does_not_count(
    tmp_path: Path, pair: tuple[Opcodes, Opcodes]
) -> None:
    assert root(tmp_path, pair[0]) == root(tmp_path, pair[1])


@each_row("value", [int, str, range(3), KeyError, b"ab", {1.5, (2, "x")}])
def test_one_value_has_one_root_under_every_protocol(tmp_path: Path, value: object) -> None:
    roots = {root_of(archive(tmp_path, pickle.dumps(value, protocol))) for protocol in (2, 3, 4, 5)}
    assert len(roots) == 1


def test_keys_that_are_no_text_are_written_by_their_kind(tmp_path: Path) -> None:
    state = {b"a}": 1, -7: 2, 2.5: 3, None: 4, False: 5, "": 6}
    found = leaves_of(archive(tmp_path, pickle.dumps(state, 4)))
    assert set(found) == {"{x617d}", "{-7}", "{2.5}", "{None}", "{False}", "/"}


@each_row(
    ("opcodes", "told"),
    [
        (
            Opcodes(b"\x8f(" + tensor() + b"\x90"),
            "holds a set of tensors, whose order depends on memory addresses",
        ),
        (Opcodes(b"(" * 9 + b"N" + b"\x91" * 9), "nests sets deeper than 8 levels"),
        (name("a:b", "c"), "refers to a module with an impossible name"),
        (
            Opcodes(b"}(" + push(1) + b"N" + push(True) + b"Nu"),
            "has a map with two equal keys, and only one of them is loaded",
        ),
        (
            Opcodes(b"\x8f(" + push((1,)) + push((True,)) + b"\x90"),
            "has a set with two equal members, and only one of them is loaded",
        ),
        (
            Opcodes(b"}B\0\2\0\0" + b"a" * 512 + b"Ns"),
            "has a key of type bytes, which cannot be a name",
        ),
    ],
)
def test_what_has_no_order_or_no_name_is_refused(
    tmp_path: Path, opcodes: Opcodes, told: str
) -> None:
    path = archive(tmp_path, pickled(opcodes))
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.message == f"bad.pt: {told}"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("MAX_VALUE_BYTES", "holds more than 100 bytes of texts and numbers"),
        ("MAX_PATH_CHARACTERS", "has paths of more than 100 characters together"),
    ],
)
def test_one_value_in_many_places_is_refused_when_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, told: str
) -> None:
    monkeypatch.setattr(state_tree, limit, 100)
    data = Opcodes(b"}" + push("k" * 20) + b"](" + push("v" * 20) + b"q\x00" + b"h\x00" * 9 + b"es")
    with pytest.raises(EvidenceError) as caught:
        content_of(archive(tmp_path, pickled(data)))
    assert caught.value.message == f"bad.pt: {told}"
