"""Git: a tree written out, byte for byte, and never outside its folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from git_workshop import Repository, commit_fault, refusal

from gate.errors import CommitError, StorageError
from gate.system.git.repository import GitRepository
from gate.text.digests import sha256_hex, tree_digest

ABSENT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def git(repository: Repository) -> GitRepository:
    return GitRepository(repository.path)


def written(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_commit_is_written_byte_for_byte(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    """Attributes that change an archive or a diff change nothing here."""
    repository.write(".gitattributes", "*.txt text=auto\nhidden export-ignore\nid export-subst\n")
    contents = {"a.txt": b"1\n2\n", "hidden": b"x", "id": b"$Id$", "sub/empty": b"", "b": b"\0\r\n"}
    for name, content in contents.items():
        repository.write(name, content)
    commit = repository.commit()
    git.export_commit(commit, tmp_path / "out")
    found = written(tmp_path / "out")
    found.pop(".gitattributes")
    assert found == contents


def test_modes_and_links_are_kept(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write("run.sh", "#!").chmod(0o755)
    (repository.path / "sub").mkdir()
    (repository.path / "sub" / "link").symlink_to("../run.sh")
    (repository.path / "sub" / "dangling").symlink_to("later")
    repository.commit()
    digest = git.export_commit("HEAD", tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "out" / "sub" / "link").readlink() == Path("../run.sh")
    assert digest == tree_digest(
        [
            ("run.sh", "100755", sha256_hex(b"#!")),
            ("sub/dangling", "120000", sha256_hex(b"later")),
            ("sub/link", "120000", sha256_hex(b"../run.sh")),
        ]
    )


def test_a_clean_work_tree_and_its_commit_have_one_digest(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write("a", "x").chmod(0o755)
    repository.write(b"caf\xe9".decode("utf-8", "surrogateescape"), bytes(3_000_000))
    (repository.path / "link").symlink_to("a")
    repository.commit()
    from_commit = git.export_commit("HEAD", tmp_path / "commit")
    assert git.export_work_tree(tmp_path / "tree") == from_commit
    assert written(tmp_path / "tree") == written(tmp_path / "commit")


def test_the_work_tree_is_written_as_it_is_now(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write(".gitignore", "ignored\n")
    for name in ("edited", "deleted", "moved/away"):
        repository.write(name, "old")
    repository.commit()
    repository.write("edited", "new")
    repository.write("untracked", "u")
    repository.write("ignored", "i")
    (repository.path / "deleted").unlink()
    (repository.path / "moved" / "away").unlink()
    (repository.path / "moved").rmdir()
    git.export_work_tree(tmp_path / "out")
    expected = {".gitignore": b"ignored\n", "edited": b"new", "untracked": b"u"}
    assert written(tmp_path / "out") == expected


def test_a_folder_that_became_a_link_or_a_file_is_not_entered(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    repository.write("folder/file", "x")
    repository.write("other/file", "x")
    repository.commit()
    for name in ("folder", "other"):
        (repository.path / name / "file").unlink()
        (repository.path / name).rmdir()
    repository.write("other", "now a file")
    (repository.path / "folder").symlink_to("../outside")
    fault = commit_fault(git.export_work_tree, tmp_path / "out")
    assert fault.message == "the link folder points out of the repository: ../outside"
    assert written(tmp_path / "out") == {"other": b"now a file"}


@pytest.mark.parametrize("destination", ["/etc/passwd", "../../outside", "sub/../../x", ".."])
def test_a_link_that_leads_out_is_refused(
    repository: Repository, git: GitRepository, tmp_path: Path, destination: str
) -> None:
    (repository.path / "link").symlink_to(destination)
    repository.commit()
    fault = commit_fault(git.export_commit, "HEAD", tmp_path / "out")
    assert fault.message == f"the link link points out of the repository: {destination}"


def test_links_that_lead_out_together_are_refused(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    """By its text alone the second one stays inside."""
    (repository.path / "a" / "b").mkdir(parents=True)
    (repository.path / "a" / "b" / "up").symlink_to("../..")
    (repository.path / "z").symlink_to("a/b/up/../x")
    repository.commit()
    fault = commit_fault(git.export_commit, "HEAD", tmp_path / "out")
    assert fault.message == "the link z points out of the repository: a/b/up/../x"


def test_links_in_a_circle_are_only_links(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    (repository.path / "a").symlink_to("b")
    (repository.path / "b").symlink_to("a")
    repository.commit()
    git.export_commit("HEAD", tmp_path / "out")
    assert (tmp_path / "out" / "a").readlink() == Path("b")


@pytest.mark.parametrize("name", [b"..", b".", b".GIT", b".git"])
def test_a_forged_name_is_refused(
    repository: Repository, git: GitRepository, tmp_path: Path, name: bytes
) -> None:
    inner = repository.forged(("100644", b"evil", repository.blob(b"x")))
    tree = repository.git("rev-parse", f"{inner}^{{tree}}")
    fault = commit_fault(
        git.export_commit, repository.forged(("40000", name, tree)), tmp_path / "out"
    )
    assert fault.message == (
        f"the repository holds a file with an unsafe path: {name.decode()}/evil"
    )
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("mode", ["100644", "120000"])
def test_a_name_that_is_both_link_and_folder_is_never_written_through(
    repository: Repository, git: GitRepository, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "outside").mkdir()
    evil = repository.blob(b"../outside")
    inner = repository.forged((mode, b"file", repository.blob(b"planted")))
    folder = repository.git("rev-parse", f"{inner}^{{tree}}")
    commit = repository.forged(("120000", b"a", evil), ("40000", b"a", folder))
    with pytest.raises(CommitError, match="lists a twice"):
        git.export_commit(commit, tmp_path / "out")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("destination", [b"", b"x" * 5000, b"a\0b"])
def test_a_link_that_cannot_exist_is_refused(
    repository: Repository, git: GitRepository, tmp_path: Path, destination: bytes
) -> None:
    commit = repository.forged(("120000", b"odd", repository.blob(destination)))
    fault = commit_fault(git.export_commit, commit, tmp_path / "out")
    assert fault.message == "odd is a link that no file system can store"


def test_a_submodule_is_refused(repository: Repository, git: GitRepository, tmp_path: Path) -> None:
    commit = repository.forged(("160000", b"lib", ABSENT))
    fault = commit_fault(git.export_commit, commit, tmp_path / "out")
    assert fault.message == "lib is a separate repository (a submodule)"


def test_an_untracked_repository_inside_is_refused(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.git("init", "-q", "inner")
    repository.git("-C", "inner", "commit", "-q", "--allow-empty", "-m", "x")
    fault = commit_fault(git.export_work_tree, tmp_path / "out")
    assert fault.message == "inner/ is a separate repository (a submodule)"


def test_a_clone_without_the_content_is_told(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write("file", "x")
    commit = repository.commit()
    blob = repository.git("rev-parse", "HEAD:file")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    fault = refusal(git.export_commit, commit, tmp_path / "out")
    assert fault.message == "the clone lacks the content of file"


def test_an_absent_object_is_never_fetched(repository: Repository, tmp_path: Path) -> None:
    """A partial clone would run whatever transport its configuration names."""
    repository.write("file", "x")
    commit = repository.commit()
    blob = repository.git("rev-parse", "HEAD:file")
    (repository.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for setting, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::touch {tmp_path}/ran"),
        ("protocol.ext.allow", "always"),
    ):
        repository.git("config", setting, value)
    refusal(GitRepository(repository.path).export_commit, commit, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


def test_an_object_that_breaks_off_is_told(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    """A loose object whose content is damaged: git stops in the middle of it."""
    repository.write("file", os.urandom(100_000))
    commit = repository.commit()
    blob = repository.git("rev-parse", "HEAD:file")
    loose = repository.path / ".git" / "objects" / blob[:2] / blob[2:]
    loose.chmod(0o644)
    loose.write_bytes(loose.read_bytes()[:50_000])
    fault = refusal(git.export_commit, commit, tmp_path / "out")
    assert fault.message in {
        "git stopped in the middle of a file",
        "the clone lacks the content of file",
    }


def test_a_target_that_cannot_be_written_is_a_storage_fault(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write("file", "x")
    repository.commit()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").symlink_to("../victim")
    with pytest.raises(StorageError, match=r"writing .*out/file failed: File exists"):
        git.export_commit("HEAD", tmp_path / "out")
    assert not (tmp_path / "victim").exists()
