"""Two states leaf by leaf: what is equal, what is not, and what stands first."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row
from saved_tensors import (
    Stored,
    difference_of,
    floats,
    only,
    raw,
    write_state,
)

from gate.checkpoint.leaves import HeldBytes, StateContent, TensorLeaf, ValueLeaf
from gate.comparison.state_difference import LeafChange
from gate.comparison.states import compare_states, shown_value
from gate.errors import EvidenceError


def _content(*leaves: TensorLeaf | ValueLeaf) -> StateContent:
    return StateContent(shown="state", format="by hand", leaves=leaves)


def _int(path: str, value: int) -> ValueLeaf:
    return ValueLeaf(path, "int", value.to_bytes(9, "little", signed=True))


def test_equal_states_differ_in_nothing(tmp_path: Path) -> None:
    one = write_state(tmp_path / "one", a=floats(1, 2), b=raw("I64", 3))
    other = write_state(tmp_path / "other", b=raw("I64", 3), a=floats(1, 2))
    found = difference_of(one, other)
    assert found.equal
    assert found.equal_tensors == 2


def test_missing_extra_retyped_and_reshaped_leaves_are_named(tmp_path: Path) -> None:
    one = write_state(tmp_path / "one", a=floats(1, 2), b=raw("I64", 3), c=floats(1))
    other = write_state(
        tmp_path / "other", a=Stored("F32", (2, 1), b"\0" * 8), b=raw("U64", 3), d=floats(1)
    )
    found = difference_of(one, other).differences
    assert [(one.path, one.change, one.left, one.right) for one in found] == [
        ("/a", LeafChange.RESHAPED, "F32[2]", "F32[2, 1]"),
        ("/b", LeafChange.RETYPED, "I64[1]", "U64[1]"),
        ("/c", LeafChange.MISSING, "F32[1]", ""),
        ("/d", LeafChange.EXTRA, "", "F32[1]"),
    ]


def test_structure_then_broken_numbers_then_the_largest_difference_come_first(
    tmp_path: Path,
) -> None:
    nan = float("nan")
    one = write_state(tmp_path / "one", a=floats(100), b=floats(1), c=floats(1), d=floats(1))
    other = write_state(tmp_path / "other", a=floats(101), b=floats(3), c=floats(nan), e=floats(1))
    paths = [leaf.path for leaf in difference_of(one, other).differences]
    assert paths == ["/d", "/e", "/c", "/b", "/a"]


@pytest.mark.parametrize("threads", [1, 2])
def test_one_bit_is_found_wherever_it_is(tmp_path: Path, threads: int) -> None:
    data = bytearray(9 * 1024 * 1024 + 3)
    one = write_state(tmp_path / "one", a=raw("U8", 1), big=Stored("U8", (len(data),), bytes(data)))
    data[-1] ^= 64
    other = write_state(
        tmp_path / "other", a=raw("U8", 1), big=Stored("U8", (len(data),), bytes(data))
    )
    leaf = only(difference_of(one, other, threads=threads))
    assert leaf.numbers is not None
    assert leaf.numbers.differing == 1
    assert leaf.numbers.first_index == (len(data) - 1,)


def test_tensors_whose_bytes_do_not_lie_in_a_file_are_compared_too() -> None:
    def held(data: bytes) -> TensorLeaf:
        return TensorLeaf("/t", "F32", (2,), HeldBytes(data))

    found = compare_states(_content(held(b"\0" * 8)), _content(held(b"\0" * 7 + b"\x40")))
    assert only(found).numbers is not None
    assert compare_states(_content(held(b"\0" * 8)), _content(held(b"\0" * 8))).equal


def test_a_type_without_numbers_is_changed_and_no_more() -> None:
    def odd(data: bytes) -> TensorLeaf:
        return TensorLeaf("/t", "F4", (2,), HeldBytes(data))

    leaf = only(compare_states(_content(odd(b"ab")), _content(odd(b"ac"))))
    assert (leaf.change, leaf.numbers, leaf.left) == (LeafChange.CHANGED, None, "F4[2]")


def test_values_are_shown_on_both_sides() -> None:
    leaf = only(compare_states(_content(_int("/epoch", 3)), _content(_int("/epoch", -4))))
    assert (leaf.part, leaf.left, leaf.right) == ("other", "int 3", "int -4")


def test_what_an_exclusion_takes_out_does_not_count_and_is_told() -> None:
    text = ValueLeaf("/save_path", "text", b"/home/a")
    other = text._replace(data=b"/home/b")
    found = compare_states(_content(_int("/n", 1), text), _content(_int("/n", 1), other))
    assert found.equal
    assert [(one.pattern, one.leaves) for one in found.left_out] == [("**/*_path", (1, 1))]


def test_nothing_compared_is_no_agreement() -> None:
    with pytest.raises(EvidenceError, match="hold nothing to compare"):
        compare_states(_content(), _content())


def test_a_path_that_is_there_twice_is_refused() -> None:
    with pytest.raises(EvidenceError, match="'/n' occurs twice"):
        compare_states(_content(_int("/n", 1), _int("/n", 2)), _content(_int("/n", 1)))


@each_row(
    ("kind", "data", "shown"),
    [
        ("none", b"", "none"),
        ("empty map", b"", "empty map"),
        ("bool", b"\1", "bool True"),
        ("float", bytes(8), "float 0.0"),
        ("float", b"odd", "float 0x6f6464"),
        ("text", b"a\x1b[31m\xff", r"text 'a\x1b[31m\ufffd'"),
        ("name", b"torch.Size", "name 'torch.Size'"),
        ("bytes", b"ab", "bytes 0x6162"),
        ("bytes", bytes(25), f"bytes 0x{'00' * 24}... (25 bytes)"),
        ("int", bytes(33), f"int 0x{'00' * 24}... (33 bytes)"),
    ],
)
def test_values_are_short_and_printable(kind: str, data: bytes, shown: str) -> None:
    assert shown_value(ValueLeaf("/v", kind, data)) == shown


def test_a_long_text_is_cut() -> None:
    shown = shown_value(ValueLeaf("/v", "text", b"x" * 10_000_000))
    assert shown == f"text '{'x' * 120}'..."
