"""Git: a tree is written in the bytes that a clone has, whatever `.gitattributes` ask."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from git_workshop import IDENTITY, Repository, commit_fault
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gate.system.git.repository import GitRepository

ATTRIBUTES = (
    "text",
    "-text",
    "text=auto",
    "eol=lf",
    "eol=crlf",
    "text eol=crlf",
    "-text eol=crlf",
    "text=auto eol=crlf",
    "text=input eol=crlf",
    "crlf eol=crlf",
    "binary eol=crlf",
    "ident",
    "ident eol=crlf",
    "working-tree-encoding=UTF-16",
    "working-tree-encoding=UTF-16LE-BOM eol=crlf",
    "working-tree-encoding=ISO-8859-1",
    "working-tree-encoding=no-such-one",
    "text working-tree-encoding=UTF-8 ident",
    "filter=nobody-has-it eol=crlf",
    "export-subst export-ignore",
    "mine",
)
CONTENTS = (
    b"",
    b"1\n2\n",
    b"1\r\n2\r\n",
    b"1\n2\r\n3\r",
    b"no end",
    b"\x001\n",
    b"\x01\x02\x03\n",
    b"text that ends like one of DOS\n\x1a",
    b"$Id$ $Id: of another $ $Id: not one\n$",
    "caf\u00e9 \u2026\n".encode(),
    b"\xff\xfe\xe9\n",
)


def committed(repository: Repository, files: dict[str, bytes]) -> str:
    """A commit of these very bytes: no attribute has a say in what is stored."""
    head = b"commit refs/heads/main\ncommitter A <a@example.org> 0 +0000\ndata 0\n"
    rows = b"".join(
        f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n"
        for path, content in files.items()
    )
    repository.git("fast-import", "--quiet", "--force", stdin=head + rows)
    return repository.git("rev-parse", "main")


def under_each_attribute(contents: tuple[bytes, ...]) -> dict[str, bytes]:
    """Each content under each attribute: by the file at the top, and by one in a folder."""
    rules = [f"/top{number}/* {attribute}" for number, attribute in enumerate(ATTRIBUTES)]
    files = {".gitattributes": "\n".join(("[attr]mine text eol=crlf", *rules, "")).encode()}
    for number, attribute in enumerate(ATTRIBUTES):
        own = f"* {attribute}\n*.keep -text -ident !working-tree-encoding\n"
        files[f"sub{number}/.gitattributes"] = own.encode()
        for which, content in enumerate(contents):
            files[f"top{number}/{which}.txt"] = content
            files[f"sub{number}/deeper/{which}.txt"] = content
            files[f"sub{number}/{which}.keep"] = content
    return files


def exported(repository: Repository, commit: str, folder: Path) -> dict[str, bytes]:
    GitRepository(repository.path).export_commit(commit, folder)
    return on_disk(folder)


def cloned(repository: Repository, folder: Path) -> dict[str, bytes]:
    words = ("git", "clone", "-q", "--branch", "main", str(repository.path), str(folder))
    subprocess.run(words, env=IDENTITY, check=True, capture_output=True)
    return on_disk(folder)


def on_disk(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {path: content for path, content in found.items() if not path.startswith(".git/")}


def test_each_content_under_each_attribute_is_that_of_a_clone(
    repository: Repository, tmp_path: Path
) -> None:
    commit = committed(repository, under_each_attribute(CONTENTS))
    found = exported(repository, commit, tmp_path / "out")
    assert found == cloned(repository, tmp_path / "clone")
    assert found["top5/1.txt"] == b"1\r\n2\r\n"


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.binary(max_size=40) | st.text("$Id: \n\r\u00e9", max_size=40), max_size=5))
def test_any_content_is_that_of_a_clone(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[bytes | str]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    contents = tuple(one.encode() if isinstance(one, str) else one for one in drawn)
    repository = Repository(folder / "repository")
    commit = committed(repository, under_each_attribute(contents))
    assert exported(repository, commit, folder / "out") == cloned(repository, folder / "clone")


def test_attributes_and_settings_of_this_clone_alone_change_nothing(
    repository: Repository, tmp_path: Path
) -> None:
    """A fresh clone has no `info/attributes`, and nobody's `core.autocrlf`."""
    files = {".gitattributes": b"a.txt eol=crlf\n", "a.txt": b"1\n", "b.txt": b"1\n"}
    commit = committed(repository, files)
    repository.write(".git/info/attributes", "*.txt -text\n")
    repository.git("config", "core.autocrlf", "true")
    found = exported(repository, commit, tmp_path / "out")
    assert found == {**files, "a.txt": b"1\r\n"}


def test_attributes_are_those_of_the_commit_and_not_of_the_work_tree(
    repository: Repository, tmp_path: Path
) -> None:
    commit = committed(repository, {".gitattributes": b"a eol=crlf\n", "a": b"1\n"})
    repository.write(".gitattributes", "a -text\n")
    assert exported(repository, commit, tmp_path / "out")["a"] == b"1\r\n"


def test_a_file_of_a_filter_that_the_clone_would_run_is_an_error_and_nothing_runs(
    repository: Repository, tmp_path: Path
) -> None:
    commit = committed(repository, {".gitattributes": b"*.key filter=vault\n", "a.key": b"1\n"})
    assert exported(repository, commit, tmp_path / "out")["a.key"] == b"1\n"
    repository.git("config", "filter.vault.smudge", f"touch {tmp_path}/ran")
    fault = commit_fault(GitRepository(repository.path).export_commit, commit, tmp_path / "two")
    assert fault.message == (
        "a.key goes through the filter vault, and the gate runs no filter of a repository"
    )
    assert not (tmp_path / "ran").exists()


def test_a_pointer_of_git_lfs_stays_one(repository: Repository, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"
    rules = b"* text=auto eol=crlf\n*.bin filter=lfs\n"
    commit = committed(repository, {".gitattributes": rules, "a.bin": pointer})
    repository.git("config", "filter.lfs.smudge", "git-lfs smudge -- %f")
    assert exported(repository, commit, tmp_path / "out")["a.bin"] == pointer


def test_attributes_that_git_refuses_are_an_error(repository: Repository, tmp_path: Path) -> None:
    commit = committed(repository, {".gitattributes": b"a working-tree-encoding\n", "a": b"1\n"})
    fault = commit_fault(GitRepository(repository.path).export_commit, commit, tmp_path / "out")
    assert fault.message == "git cannot check out this commit as its .gitattributes ask"
