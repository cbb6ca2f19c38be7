"""The repository, read without running anything that it configures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, BinaryIO, Protocol

from gate.errors import CommitError, RepositoryError
from gate.system.git.changed_lines import changed_lines
from gate.system.git.changes import Change
from gate.system.git.command import SEARCH_PATH, GitCommand, failure
from gate.system.git.export import (
    exactly,
    filter_programs,
    size_of_next,
    stored_content,
    write_commit,
    write_source_pack,
    write_work_tree,
)
from gate.system.git.objects import (
    FOLDER,
    LINK,
    PERMISSIONS,
    SUBMODULE,
    CommitFacts,
    FolderCommit,
    TreeEntry,
    commit_facts,
    folder_history,
    listed_twice,
    parse_entries,
    parse_entry,
    read_rows,
    read_tree_entries,
)
from gate.text.untrusted_text import safe_line


class Git(Protocol):
    """The repository, read without running anything that it configures."""

    def top_level(self) -> Path:
        """The root of the work tree."""
        ...

    def resolve(self, reference: str) -> str:
        """The full hash of a commit."""
        ...

    def changed_files(self) -> tuple[str, ...]:
        """Paths that differ from HEAD, untracked files included, ignored ones left out."""
        ...

    def untracked(self) -> tuple[str, ...]:
        """What is new and not ignored; a folder of it stands there once, with a slash behind."""
        ...

    def is_sparse(self) -> bool:
        """Whether the work tree is to have only some of the commit's files."""
        ...

    def visible_files(self) -> tuple[str, ...]:
        """Paths of all files of the work tree, tracked or new, ignored ones left out."""
        ...

    def ignored(self) -> tuple[str, ...]:
        """What lies in the work tree and is ignored, in the same form."""
        ...

    def merge_base(self, first: str, second: str) -> str | None:
        """The commit that two lines of work share last, None where this clone knows of none."""
        ...

    def commits_of(self, reference: str, *, max_commits: int) -> tuple[str, ...]:
        """The commits that a reference contains, no parent before its child."""
        ...

    def suspects(self, bad: str, good: tuple[str, ...], *, first_parent: bool) -> tuple[str, ...]:
        """What a bisection between commits has left, the commit that halves it first."""
        ...

    def facts_of(self, commit: str) -> CommitFacts:
        """Parents, author, date and subject of a commit."""
        ...

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """The sorted paths of the files that are not the same in two commits."""
        ...

    def changed_lines(self, first: str, second: str) -> Change:
        """The hunks between two commits, a bounded number of them."""
        ...

    def read_file(self, commit: str, path: str) -> bytes | None:
        """A file of a commit, or None when it has none there."""
        ...

    def read_folder(
        self, commit: str, path: str, *, max_files: int, max_bytes: int
    ) -> Mapping[str, bytes] | None:
        """The regular files of a commit's folder by name, or None when it has nothing there."""
        ...

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """How many lines each Python file of a commit has; beyond the limits a file is left out."""
        ...

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """The newest commits before HEAD that changed a file of a folder, newest first."""
        ...

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below `target`; return the tree's digest."""
        ...

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one pack of git, the same bytes every time."""
        ...

    def export_work_tree(self, target: Path) -> str:
        """Write tracked and untracked, not ignored files as they are now; return the digest."""
        ...

    def credentials_left(self) -> tuple[str, ...]:
        """Names of the keys of the clone's configuration that hold a credential."""
        ...


# -z: git quotes unusual names without it; --full-tree: paths from the top, wherever this runs
LISTING = ("ls-tree", "-z", "-l", "--full-tree", "--end-of-options")
KINDS = {LINK: "a link", SUBMODULE: "a submodule", FOLDER: "a folder"}


