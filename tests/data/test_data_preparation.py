"""Pointers of an exported commit: found, copied out, read by the process of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from data_bench import Shown
from hypothesis import given
from hypothesis import strategies as st
from real_reader import Answering, answer_bytes, answering, kept

from gate.data.data_sets import DataPointer, DataPointers
from gate.errors import DataError
from gate.isolation.process_request import AnsweringProcess, ProcessRequest
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import DataPointersQuestion
from gate.pipelines.tree_files import _matches, pointers_of_commit
from gate.settings.data import DataKind
from gate.settings.load import parse_settings
from gate.system.files.files import LocalFiles
from gate.verdict.request import GateRequest

# started once a worker
READS = kept(answering)
A = "a" * 32
DVC = f"outs:\n- md5: {A}.dir\n  hash: md5\n  path: train\n"
OID = "b" * 64
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 5\n"
FILES = LocalFiles()


class Tree:
    """An exported commit to fill, and the question about it."""

    def __init__(self, root: Path) -> None:
        self.top = root / "tree"
        self.top.mkdir()
        self.folder = root / "asked"

    def write(self, path: str, text: str | bytes) -> None:
        there = self.top / path
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(text.encode() if isinstance(text, str) else text)

    def read(
        self,
        *lines: str,
        project: str = ".",
        required: bool = True,
        start: Callable[[ProcessRequest], AnsweringProcess] = READS,
    ) -> dict[str, DataPointers]:
        text = "version: 1\ntrain:\n  command: python train.py\n  max_steps: 2\ndata:\n"
        settings = parse_settings((text + "".join(f"- {line}\n" for line in lines)).encode(), "s")
        request = GateRequest(
            top=self.top,
            project=project,
            config_name="repro-gate.yml",
            settings=settings,
            settings_text=b"",
            settings_from="",
            out=self.top,
        )
        with FreshReader(FILES, start, Shown(), None) as reader:
            return pointers_of_commit(
                self.top,
                self.folder,
                request=request,
                files=FILES,
                ask=reader.ask,
                required=required,
            )

    def refused(self, *lines: str) -> DataError:
        with pytest.raises(DataError) as caught:
            self.read(*lines)
        assert caught.value.hint
        assert str(self.top) not in caught.value.message
        return caught.value


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_entries_of_both_kinds_are_read_from_the_project(tree: Tree) -> None:
    tree.write("project/data/train.dvc", DVC)
    tree.write("project/data/x.bin", LFS)
    tree.write("project/data/own.bin", b"\0" * 5000)
    tree.write("project/data/small.bin", b"own")
    tree.write("data/other.bin", LFS)
    found = tree.read("dvc: data/train.dvc", "lfs: data/*.bin", project="project")
    assert found == {
        "data/train.dvc": (
            DataPointer(
                name="data/train.dvc",
                kind=DataKind.DVC,
                path="project/data/train",
                digest=A,
                is_folder=True,
            ),
        ),
        "data/*.bin": (
            DataPointer(
                name="data/*.bin",
                kind=DataKind.LFS,
                path="project/data/x.bin",
                digest=OID,
                size_bytes=5,
            ),
        ),
    }


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("'*.bin'", ["a.bin"]),
        ("'**/*.bin'", ["a.bin", "x/b.bin", "x/y/c.bin"]),
        ("x/**", ["x/b.bin", "x/y/c.bin"]),
        ("x/y/c.bin", ["x/y/c.bin"]),
        ("'x/[a-y]/?.bin'", ["x/y/c.bin"]),
        ("'**'", ["a.bin", "x/b.bin", "x/y/c.bin"]),
    ],
)
def test_a_star_ends_at_a_slash_and_two_do_not(tree: Tree, pattern: str, paths: list[str]) -> None:
    for path in ("a.bin", "x/b.bin", "x/y/c.bin"):
        tree.write(path, LFS)
    (tree.top / "x" / "link.bin").symlink_to("b.bin")
    (tree.top / "up").symlink_to("x")
    (found,) = tree.read(f"lfs: {pattern}").values()
    assert sorted(one.path for one in found) == paths


@given(
    st.sets(st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join), max_size=8),
    st.lists(st.sampled_from(["a", "b", "*", "?", "**", "[a]"]), min_size=1, max_size=4),
)
def test_a_pattern_matches_what_its_expression_does(names: set[str], pattern: list[str]) -> None:
    # a name that is also a folder of another cannot be a file
    paths = {name for name in names if not any(one.startswith(f"{name}/") for one in names)}
    parts = {"*": "[^/]+/", "?": "[^/]/", "**": "(?:[^/]+/)*", "[a]": "a/"}
    expression = re.compile("".join(parts.get(part, f"{part}/") for part in pattern))
    with TemporaryDirectory() as folder:
        for path in paths:
            there = Path(folder, path)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.touch()
        found = set(_matches(Path(folder), pattern, FILES))
    assert found == {path for path in paths if expression.fullmatch(f"{path}/")}


def test_a_folder_without_end_is_one_error(tree: Tree) -> None:
    tree.write(f"{'d/' * 102}x.bin", LFS)
    error = tree.refused("lfs: '**/*.bin'")
    assert error.message == "data: **/*.bin: folders are deeper than 100 levels"


def test_files_with_their_own_content_need_nothing(tree: Tree) -> None:
    tree.write("data/x.bin", b"own")
    assert tree.read("lfs: data/*.bin") == {"data/*.bin": ()}


def test_what_is_not_in_the_commit_is_one_error(tree: Tree) -> None:
    error = tree.refused("dvc: data/train.dvc")
    assert error.message == "data: data/train.dvc is not in the commit"
    assert "git add data/train.dvc" in error.hint
    error = tree.refused("lfs: data/*.bin")
    assert error.message == "data: the pattern data/*.bin matches no file of the commit"


def test_an_older_commit_may_lack_it(tree: Tree) -> None:
    assert tree.read("dvc: data/train.dvc", "lfs: data/*.bin", required=False) == {}


def test_links_are_not_followed(tree: Tree) -> None:
    tree.write("real/train.dvc", DVC)
    (tree.top / "data").symlink_to("real")
    (tree.top / "x.dvc").symlink_to("real/train.dvc")
    assert tree.refused("dvc: data/train.dvc").message == (
        "data: data/train.dvc leads through data, a link"
    )
    assert "link" in tree.refused("dvc: x.dvc").message


def test_a_large_dvc_file_and_a_pipe_are_refused(tree: Tree) -> None:
    tree.write("x.dvc", b"#" * 300_000)
    assert tree.refused("dvc: x.dvc").message == "data: x.dvc is larger than 262,144 bytes"
    os.mkfifo(tree.top / "y.dvc")
    assert tree.refused("dvc: y.dvc").message == "data: y.dvc is a FIFO, not a regular file"


def test_a_fault_that_the_other_process_finds_is_that_error(tree: Tree) -> None:
    tree.write("x.dvc", DVC.replace("path: train", "path: ../../etc"))
    error = tree.refused("dvc: x.dvc")
    assert "x.dvc: outs[0] leaves the repository" in error.message
    tree.write("y.bin", LFS.replace("size 5", "size x"))
    assert "y.bin: the pointer of Git LFS has no size" in tree.refused("lfs: '*.bin'").message


def test_data_that_is_in_the_commit_too_is_refused(tree: Tree) -> None:
    tree.write("data/train.dvc", DVC)
    tree.write("data/train/0.npy", b"0")
    error = tree.refused("dvc: data/train.dvc")
    assert error.message == "data: data/train.dvc: data/train is in the commit as well"


def test_an_output_of_a_lock_that_git_keeps_is_left_to_git(tree: Tree) -> None:
    rows = "".join(f"    - {{path: {name}, hash: md5, md5: {A}}}\n" for name in ("m.json", "big"))
    tree.write("dvc.lock", f"schema: '2.0'\nstages:\n  train:\n    outs:\n{rows}")
    tree.write("m.json", "{}")
    (found,) = tree.read("{dvc: dvc.lock, stage: train}").values()
    assert [one.path for one in found] == ["big"]


@pytest.mark.parametrize("path", ["train", "train/sub"])
def test_two_entries_at_one_place_are_refused(tree: Tree, path: str) -> None:
    tree.write("data/a.dvc", DVC)
    tree.write("data/b.dvc", DVC.replace("path: train", f"path: {path}"))
    error = tree.refused("dvc: data/a.dvc", "dvc: data/b.dvc")
    assert " both name data/train" in error.message
    assert error.hint == "Leave one of the two entries out of `data`."


def test_an_answer_about_something_else_is_not_taken(tree: Tree) -> None:
    tree.write("x.bin", LFS)
    mine = DataPointer(name="x.bin", kind=DataKind.LFS, path="x.bin", digest=OID)
    others = [
        mine.model_copy(update=update)
        for update in ({"name": "other"}, {"path": "y.bin"}, {"kind": DataKind.DVC})
    ]
    answer = answer_bytes(DataPointersQuestion, (*others, mine))
    (found,) = tree.read("lfs: x.bin", start=Answering(answer)).values()
    assert [one.path for one in found] == ["x.bin"]
