from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_digests import content_of, digests_of, root_of, small_tensor
from each_row import each_row
from harness_folder import safetensors_bytes, safetensors_of
from hypothesis import given
from hypothesis import strategies as st

from gate.checkpoint.formats import safetensors_reader
from gate.checkpoint.formats.safetensors_reader import read_safetensors
from gate.checkpoint.leaves import StateContent
from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles


def read(path: Path) -> StateContent:
    with open_untrusted(LocalFiles(), path, path.name, max_bytes=2**30) as opened:
        return read_safetensors(opened)


def entry(start: int, end: int, shape: list[int] | None = None, dtype: str = "U8") -> object:
    shape = [end - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_each_tensor_is_hashed_under_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(
        safetensors_bytes({"w": ("F32", [1, 2], b"12345678"), "n": ("I64", [], b"abcdefgh")})
    )
    assert digests_of(path) == {
        "/w": small_tensor("F32", (1, 2), b"12345678"),
        "/n": small_tensor("I64", (), b"abcdefgh"),
    }


def test_metadata_and_order_do_not_count(tmp_path: Path) -> None:
    one, two = {"dtype": "U8", "shape": [1]}, tmp_path / "two.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "b": {**one, "data_offsets": [0, 1]},
        "a": {**one, "data_offsets": [1, 2]},
    }
    two.write_bytes(safetensors_of(header, b"BA"))
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(safetensors_bytes({"a": ("U8", [1], b"A"), "b": ("U8", [1], b"B")}))
    assert root_of(two) == root_of(plain)


def test_the_gates_own_states_say_that_their_names_are_paths(tmp_path: Path) -> None:
    tensor = {"model/0.weight": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    for about, path in (
        ({"repro_gate_names": "paths"}, "/model/0.weight"),
        ({"repro_gate_names": "other"}, "/model~10.weight"),
        ({"format": "pt"}, "/model~10.weight"),
    ):
        file = tmp_path / "state.safetensors"
        file.write_bytes(safetensors_of({"__metadata__": about, **tensor}, b"A"))
        assert list(digests_of(file)) == [path]


def test_no_header_gives_one_name_the_digest_of_another(tmp_path: Path) -> None:
    """A loader knows nothing of that word: to it these are two tensors."""
    tensor = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    plain, marked = tmp_path / "plain.safetensors", tmp_path / "marked.safetensors"
    plain.write_bytes(safetensors_of({"a/b": tensor}, b"A"))
    about = {"__metadata__": {"repro_gate_names": "paths"}}
    assert list(digests_of(plain)) == ["/a~1b"]
    marked.write_bytes(safetensors_of({**about, "a~1b": tensor}, b"A"))
    with pytest.raises(EvidenceError, match="no path of a state that the gate captured"):
        root_of(marked)


@pytest.mark.parametrize("about", [{"a": 1}, {"a": None}, ["a"], "a", None])
def test_metadata_is_text_by_text(tmp_path: Path, about: object) -> None:
    file = tmp_path / "state.safetensors"
    tensor = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    file.write_bytes(safetensors_of({"__metadata__": about, "w": tensor}, b"A"))
    with pytest.raises(EvidenceError, match="not a map of texts"):
        root_of(file)


def test_large_tensors_are_hashed_in_pieces(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    path = tmp_path / "large.safetensors"
    path.write_bytes(safetensors_bytes({"w": ("U8", [len(content)], content)}))
    assert digests_of(path) == {"/w": small_tensor("U8", (len(content),), content)}


def test_names_of_a_checkpoint_are_paths(tmp_path: Path) -> None:
    path = tmp_path / "names.safetensors"
    path.write_bytes(safetensors_bytes({"a/b~[": ("U8", [0], b"")}))
    assert content_of(path).leaves[0].path == "/a~1b~0~2"


@each_row(
    ("header", "data", "told"),
    [
        ({"a": entry(0, 4), "b": entry(5, 8)}, b"12345678", "'b': hole or overlap before its data"),
        ({"a": entry(0, 4), "b": entry(3, 8)}, b"12345678", "'b': hole or overlap before its data"),
        ({"a": entry(1, 4)}, b"1234", "'a': hole or overlap before its data"),
        ({"a": entry(0, 4)}, b"12345", "tensors cover 4 bytes, the file holds 5"),
        ({"a": entry(0, 4)}, b"123", "tensors cover 4 bytes, the file holds 3"),
        ({"a": entry(0, 4, [2])}, b"1234", "'a': 4 bytes do not fit its dtype and shape"),
        ({"a": entry(4, 0, [0])}, b"1234", "'a': -4 bytes do not fit its dtype and shape"),
        ({"a": entry(0, 4, dtype="Q8")}, b"1234", "'a': unknown dtype 'Q8'"),
        ({"": entry(0, 4)}, b"1234", "'': name is empty, not printable"),
        ({"\n": entry(0, 4)}, b"1234", r"'\n': name is empty, not printable"),
        ({"a" * 451: entry(0, 4)}, b"1234", "above 450 characters"),
        ({"a": entry(0, 4, [-4])}, b"1234", "'a': shape and data_offsets must be sizes from 0"),
        ({"a": {"dtype": "U8"}}, b"", "'a': needs dtype, shape and data_offsets"),
        ({"a": {**dict.fromkeys("xy", 1)}}, b"", "'a': needs dtype, shape and data_offsets"),
        ({"a": [1]}, b"", "'a': needs dtype, shape and data_offsets"),
        ([1], b"", "header is not a JSON object"),
    ],
)
def test_a_header_that_lies_is_refused(
    tmp_path: Path, header: object, data: bytes, told: str
) -> None:
    path = tmp_path / "lies.safetensors"
    path.write_bytes(safetensors_of(header, data))
    with pytest.raises(EvidenceError) as caught:
        read(path)
    assert caught.value.message.startswith("lies.safetensors: ")
    assert told in caught.value.message


@each_row(
    ("content", "told"),
    [
        (b"", "is truncated"),
        (b"\x08\0\0\0\0\0\0\0{}", "is truncated"),
        (b"\0\0\0\0\0\0\0\x10{}", "header of 1,152,921,504,606,846,976 bytes, the limit is"),
        (b"\x08\0\0\0\0\0\0\0" + b'{"a":1,}', "header: not valid JSON"),
        (b"\x0d\0\0\0\0\0\0\0" + b'{"a":1,"a":2}', "key 'a' is given twice"),
    ],
)
def test_a_broken_layout_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(EvidenceError) as caught:
        read(path)
    assert told in caught.value.message


def test_too_many_tensors_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_reader, "MAX_TENSORS", 1)
    path = tmp_path / "many.safetensors"
    path.write_bytes(safetensors_bytes({"a": ("U8", [0], b""), "b": ("U8", [0], b"")}))
    with pytest.raises(EvidenceError, match=r"many.safetensors: more than 1 tensors"):
        read(path)


@given(cut=st.integers(min_value=0, max_value=140))
def test_every_cut_of_a_file_is_refused(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = safetensors_bytes({"a": ("U8", [4], b"1234"), "b": ("F64", [], b"12345678")})
    path = tmp_path_factory.mktemp("cut") / "cut.safetensors"
    path.write_bytes(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(EvidenceError, match=r"cut.safetensors"):
        read(path)
