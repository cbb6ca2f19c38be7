from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from checkpoint_digests import content_of, leaves_of, root_of
from each_row import each_row

from gate.checkpoint.digest import StateDigest, digest_state
from gate.checkpoint.formats.file_formats import UnknownContent
from gate.checkpoint.formats.formats import open_state
from gate.errors import EvidenceError
from gate.system.files.files import LocalFiles

VALUE = {"step": 3, "loss": [0.5, 1e-7, None], "name": "é", "done": True, "none": {}, "a/b": []}


def written(folder: Path, content: bytes, name: str = "state.json") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def by_bytes(path: Path) -> StateDigest:
    unknown = UnknownContent.BYTES
    with open_state(LocalFiles(), path, path.name, max_bytes=2**30, unknown=unknown) as content:
        return digest_state(content)


def test_json_has_the_root_of_the_same_values_in_a_pickle(tmp_path: Path) -> None:
    plain = root_of(written(tmp_path, json.dumps(VALUE).encode(), "any.name"))
    assert plain == root_of(written(tmp_path, b" \n" + json.dumps(VALUE, indent=8).encode()))
    for protocol in (2, 3, 4, 5):
        assert plain == root_of(written(tmp_path, pickle.dumps(VALUE, protocol)))


def test_numbers_that_are_none_count(tmp_path: Path) -> None:
    found = leaves_of(written(tmp_path, b'{"x": NaN, "y": -Infinity}'))
    assert found == {"/x": ("float", None), "/y": ("float", None)}


@each_row(
    ("content", "told"),
    [
        (b'{"a": 1, "a": 2}', "key 'a' is given twice"),
        (b'{"a": 1', "not valid JSON"),
        (b"[" * 100_000, "nested deeper than 32 levels"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "nested deeper than 32 levels"),
        (b"[" + b"0," * 300_001 + b"0]", "JSON with more than 300,000 values"),
        (b'{"x": ' + b"9" * 10_000 + b"}", "not valid JSON"),
        (b'{"a\xff": 1}', "not UTF-8"),
        (b'{"a\\u001b": 1}', "key '/a\\x1b' is above 900 characters or not printable"),
        (b'{"' + b"k" * 1000 + b'": 1}', "is above 900 characters"),
    ],
)
def test_broken_json_is_refused_or_compared_by_its_bytes(
    tmp_path: Path, content: bytes, told: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(EvidenceError) as caught:
        content_of(path)
    assert caught.value.message.startswith("state.json: ")
    assert told in caught.value.message
    found = by_bytes(path)
    assert [(leaf.kind, leaf.shape) for leaf in found.leaves] == [("RAW", (len(content),))]
    assert "so its bytes were compared as they are (" in found.notes[0]
    assert told in found.notes[0]


def test_json_is_not_taken_for_safetensors(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"mode":{"a": 1}}')
    assert path.read_bytes()[8:9] == b"{"
    assert leaves_of(path) == {"/mode/a": ("int", None)}


def test_unknown_content_is_refused_or_compared_by_its_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, b"step,loss\n1,0.5\n", "log.csv")
    with pytest.raises(EvidenceError, match=r"log.csv: has an unknown format"):
        content_of(path)
    found = by_bytes(path)
    assert found.format == "unknown content"
    assert found.notes == ("its format is unknown, so its bytes were compared as they are",)
    before = found.roots.whole
    path.write_bytes(b"step,loss\n1,0.6\n")
    assert by_bytes(path).roots.whole != before


def test_large_unknown_content_is_streamed(tmp_path: Path) -> None:
    path = written(tmp_path, b"x" * 9_000_000, "big.bin")
    assert by_bytes(path).leaves[0].size_bytes == 9_000_000


def test_a_broken_state_is_never_compared_by_its_bytes(tmp_path: Path) -> None:
    for content in (b"PK\x03\x04 cut", b"\x80\x02}.x", b"\x93NUMPY", b"\xff\0\0\0\0\0\0\0{"):
        with pytest.raises(EvidenceError):
            by_bytes(written(tmp_path, content))


def test_a_pickle_that_refers_to_a_storage_is_refused(tmp_path: Path) -> None:
    reference = (
        b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ."
    )
    with pytest.raises(EvidenceError, match="refers to a storage, but this file format has none"):
        content_of(written(tmp_path, reference))
