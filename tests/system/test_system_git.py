"""Git: real repositories, friendly and hostile, read without obeying them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from git_workshop import Repository, commit_fault, refusal

from gate.system.git.command import GitCommand
from gate.system.git.repository import GitRepository

ABSENT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def git(repository: Repository) -> GitRepository:
    return GitRepository(repository.path)


def test_the_top_is_found_from_below(repository: Repository) -> None:
    repository.write("sub/folder/file", "x")
    assert GitRepository(repository.path / "sub" / "folder").top_level() == repository.path


def test_no_repository_is_told(tmp_path: Path) -> None:
    fault = refusal(GitRepository(tmp_path).top_level)
    assert fault.message == f"{tmp_path} is not inside the work tree of a git repository"
    assert fault.details[0].startswith("fatal: not a git repository")


def test_a_bare_repository_is_none(repository: Repository, tmp_path: Path) -> None:
    repository.git("clone", "-q", "--bare", ".", str(tmp_path / "bare"))
    fault = refusal(GitRepository(tmp_path / "bare").resolve, "HEAD")
    assert "is not inside the work tree" in fault.message


def test_git_that_is_not_installed_is_told(repository: Repository, tmp_path: Path) -> None:
    git = GitRepository(repository.path, search_path=str(tmp_path))
    message = "git is not installed, or not on the PATH"
    assert refusal(git.top_level).message == message
    command = GitCommand(repository.path, search_path=str(tmp_path))
    with Path(os.devnull).open("rb") as empty:
        fault = refusal(command.stream("version", stdin=empty).__enter__)
    assert fault.message == message


def test_a_git_that_cannot_start_is_told(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "git").touch(mode=0o755)
    git = GitRepository(repository.path, search_path=str(tmp_path))
    assert "git cannot be started: [Errno 8] Exec format error" in refusal(git.top_level).message


def test_a_git_that_hangs_is_given_up(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\nexec /bin/sleep 30\n")
    (tmp_path / "git").chmod(0o755)
    command = GitCommand(repository.path, search_path=str(tmp_path), query_seconds=0.2)
    assert refusal(command.output, "status").message == "git status timed out after 0.2 s"


def test_a_work_tree_of_another_account_is_read(repository: Repository) -> None:
    commit = repository.commit()
    if os.geteuid() == 0:
        for path in (repository.path, repository.path / ".git"):
            os.chown(path, 60900, 60900)
    assert GitRepository(repository.path).resolve("main") == commit


@pytest.mark.parametrize("reference", ["HEAD", "main", "v1", "v2"])
def test_a_name_becomes_a_full_hash(
    repository: Repository, git: GitRepository, reference: str
) -> None:
    commit = repository.commit()
    repository.git("tag", "v1")
    repository.git("tag", "-a", "v2", "-m", "annotated")
    assert git.resolve(reference) == commit
    assert git.resolve(commit[:8]) == commit


def test_an_absent_commit_hints_at_a_shallow_clone(
    repository: Repository, git: GitRepository
) -> None:
    repository.commit()
    fault = refusal(git.resolve, ABSENT)
    assert fault.message == f"there is no commit '{ABSENT}' in this repository"
    assert "fetch-depth: 0" in fault.hint


@pytest.mark.parametrize("reference", ["no-such", "--all", "", "HEAD:file", "a\0b", "HEAD\nHEAD"])
def test_what_names_no_commit_is_refused(
    repository: Repository, git: GitRepository, reference: str
) -> None:
    repository.write("file", "x")
    repository.commit()
    refusal(git.resolve, reference)


def test_a_file_of_a_commit_is_read_whatever_the_work_tree_says(
    repository: Repository, git: GitRepository
) -> None:
    repository.write("sub/Ünï*.txt", b"committed\r\n\0")
    commit = repository.commit()
    repository.write("sub/Ünï*.txt", "changed")
    assert git.read_file(commit, "sub/Ünï*.txt") == b"committed\r\n\0"
    assert git.read_file(commit, "sub/other") is None
    assert git.read_file(commit, "sub/*") is None


def test_links_folders_and_giants_are_not_read(repository: Repository, git: GitRepository) -> None:
    repository.write("sub/file", "x")
    repository.write("giant", bytes(8 * 1024 * 1024 + 1))
    (repository.path / "link").symlink_to("sub/file")
    commit = repository.commit()
    read = git.read_file
    assert commit_fault(read, commit, "link").message == f"link is a link in commit {commit[:12]}"
    assert commit_fault(read, commit, "sub").message == f"sub is not a file in commit {commit[:12]}"
    message = "giant has 8,388,609 bytes, the limit is 8,388,608"
    assert commit_fault(read, commit, "giant").message == message
    assert refusal(read, ABSENT, "x").message == "git ls-tree failed"


def test_changes_of_every_kind_are_told(repository: Repository, git: GitRepository) -> None:
    for name in ("edited", "deleted", "before", "kept"):
        repository.write(name, f"{name}\n" * 20)
    repository.write(".gitignore", "ignored\n")
    repository.commit()
    repository.write("edited", "new")
    (repository.path / "deleted").unlink()
    repository.git("mv", "before", "after")
    repository.write("folder/un tracked\n→", "x")
    repository.write("ignored", "x")
    assert git.changed_files() == (
        "after",
        "before",
        "deleted",
        "edited",
        "folder/un tracked\n→",
    )


def test_a_clean_tree_has_no_changes(repository: Repository, git: GitRepository) -> None:
    repository.write("file", "x")
    repository.commit()
    assert git.changed_files() == ()


def test_nothing_that_the_repository_configures_runs(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    """Hooks, a monitor, filters, pager, other diffs: each would leave a file behind."""
    mark = repository.write("mark.sh", f"#!/bin/sh\ntouch {tmp_path}/ran\ncat\n")
    mark.chmod(0o755)
    repository.write(".gitattributes", "*.dat filter=evil diff=evil\n*.bin filter=worse\n")
    for name in ("a.dat", "a.bin"):
        repository.write(name, "x")
    commit = repository.commit()
    hook = repository.path / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_bytes(mark.read_bytes())
    hook.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "diff.evil.textconv"):
        repository.git("config", name, str(mark))
    for name in ("clean", "smudge"):
        repository.git("config", f"filter.evil.{name}", str(mark))
    repository.git("config", "filter.worse.process", str(mark))
    repository.git("config", "filter.worse.required", "true")
    for name in ("a.dat", "a.bin"):
        repository.write(name, "y")
    assert git.changed_files() == ("a.bin", "a.dat")
    # a clone would run these filters: the gate says so, and runs none
    assert (
        "goes through the filter"
        in commit_fault(git.export_commit, commit, tmp_path / "one").message
    )
    git.export_work_tree(tmp_path / "two")
    git.read_file(commit, "a.dat")
    git.credentials_left()
    assert not (tmp_path / "ran").exists()
    subprocess.run(  # the trap does work
        ("git", "-C", str(repository.path), "status"),  # noqa: S607 - the PATH of the tests
        check=False,
        capture_output=True,
    )
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("included", [False, True])
def test_a_credential_in_the_configuration_is_named_and_not_shown(
    repository: Repository, git: GitRepository, tmp_path: Path, *, included: bool
) -> None:
    """Checkout wrote its header into the clone itself, and since version 6 into a file beside."""
    assert git.credentials_left() == ()
    header = "http.https://github.com/.extraheader"
    beside = tmp_path / "git-credentials-1.config"
    where = ("-f", str(beside)) if included else ()
    repository.git("config", *where, header, "AUTHORIZATION: basic CANARY")
    key = f"includeif.gitdir:{repository.path}/.git.path"
    if included:
        repository.git("config", key, str(beside))
    assert git.credentials_left() == ((header, key) if included else (header,))


def test_reading_leaves_the_repository_as_it_is(repository: Repository, git: GitRepository) -> None:
    file = repository.write("file", "x")
    repository.commit()
    os.utime(file, (1, 1))
    index = (repository.path / ".git" / "index").read_bytes()
    git.changed_files()
    assert (repository.path / ".git" / "index").read_bytes() == index


def test_the_callers_environment_does_not_reach_git(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "broken")
    assert GitRepository(repository.path).top_level() == repository.path


def test_a_folder_of_new_files_is_one_name_and_what_is_ignored_is_none(
    repository: Repository, git: GitRepository
) -> None:
    for path in ("kept", ".gitignore", "new/a", "new/b/c", "alone", "data/x"):
        repository.write(path, "data/\n")
    repository.git("add", "kept", ".gitignore")
    assert git.untracked() == ("alone", "new/")
    assert git.visible_files() == (".gitignore", "alone", "kept", "new/a", "new/b/c")
    assert (git.ignores("data"), git.ignores("data/x")) == (True, True)
    assert (git.ignores("new"), git.ignores("kept"), git.ignores("absent")) == (False,) * 3


def test_new_byte_code_is_no_change_and_committed_byte_code_is(
    repository: Repository, git: GitRepository, tmp_path: Path
) -> None:
    repository.write("a.py", "1\n")
    repository.commit()
    for path in ("__pycache__/a.cpython-311.pyc", "sub/__pycache__/b.cpython-311.opt-1.pyc"):
        repository.write(path, "code\n")
    assert (git.changed_files(), git.untracked()) == ((), ())
    assert git.visible_files() == ("a.py",)
    assert git.ignored() == ("__pycache__/", "sub/")
    git.export_work_tree(tmp_path / "tree")
    assert [path.name for path in (tmp_path / "tree").iterdir()] == ["a.py"]
    # whatever else lies there, or is byte code in name alone
    for path in ("__pycache__/notes.txt", "loose.pyc"):
        repository.write(path, "x\n")
    assert git.changed_files() == ("__pycache__/notes.txt", "loose.pyc")
    repository.git(
        "add", "-f", "__pycache__/a.cpython-311.pyc", "__pycache__/notes.txt", "loose.pyc"
    )
    repository.git("commit", "-q", "-m", "byte code")
    repository.write("__pycache__/a.cpython-311.pyc", "other\n")
    assert git.changed_files() == ("__pycache__/a.cpython-311.pyc",)
    assert "__pycache__/a.cpython-311.pyc" in git.visible_files()


def test_a_commit_is_asked_for_files_and_folders(
    repository: Repository, git: GitRepository
) -> None:
    repository.write("sub/file", "x")
    commit = repository.commit()
    assert git.holds(commit, "sub/file")
    assert git.holds(commit, "sub")
    assert not git.holds(commit, "file")


def test_before_the_first_commit_the_hint_is_to_make_one(
    repository: Repository, git: GitRepository
) -> None:
    assert refusal(git.resolve, "HEAD").message == "this repository has no commit yet"
    repository.commit()
    repository.git("checkout", "-q", "--orphan", "other")
    fault = refusal(git.resolve, "HEAD")
    assert fault.message == "the current branch has no commit yet"
    assert fault.hint.startswith("`git add` and `git commit` first")


def test_remotes_are_told_by_name_and_nothing_that_they_configure_runs(
    repository: Repository,
) -> None:
    assert GitRepository(repository.path).remotes() == {}
    repository.git("remote", "add", "origin", "git@github.com:me/model.git")
    repository.git("remote", "add", "up.stream", "https://token@github.com/o/model")
    repository.git("config", "--add", "remote.origin.url", "ext::touch /tmp/never")
    assert GitRepository(repository.path).remotes() == {
        "origin": "git@github.com:me/model.git",
        "up.stream": "https://token@github.com/o/model",
    }
