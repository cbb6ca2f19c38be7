"""`.dvc` files and `dvc.lock` as DVC writes them, spoilt ones, and what would lead elsewhere."""

from __future__ import annotations

import posixpath

import pytest
import yaml
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.data.data_sets import DataPointer, DataPointers, PointerFile
from gate.data.pointers import read_dvc
from gate.errors import DataError
from gate.settings.data import DataKind

A, B = "a" * 32, "b" * 32
FOLDER = f"outs:\n- md5: {A}.dir\n  size: 6006\n  nfiles: 7\n  hash: md5\n  path: train\n"
OLD = f"md5: {B}\nwdir: ..\nouts:\n- md5: {A}\n  path: data/one.bin\n"
LOCK = f"""\
schema: '2.0'
stages:
  prepare:
    cmd: python prepare.py
    deps:
    - path: raw
      md5: {B}.dir
    outs:
    - path: data/ready
      hash: md5
      md5: {A}.dir
      size: 12
      nfiles: 2
  train:
    cmd: python train.py
    outs:
    - path: model.pt
      hash: md5
      md5: {B}
      size: 4
"""


def read(text: str, path: str = "data/train.dvc", stage: str = "") -> DataPointers:
    file = PointerFile(name="mini", kind=DataKind.DVC, path=path, stage=stage)
    return read_dvc(file, text.encode())


def refusal(text: str, path: str = "data/train.dvc", stage: str = "") -> str:
    with pytest.raises(DataError) as caught:
        read(text, path, stage)
    assert caught.value.hint
    assert caught.value.message.isprintable()
    return caught.value.message


def test_a_folder_of_dvc_3_is_named_from_the_root() -> None:
    assert read(FOLDER) == (
        DataPointer(
            name="mini",
            kind=DataKind.DVC,
            path="data/train",
            digest=A,
            is_folder=True,
            size_bytes=6006,
            files=7,
        ),
    )


def test_before_dvc_3_there_is_no_hash_and_text_counts_without_carriage_returns() -> None:
    (pointer,) = read(OLD, "sets/one.dvc")
    assert (pointer.path, pointer.dos2unix, pointer.is_folder) == ("data/one.bin", True, False)


def test_a_lock_names_the_outputs_of_all_stages_or_of_one() -> None:
    assert [one.path for one in read(LOCK, "dvc.lock")] == ["data/ready", "model.pt"]
    assert [one.path for one in read(LOCK, "sub/dvc.lock", "train")] == ["sub/model.pt"]


def test_a_stage_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(DataError) as caught:
        read(LOCK, "dvc.lock", "tran")
    assert caught.value.message == "dvc.lock: it has no stage 'tran'"
    assert caught.value.hint == "Correct `stage` in the settings: the file has prepare, train."


@each_row(
    ("line", "told"),
    [
        ("  remote: mine\n", "outs[0] names a remote of its own (remote)"),
        ("  cache: false\n", "outs[0] has cache: false, so no remote holds it"),
        ("  push: false\n", "outs[0] has push: false, so no remote holds it"),
        ("  cloud: {s3: {version_id: x}}\n", "outs[0] names versions in a cloud"),
        ("  files: []\n", "outs[0] names versions in a cloud"),
        ("deps:\n- path: x\n  repo: {url: https://example.org}\n", "it imports its data (deps)"),
    ],
)
def test_what_would_lead_dvc_elsewhere_is_refused(line: str, told: str) -> None:
    assert told in refusal(FOLDER + line)


@each_row(
    "path",
    ["/etc", "../up", "a/../../up", "s3://bucket/x", '"a\\nb"', "'.'", '""', "a/..", ".git/hooks"],
)
def test_a_path_that_is_no_place_of_the_repository_is_refused(path: str) -> None:
    assert "data/train.dvc: " in refusal(FOLDER.replace("path: train", f"path: {path}"))


@pytest.mark.parametrize("wdir", ["../..", "/srv", "[]"])
def test_a_working_folder_outside_of_the_repository_is_refused(wdir: str) -> None:
    assert "data/train.dvc: " in refusal(f"{FOLDER}wdir: {wdir}\n")


@each_row(
    ("text", "told"),
    [
        ("", "data/train.dvc: outs is not a list"),
        ("- a\n", "data/train.dvc: must be a mapping of keys to values"),
        ("outs: []\n", "data/train.dvc: names no data"),
        ("outs: [1]\n", "data/train.dvc: outs[0] is not a mapping"),
        ("outs: [{path: x}]\n", "data/train.dvc: outs[0] has no MD5 as DVC writes it: 'None'"),
        (f"outs: [{{md5: {A}}}]\n", "data/train.dvc: outs[0] has no path"),
        (FOLDER.replace("hash: md5", "hash: sha1"), "outs[0] has no MD5 as DVC writes it"),
        (FOLDER.replace("6006", "-1"), "data/train.dvc: outs[0].size is not a count"),
        (FOLDER.replace("7", "true"), "data/train.dvc: outs[0].nfiles is not a count"),
        (FOLDER + FOLDER[6:], "data/train.dvc: names one path twice"),
        (FOLDER + f"- {{md5: {B}, path: train/x}}\n", "and a folder that holds it"),
        ("outs: !!python/object:os.system x\n", "data/train.dvc: line 1: a tag"),
        ("outs: [\n", "data/train.dvc: not valid YAML"),
        ("outs: 1\nouts: 2\n", "data/train.dvc: line 2: key 'outs' is given twice"),
    ],
)
def test_a_spoilt_file_is_one_error(text: str, told: str) -> None:
    assert told in refusal(text)


def test_a_lock_of_another_schema_is_refused() -> None:
    assert refusal(LOCK.replace("2.0", "3.0"), "dvc.lock") == "dvc.lock: schema is not '2.0'"
    assert refusal("schema: '2.0'\n", "dvc.lock") == "dvc.lock: stages is not a mapping"


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "..", ".", "", "é", ".git"]), max_size=4).map("/".join),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([".", "..", "x", "../..", "/"]),
)
def test_every_path_that_is_accepted_lies_below_the_root(paths: list[str], wdir: str) -> None:
    rows = [{"md5": A, "path": path} for path in paths]
    text = yaml.safe_dump({"outs": rows, "wdir": wdir})
    try:
        found = read(text)
    except DataError:
        return
    for pointer in found:
        assert posixpath.normpath(pointer.path) == pointer.path
        assert not pointer.path.startswith(("/", ".."))


@given(st.binary(max_size=300), st.sampled_from(["x.dvc", "dvc.lock"]))
def test_any_bytes_are_pointers_or_one_error(data: bytes, path: str) -> None:
    told = "none"
    try:
        read_dvc(PointerFile(name="x", kind=DataKind.DVC, path=path), data)
    except DataError as error:
        told = error.message
    assert told.isprintable()
