"""A training that lacks data is told the entry of `data` that declares it."""

from __future__ import annotations

from pathlib import Path

import pytest
from each_row import each_row

from gate.errors import RunError
from gate.isolation.modes import Credentials, TrainingContainer
from gate.isolation.process_request import ProcessRequest
from gate.system.files.files import LocalFiles
from gate.training.missing_files import Lacking, NotCommitted, Project, data_hint, with_missing_file
from gate.training.runs import Snapshot

RUN = Path("/out/work/run")
ITSELF = Credentials(uid=1, gid=1)


def hint(
    line: str,
    tree: Path = Path("/nowhere"),
    *,
    container: bool = False,
    apart: bool = False,
    workdir: str = ".",
    project_workdir: str = ".",
) -> str:
    request = ProcessRequest(
        argv=("python", "train.py"),
        env={},
        workdir=RUN / "tree" / workdir,
        timeout_seconds=1.0,
        output_limit_bytes=1,
        credentials=ITSELF if apart or container else None,
        container=_container() if container else None,
        writable=(RUN / "tree", RUN / "home"),
        readable=(RUN / "harness",),
    )
    lacking = Lacking(
        request=request,
        snapshot=Snapshot(commit="a" * 40, tree=tree, workdir=workdir, digest="d"),
        project_workdir=project_workdir,
        output=f"first\n{line}\n".encode(),
        lines=("first", line),
    )
    return data_hint(lacking, LocalFiles())


def _container() -> TrainingContainer:
    return TrainingContainer.__new__(TrainingContainer)


def missing(path: str) -> str:
    return f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"


@each_row(
    "line",
    [
        missing("/srv/x.npy"),
        "OSError: Failed to open local file '/srv/x.npy'. Detail: No such file or directory",
        "RuntimeError: unable to open file </srv/x.npy> in a mode: No such file or directory",
        "FileNotFoundError: No such file or directory: /srv/x.npy",
        "FileNotFoundError: /srv/x.npy not found.",
        "FileNotFoundError: Directory /srv/x.npy not found",
        "FileNotFoundError: Unable to find '/srv/x.npy'",
        "OSError: Unable to open file (name = '/srv/x.npy', errno = 2, error message = '...')",
    ],
)
def test_a_container_lacks_what_only_the_machine_has(line: str) -> None:
    assert hint(line, container=True) == (
        "There is no /srv/x.npy in the container. Declare it: "
        "`data: [{path: /srv/x.npy, as: x.npy}]`, and read $REPRO_GATE_DATA/x.npy."
    )
    assert hint(line) == hint(line, apart=True) == ""


@pytest.mark.parametrize("path", [f"{RUN}/home/x", f"{RUN}/harness/x", f"{RUN}/tree/x", "x"])
def test_of_the_runs_own_folders_nothing_is_to_be_declared(path: str) -> None:
    assert hint(missing(path), container=True) == ""


def test_a_file_that_another_account_may_not_open_is_to_be_shared_and_declared() -> None:
    line = "PermissionError: [Errno 13] Permission denied: '/srv/x.npy'"
    said = hint(line, apart=True)
    assert "`data: [{path: /srv/x.npy, as: x.npy}]`, and read $REPRO_GATE_DATA/x.npy." in said
    assert "every account" in said
    assert "$TMPDIR" in said
    assert hint(line) == ""
    assert hint(line.replace("/srv", f"{RUN}/home"), apart=True) == ""


@pytest.mark.parametrize(
    ("path", "pointer"),
    [
        ("data/train/00/x.npy", "data/train.dvc"),
        ("data/rows.csv", "data/rows.csv.dvc"),
        (f"{RUN}/tree/data/train", "data/train.dvc"),
    ],
)
def test_what_dvc_keeps_is_declared_by_its_pointer(tmp_path: Path, path: str, pointer: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / pointer).write_text("outs: []", encoding="utf-8")
    inside = path.removeprefix(f"{RUN}/tree/")
    assert hint(missing(path), tmp_path) == (
        f"DVC keeps {inside}, and the commit contains only its pointer: declare "
        f"`data: [{{dvc: {pointer}}}]`."
    )


def test_entries_are_relative_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "sub" / "code").mkdir(parents=True)
    (tmp_path / "sub" / "rows.dvc").touch()
    said = hint(missing("../rows"), tmp_path, workdir="sub/code", project_workdir="code")
    assert "declare `data: [{dvc: rows.dvc}]`" in said
    line = "repro-gate: 'sub/rows.bin' is a Git LFS pointer, not its content"
    said = hint(line, workdir="sub/code", project_workdir="code")
    assert said.endswith("declare `data: [{lfs: rows.bin}]`.")


def test_no_link_of_the_commits_is_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x.dvc").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").symlink_to(tmp_path / "outside")
    for path in ("data/x", "../outside/x", f"{RUN}/tree/../../outside/x", "a" * 300, "/" * 300):
        assert hint(missing(path), tree) == ""


def test_a_pointer_of_git_lfs_that_was_read_is_named() -> None:
    line = "repro-gate: 'data/x.bin' is a Git LFS pointer, not its content"
    assert hint(line) == (
        "data/x.bin is a Git LFS pointer, not its content: declare `data: [{lfs: data/x.bin}]`."
    )
    assert "\x1b" not in hint("repro-gate: 'x\x1b[31m.bin' is a Git LFS pointer")


def test_a_pointer_that_c_code_has_read_is_found_by_its_name_in_the_traceback(
    tmp_path: Path,
) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.safetensors").write_text(pointer, encoding="utf-8")
    (tmp_path / "long.bin").write_text(pointer + "x" * 1024, encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "data")
    line = "    tensors = load_file({!r})"
    said = (
        "data/x.safetensors is a Git LFS pointer, not its content: "
        "declare `data: [{lfs: data/x.safetensors}]`."
    )
    for name in (
        "data/x.safetensors",
        f"{RUN}/tree/data/x.safetensors",
        "data/../data/x.safetensors",
    ):
        assert hint(line.format(name), tmp_path) == said
    for name in (
        "long.bin",
        "link/x.safetensors",
        "data",
        "none",
        "/data/x.safetensors",
        "a" * 300,
    ):
        assert hint(line.format(name), tmp_path) == ""


def test_a_hint_that_names_an_entry_is_kept_and_the_line_too(tmp_path: Path) -> None:
    snapshot = Snapshot(commit="a" * 40, tree=tmp_path, workdir=".", digest="d")
    details = (missing("data/x"),)
    project = Project(top=tmp_path, folder=".", files=LocalFiles())
    named = RunError("m", hint="declare `data: [{dvc: x.dvc}]`", details=details, file="t", line=2)
    assert with_missing_file(named, RUN / "tree", snapshot, NotCommitted(), project) is named
    plain = RunError("m", hint="general", details=details, file="train.py", line=2)
    told = with_missing_file(plain, RUN / "tree", snapshot, NotCommitted(), project)
    assert told.hint.startswith("data/x is not in the commit.")
    assert (told.file, told.line) == ("train.py", 2)