def read_folder(
    git: GitCommand, commit: str, path: str, *, max_files: int, max_bytes: int
) -> dict[str, bytes] | None:
    """The regular files of a folder by their names, or None when the commit has nothing there.

    Raises `CommitError`, before a byte of content is read, for what is not a folder, for anything
    in it but regular files, and for more than `max_files` of them or `max_bytes` together.
    """
    listing = git.output(*LISTING, commit, path)
    # without a slash behind its path git lists the folder itself, and its mode says what it is
    place = next((row for row in parse_entries(listing) if row.path == path), None)
    if place is None:
        return None
    if place.mode != FOLDER:
        raise CommitError(
            f"{safe_line(path)} is {KINDS.get(place.mode, 'a file')}, not a folder, in commit "
            f"{commit[:12]}",
            hint="Commit a folder there: it is read from the commit, and links are not followed.",
        )
    files = _files(git, place, commit, max_files)
    if sum(entry.size or 0 for entry in files.values()) > max_bytes:
        raise CommitError(
            f"{safe_line(path)} holds more than {max_bytes // 1024**2} MiB in commit {commit[:12]}",
            hint="Commit fewer or smaller files there.",
        )
    with stored_content(git, tuple(files.values())) as answers:
        return {name: _content(answers, entry) for name, entry in files.items()}


