from __future__ import annotations

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from gate.codec.digests import state_manifest, state_root, tensor_digest, tree_digest

NAMES = st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=5, unique=True)


@given(NAMES)
def test_the_root_does_not_depend_on_order(names: list[str]) -> None:
    tensors = [tensor_digest(name, "U8", (1,), [b"x"]) for name in names]
    assert state_root(tensors) == state_root(tensors[::-1])


@given(st.binary(min_size=1, max_size=40), st.data())
def test_one_flipped_bit_gives_another_digest(data: bytes, draw: st.DataObject) -> None:
    position = draw.draw(st.integers(0, len(data) * 8 - 1))
    flipped = bytearray(data)
    flipped[position // 8] ^= 1 << (position % 8)
    before = tensor_digest("w", "U8", (len(data),), [data])
    assert tensor_digest("w", "U8", (len(data),), [flipped]).sha256 != before.sha256


@given(st.binary(max_size=40), st.integers(0, 40))
def test_pieces_do_not_matter(data: bytes, cut: int) -> None:
    whole = tensor_digest("w", "U8", (len(data),), [data])
    assert tensor_digest("w", "U8", (len(data),), [data[:cut], data[cut:]]) == whole


def test_type_shape_and_name_are_part_of_the_identity() -> None:
    base = state_manifest([tensor_digest("w", "F32", (2, 1), [b"12345678"])])
    for name, dtype, shape in (("w", "I32", (2, 1)), ("w", "F32", (1, 2)), ("v", "F32", (2, 1))):
        other = state_manifest([tensor_digest(name, dtype, shape, [b"12345678"])])
        assert other.root != base.root


def test_a_known_state_has_a_known_root() -> None:
    """Rebuilt from the written format alone, with nothing of the code under test."""

    def eight(length: int) -> bytes:
        return bytes([length, 0, 0, 0, 0, 0, 0, 0])

    leaf = sha256(eight(3) + b"F32" + eight(1) + b"1" + eight(1) + b"2" + b"\0" * 8).digest()
    algorithm = b"repro-gate-state/1"
    root = sha256(eight(18) + algorithm + eight(1) + b"w" + eight(32) + leaf).hexdigest()
    manifest = state_manifest([tensor_digest("w", "F32", (2,), [b"\0" * 8])])
    assert manifest.root == root


def test_a_file_mode_is_part_of_a_tree() -> None:
    assert tree_digest([("a", "644", "0")]) != tree_digest([("a", "755", "0")])