def python_lines(git: GitCommand, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
    """How many lines each Python file of a commit has; beyond the limits a file is left out."""
    with git.stream(*LISTING[:1], "-r", *LISTING[1:], commit) as listing:
        rows = (parse_entry(row) for row in read_rows(listing, commit))
        entries: list[TreeEntry] = []
        for entry in rows:
            size = entry.size if entry.path.endswith(".py") else None
            if entry.mode in PERMISSIONS and size is not None and size <= max_bytes:
                max_bytes -= size
                entries.append(entry)
            if len(entries) == max_files:
                break
    with stored_content(git, tuple(entries)) as answers:
        contents = ((entry.path, _content(answers, entry)) for entry in entries)
        return {path: data.count(b"\n") + (data[-1:] not in b"\n") for path, data in contents}


def _content(answers: IO[bytes], entry: TreeEntry) -> bytes:
    size = size_of_next(answers, entry.path)
    if size != entry.size:
        raise CommitError(
            f"{safe_line(entry.path)} has another size than its commit lists",
            hint="Check the clone with `git fsck`, or clone again.",
        )
    content = b"".join(exactly(answers, size))
    # a line feed follows each object (git-cat-file(1), BATCH OUTPUT)
    answers.read(1)
    return content


def _files(git: GitCommand, place: TreeEntry, commit: str, max_files: int) -> dict[str, TreeEntry]:
    """What the folder lists, no more than may be there; names are untrusted."""
    files: dict[str, TreeEntry] = {}
    with git.stream(*LISTING, place.object_id) as listing:
        for row in read_rows(listing, commit):
            entry = parse_entry(row)
            shown = f"{place.path}/{entry.path}"
            if entry.path in files:
                raise listed_twice(shown, commit)
            # an object that this clone lacks has no size, and could not be read either
            if entry.mode not in PERMISSIONS or entry.size is None:
                kind = KINDS.get(entry.mode, "not in this clone")
                raise CommitError(
                    f"{safe_line(shown)} is {kind} in commit {commit[:12]}",
                    hint="Only regular files are allowed there; links are not followed. Clone "
                    "without a filter, so that every file is here.",
                )
            files[entry.path] = entry
            if len(files) > max_files:
                raise CommitError(
                    f"{safe_line(place.path)} holds more than {max_files:,} files in commit "
                    f"{commit[:12]}",
                    hint="Commit fewer files there.",
                )
    return files


MAX_FILE_BYTES = 8 * 1024 * 1024
CREDENTIAL_KEYS = r"^(http\..*\.extraheader|includeif\..*\.path)$"
# Python writes byte code beside whatever it imports, pytest too; a project without a .gitignore is
# no less committed for it. Committed byte code counts like every file.
BYTE_CODE = re.compile(r"(?:.*/)?__pycache__/[^/]*\.pyc\Z", re.DOTALL)
LEFT_OUT = ("--exclude-standard", "--exclude=**/__pycache__/*.pyc")
REMOTE_KEYS = r"^remote\..*\.url$"
_FULL_HASH = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\n")
_LIKE_A_HASH = re.compile(r"[0-9a-fA-F]{7,64}")


class GitRepository:
    """The repository whose work tree holds `path`; every fault is a `RepositoryError`."""

    def __init__(self, path: Path, *, search_path: str = SEARCH_PATH) -> None:
        self._path = path
        self._search_path = search_path

    def top_level(self) -> Path:
        """The root of the work tree."""
        return self._top

    @cached_property
    def _top(self) -> Path:
        # its owner may be somebody else: in a container the work tree is the runner's
        git = GitCommand(self._path, search_path=self._search_path, overrides=("safe.directory=*",))
        done = git.run("rev-parse", "--show-toplevel")
        if done.returncode != 0:
            raise RepositoryError(
                f"{safe_line(str(self._path))} is not inside the work tree of a git repository",
                hint="Change to a clone of the project, or make this folder one: `git init`, then "
                "commit. In a workflow, run actions/checkout before the gate.",
                details=failure(("rev-parse",), done.stderr).details,
            )
        return Path(os.fsdecode(done.stdout.removesuffix(b"\n")))

    @cached_property
    def _git(self) -> GitCommand:
        """The command at the top, with every filter of the repository's configuration emptied."""
        trusted = (f"safe.directory={self._top}",)
        plain = GitCommand(self._top, search_path=self._search_path, overrides=trusted)
        # `git status` cleans changed files through filters: programs that the configuration names
        filters = plain.run("config", "--name-only", "-z", "--get-regexp", r"^filter\.").stdout
        off = tuple(
            f"{os.fsdecode(name)}={'false' if name.endswith(b'.required') else ''}"
            for name in sorted(set(filters.split(b"\0")) - {b""})
        )
        return GitCommand(self._top, search_path=self._search_path, overrides=(*trusted, *off))

    def resolve(self, reference: str) -> str:
        """The full hash of the commit that a name or hash stands for."""
        # peels a tag, and refuses what is no commit
        revision = f"{reference}^{{commit}}"
        # a name that begins with a dash is a name and no option (CWE-88)
        done = self._git.run("rev-parse", "--verify", "--end-of-options", revision)
        # some versions of git print the option as well
        answer = done.stdout.removeprefix(b"--end-of-options\n")
        if done.returncode != 0 or not _FULL_HASH.fullmatch(answer):
            if reference == "HEAD":
                raise self._nothing_committed()
            raise RepositoryError(
                f"there is no commit {safe_line(reference, limit=200)!r} in this repository",
                hint=_unknown_commit_hint(reference, shallow=self.is_shallow()),
            )
        return answer.decode("ascii").strip()

    def _nothing_committed(self) -> RepositoryError:
        some = self._git.output("rev-list", "--all", "--max-count=1")
        return RepositoryError(
            f"{'the current branch' if some else 'this repository'} has no commit yet",
            hint="`git add` and `git commit` first: the gate trains a commit.",
        )

    def changed_files(self) -> tuple[str, ...]:
        """Paths that differ from HEAD, sorted; a renamed file stands there under both names.

        Untracked files are included, ignored ones and byte code are not; of a submodule only its
        commit counts.
        """
        rows = self._git.rows(
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=all",
            "--no-renames",
            "--ignore-submodules=dirty",
        )
        return tuple(sorted({row[3:] for row in rows if not _is_new_byte_code(row)}))

    def untracked(self) -> tuple[str, ...]:
        """What is new and not ignored; a folder of it stands there once, with a slash behind."""
        words = ("-z", "-o", *LEFT_OUT, "--directory", "--no-empty-directory")
        return tuple(sorted(self._git.rows("ls-files", *words)))

    def visible_files(self) -> tuple[str, ...]:
        """Paths of all files of the work tree, tracked or new, ignored ones left out; sorted."""
        return tuple(sorted(set(self._git.rows("ls-files", "-z", "-c", "-o", *LEFT_OUT))))

    def ignored(self) -> tuple[str, ...]:
        """What lies in the work tree and is ignored, in the same form."""
        options = ("-z", "--others", "--ignored", *LEFT_OUT, "--directory")
        rows = self._git.rows("ls-files", *options)
        # with a pattern for files git lists a folder of nothing else, and its files behind it
        outermost: list[str] = []
        for row in sorted(rows):
            if not (outermost and outermost[-1].endswith("/") and row.startswith(outermost[-1])):
                outermost.append(row)
        return tuple(outermost)

    def ignores(self, path: str) -> bool:
        """Whether git leaves out what lies at a path of the work tree, or some of a folder."""
        options = ("-z", "--others", "--ignored", *LEFT_OUT, "--directory")
        return bool(self._git.output("ls-files", *options, "--", path))

    def holds(self, commit: str, path: str) -> bool:
        """Whether a commit has a file, a link or a folder at a path."""
        return bool(
            self._git.output("ls-tree", "-z", "--full-tree", "--end-of-options", commit, path)
        )

    def submodules(self, commit: str) -> tuple[str, ...]:
        """The paths of a commit at which another repository stands: it cannot be exported."""
        with self._git.stream("ls-tree", "-r", *LISTING[1:], commit) as listing:
            entries = (parse_entry(row) for row in read_rows(listing, commit))
            return tuple(entry.path for entry in entries if entry.mode == SUBMODULE)

    def credentials_left(self) -> tuple[str, ...]:
        """Names of the keys of the clone's configuration that hold a credential; never a value.

        actions/checkout leaves its token as a header, written there or in a file that is included.
        """
        done = self._git.run("config", "--name-only", "-z", "--get-regexp", CREDENTIAL_KEYS)
        names = {os.fsdecode(name) for name in done.stdout.split(b"\0")}
        return tuple(sorted(names - {""}))

    def remotes(self) -> dict[str, str]:
        """The addresses of the clone's remotes by their names, as they are configured.

        An address may hold a credential: it is for comparing, never for showing.
        """
        done = self._git.run("config", "-z", "--get-regexp", REMOTE_KEYS)
        rows = (os.fsdecode(row).partition("\n") for row in done.stdout.split(b"\0") if row)
        # of several addresses git fetches from the first
        remotes: dict[str, str] = {}
        for key, _, address in rows:
            remotes.setdefault(key.removeprefix("remote.").removesuffix(".url"), address)
        return remotes

    def user_name(self, home: str) -> str:
        """The name that commits made here carry, of the clone or of a home folder; else empty.

        A file that is named is read without what it includes, and runs nothing.
        """
        own = [f"{home}/{name}" for name in (".gitconfig", ".config/git/config")] if home else []
        for where in ((), *(("--file", path) for path in own)):
            name = self._git.run("config", *where, "--get", "user.name").stdout
            if name.strip():
                return name.decode("utf-8", "replace").strip()
        return ""

    def is_sparse(self) -> bool:
        """Whether the work tree is to have only some of the commit's files."""
        done = self._git.run("config", "--bool", "core.sparseCheckout")
        return done.stdout.strip() == b"true"

    def is_shallow(self) -> bool:
        """Whether the clone ends before the repository's first commit."""
        return self._git.output("rev-parse", "--is-shallow-repository").strip() == b"true"

    def commits_of(self, reference: str, *, max_commits: int) -> tuple[str, ...]:
        """The commits that a reference contains, no parent before its child.

        Raises `RepositoryError` in a shallow clone, which does not know them all.
        """
        if self.is_shallow():
            raise RepositoryError(
                f"this clone is shallow: it does not have all commits of {safe_line(reference)}",
                hint="Run `git fetch --unshallow` first; on a runner, set fetch-depth: 0.",
            )
        words = ("--topo-order", f"--max-count={max_commits}", "--end-of-options")
        return tuple(
            self._git.output("rev-list", *words, self.resolve(reference)).decode("ascii").split()
        )

    def merge_base(self, first: str, second: str) -> str | None:
        """The commit that two lines of work share last; a shallow clone may know of none."""
        # no option stands behind the names, which are full hashes
        done = self._git.run("merge-base", self.resolve(first), self.resolve(second))
        return done.stdout.decode("ascii").strip() if done.returncode == 0 else None

    def suspects(self, bad: str, good: tuple[str, ...], *, first_parent: bool) -> tuple[str, ...]:
        """The commits that a bad one contains and the good ones do not, and that descend from them.

        The one that halves them best comes first, the bad one last. What came in by a merge from
        before all good commits is not among them: the merge is. `first_parent` leaves out all that
        a merge brought. Full hashes in and out.
        """
        words = ["--bisect-all", "--ancestry-path", *(["--first-parent"] if first_parent else [])]
        output = self._git.output("rev-list", *words, bad, *(f"^{commit}" for commit in good))
        # behind each hash stands how far it is from both ends
        commits = [line.split()[0].decode("ascii") for line in output.splitlines() if line]
        return (
            *(commit for commit in commits if commit != bad),
            *([bad] if bad in commits else []),
        )

    def facts_of(self, commit: str) -> CommitFacts:
        """Parents, author, date and subject of a commit, given by its full hash."""
        return commit_facts(self._git, commit)

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """The sorted paths of the files that are not the same in two commits; trees alone are read.

        Raises `RepositoryError` for a commit that this clone does not have.
        """
        commits = (self.resolve(first), self.resolve(second))
        rows = self._git.rows(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", *commits
        )
        return tuple(sorted(set(rows)))

    def changed_lines(self, first: str, second: str) -> Change:
        """The hunks between two commits, bounded; no program of the configuration runs.

        Raises `RepositoryError` for a commit that this clone does not have.
        """
        return changed_lines(self._git, self.resolve(first), self.resolve(second))

    def read_file(self, commit: str, path: str) -> bytes | None:
        """A file of a commit, 8 MiB at most, or None when it has none there."""
        listing = self._git.output(
            "ls-tree", "-z", "-l", "--full-tree", "--end-of-options", commit, path
        )
        entry = next((row for row in parse_entries(listing) if row.path == path), None)
        if entry is None:
            return None
        # a link that is followed could lead to another file than the one that was reviewed
        if entry.mode == LINK or entry.size is None:
            kind = "a link" if entry.mode == LINK else "not a file"
            raise CommitError(
                f"{safe_line(path)} is {kind} in commit {commit[:12]}",
                hint="Commit a regular file there: it is read from the commit, and links are not "
                "followed.",
            )
        if entry.size > MAX_FILE_BYTES:
            raise CommitError(
                f"{safe_line(path)} has {entry.size:,} bytes, the limit is {MAX_FILE_BYTES:,}",
                hint="Commit a smaller file.",
            )
        return self._git.output("cat-file", "blob", entry.object_id)

    def read_folder(
        self, commit: str, path: str, *, max_files: int, max_bytes: int
    ) -> dict[str, bytes] | None:
        """The regular files of a commit's folder by name, or None when it has nothing there.

        Raises `CommitError` for anything else in it, and beyond the limits.
        """
        return read_folder(self._git, commit, path, max_files=max_files, max_bytes=max_bytes)

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """How many lines each Python file of a commit has; beyond the limits a file is left out."""
        return python_lines(self._git, commit, max_files=max_files, max_bytes=max_bytes)

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """The newest commits before HEAD that changed a file of a folder, newest first."""
        return folder_history(self._git, folder, max_commits=max_commits)

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below a new or empty folder; the digest of the tree.

        Bytes are a fresh clone's, as the commit's `.gitattributes` ask: line ends, `ident` and
        encoding, by git itself; no filter runs, and a Git LFS pointer stays one. Raises
        `CommitError` for a file that a filter of this clone's configuration would change, a
        submodule, a link that leads out, an unsafe path, and, with nothing written, for a name that
        is there twice and for more than 200,000 entries.
        """
        words = ("-r", "-t", "-z", "--full-tree", "--end-of-options", commit)
        with self._git.stream("ls-tree", *words) as listing:
            entries = read_tree_entries(listing, commit)
        plain = GitCommand(
            self._top, search_path=self._search_path, overrides=(f"safe.directory={self._top}",)
        )
        programs = filter_programs(plain)
        return write_commit(self._git, entries, target, commit, programs=programs)

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one pack of git, the same bytes every time."""
        write_source_pack(self._top, commit, target)

    def export_work_tree(self, target: Path) -> str:
        """Write tracked and untracked, not ignored files as they are now; the tree's digest."""
        return write_work_tree(self._top, self.visible_files(), target)


def _is_new_byte_code(row: str) -> bool:
    """Whether a row of `git status` is of byte code that git does not have."""
    return row.startswith("?? ") and BYTE_CODE.match(row[3:]) is not None


def _unknown_commit_hint(reference: str, *, shallow: bool) -> str:
    if shallow:
        return (
            "This clone is shallow: run `git fetch --unshallow`, or give actions/checkout "
            "`fetch-depth: 0`."
        )
    if _LIKE_A_HASH.fullmatch(reference):
        return (
            "Run `git fetch`, or correct the hash; in a workflow, give actions/checkout "
            "`fetch-depth: 0`."
        )
    return "Fetch it first (actions/checkout fetches one branch only), or correct the name."
