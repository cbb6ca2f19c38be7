"""Read the repository without running anything that its configuration names."""

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
    """The repository, read without running anything that its configuration names."""

    def top_level(self) -> Path:
        """Return the root of the work tree."""
        ...

    def resolve(self, reference: str) -> str:
        """Return the full hash of a commit."""
        ...

    def changed_files(self) -> tuple[str, ...]:
        """Return the paths that differ from HEAD, with untracked files but without ignored ones."""
        ...

    def untracked(self) -> tuple[str, ...]:
        """Return new, not ignored paths; a wholly new folder is listed once, with a final slash."""
        ...

    def is_sparse(self) -> bool:
        """Whether the work tree is to have only some of the commit's files."""
        ...

    def visible_files(self) -> tuple[str, ...]:
        """Return the paths of all tracked and new files of the work tree, without ignored ones."""
        ...

    def ignored(self) -> tuple[str, ...]:
        """Return the ignored paths of the work tree, in the form of `untracked`."""
        ...

    def merge_base(self, first: str, second: str) -> str | None:
        """Return the newest common ancestor of two commits, or None if this clone knows none."""
        ...

    def commits_of(self, reference: str, *, max_commits: int) -> tuple[str, ...]:
        """Return the commits that a reference contains, each child before its parents."""
        ...

    def suspects(self, bad: str, good: tuple[str, ...], *, first_parent: bool) -> tuple[str, ...]:
        """Return the commits that a bisection has left, the one to test next first."""
        ...

    def facts_of(self, commit: str) -> CommitFacts:
        """Return parents, author, date and subject of a commit."""
        ...

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """Return the sorted paths of the files that differ between two commits."""
        ...

    def changed_lines(self, first: str, second: str) -> Change:
        """Return the hunks between two commits, limited in number."""
        ...

    def read_file(self, commit: str, path: str) -> bytes | None:
        """Return a file of a commit, or None if the commit has no such file."""
        ...

    def read_folder(
        self, commit: str, path: str, *, max_files: int, max_bytes: int
    ) -> Mapping[str, bytes] | None:
        """Return a folder's regular files by name, or None if the commit has nothing there."""
        ...

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """Return the number of lines of each Python file of a commit, within the limits."""
        ...

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """Return the newest commits up to HEAD that changed a file of a folder, newest first."""
        ...

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below `target`; return the tree's digest."""
        ...

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one git pack, always with the same bytes."""
        ...

    def export_work_tree(self, target: Path) -> str:
        """Write all tracked and new files as they are now; return the tree's digest."""
        ...

    def credentials_left(self) -> tuple[str, ...]:
        """Return the names of the keys in the clone's configuration that contain a credential."""
        ...


# -z: without it git quotes unusual names. --full-tree: paths are relative to the top of the
# repository.
LISTING = ("ls-tree", "-z", "-l", "--full-tree", "--end-of-options")
KINDS = {LINK: "a link", SUBMODULE: "a submodule", FOLDER: "a folder"}


def read_folder(
    git: GitCommand, commit: str, path: str, *, max_files: int, max_bytes: int
) -> dict[str, bytes] | None:
    """Return the regular files of a commit's folder by name, or None if nothing is there.

    Raises `CommitError` if the path is not a folder, contains anything but regular files, or
    exceeds `max_files` or `max_bytes` in total. It does so before any content is read.
    """
    listing = git.output(*LISTING, commit, path)
    # Without a slash after the path git lists the folder itself, so its mode shows what it is.
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
    """Return the number of lines of each Python file of a commit.

    A file is left out if it would exceed `max_bytes` in total, and reading stops at `max_files`.
    """
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
    # cat-file writes a line feed after each object (git-cat-file(1), BATCH OUTPUT)
    answers.read(1)
    return content


def _files(git: GitCommand, place: TreeEntry, commit: str, max_files: int) -> dict[str, TreeEntry]:
    """Return a folder's entries by name, at most `max_files`; the names are untrusted."""
    files: dict[str, TreeEntry] = {}
    with git.stream(*LISTING, place.object_id) as listing:
        for row in read_rows(listing, commit):
            entry = parse_entry(row)
            shown = f"{place.path}/{entry.path}"
            if entry.path in files:
                raise listed_twice(shown, commit)
            # An object that this clone lacks has no size here, and could not be read either.
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
# Python and pytest write byte code beside every module that they import. A project without a
# .gitignore must not count as changed because of it. Committed byte code counts like any other
# file.
BYTE_CODE = re.compile(r"(?:.*/)?__pycache__/[^/]*\.pyc\Z", re.DOTALL)
LEFT_OUT = ("--exclude-standard", "--exclude=**/__pycache__/*.pyc")
REMOTE_KEYS = r"^remote\..*\.url$"
_FULL_HASH = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\n")
_LIKE_A_HASH = re.compile(r"[0-9a-fA-F]{7,64}")


class GitRepository:
    """The repository whose work tree contains `path`; every fault is a `RepositoryError`."""

    def __init__(self, path: Path, *, search_path: str = SEARCH_PATH) -> None:
        self._path = path
        self._search_path = search_path

    def top_level(self) -> Path:
        """Return the root of the work tree."""
        return self._top

    @cached_property
    def _top(self) -> Path:
        # git refuses a work tree of another owner unless `safe.directory` lists it. In a container
        # the work tree belongs to the runner.
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
        """The command at the top of the work tree, with every configured filter disabled."""
        trusted = (f"safe.directory={self._top}",)
        plain = GitCommand(self._top, search_path=self._search_path, overrides=trusted)
        # `git status` sends changed files through clean filters, which are programs in the
        # configuration.
        filters = plain.run("config", "--name-only", "-z", "--get-regexp", r"^filter\.").stdout
        off = tuple(
            f"{os.fsdecode(name)}={'false' if name.endswith(b'.required') else ''}"
            for name in sorted(set(filters.split(b"\0")) - {b""})
        )
        return GitCommand(self._top, search_path=self._search_path, overrides=(*trusted, *off))

    def resolve(self, reference: str) -> str:
        """Return the full hash of the commit that a name or a hash refers to."""
        # ^{commit} dereferences a tag, and fails for anything that is not a commit.
        revision = f"{reference}^{{commit}}"
        # After --end-of-options a name that begins with a dash cannot become an option (CWE-88).
        done = self._git.run("rev-parse", "--verify", "--end-of-options", revision)
        # Some versions of git print the option too.
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
        """Return the sorted paths that differ from HEAD; a renamed file is listed under both names.

        Untracked files are included, but not ignored files and new byte code. In a submodule only
        the recorded commit counts.
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
        """Return new, not ignored paths; a wholly new folder is listed once, with a final slash."""
        words = ("-z", "-o", *LEFT_OUT, "--directory", "--no-empty-directory")
        return tuple(sorted(self._git.rows("ls-files", *words)))

    def visible_files(self) -> tuple[str, ...]:
        """Return the sorted paths of all tracked and new files, without ignored ones."""
        return tuple(sorted(set(self._git.rows("ls-files", "-z", "-c", "-o", *LEFT_OUT))))

    def ignored(self) -> tuple[str, ...]:
        """Return the ignored paths of the work tree, in the form of `untracked`."""
        options = ("-z", "--others", "--ignored", *LEFT_OUT, "--directory")
        rows = self._git.rows("ls-files", *options)
        # With a pattern for files, git lists a wholly ignored folder and also the files in it.
        outermost: list[str] = []
        for row in sorted(rows):
            if not (outermost and outermost[-1].endswith("/") and row.startswith(outermost[-1])):
                outermost.append(row)
        return tuple(outermost)

    def ignores(self, path: str) -> bool:
        """Return whether git ignores the path, or anything in the folder there."""
        options = ("-z", "--others", "--ignored", *LEFT_OUT, "--directory")
        return bool(self._git.output("ls-files", *options, "--", path))

    def holds(self, commit: str, path: str) -> bool:
        """Return whether a commit has a file, a link or a folder at a path."""
        return bool(
            self._git.output("ls-tree", "-z", "--full-tree", "--end-of-options", commit, path)
        )

    def submodules(self, commit: str) -> tuple[str, ...]:
        """Return the paths of a commit's submodules, which cannot be exported."""
        with self._git.stream("ls-tree", "-r", *LISTING[1:], commit) as listing:
            entries = (parse_entry(row) for row in read_rows(listing, commit))
            return tuple(entry.path for entry in entries if entry.mode == SUBMODULE)

    def credentials_left(self) -> tuple[str, ...]:
        """Return the configuration keys that contain a credential, never their values.

        actions/checkout stores its token as an HTTP header, either there or in an included file.
        """
        done = self._git.run("config", "--name-only", "-z", "--get-regexp", CREDENTIAL_KEYS)
        names = {os.fsdecode(name) for name in done.stdout.split(b"\0")}
        return tuple(sorted(names - {""}))

    def remotes(self) -> dict[str, str]:
        """Map the clone's remotes to their addresses, as configured.

        An address may contain a credential, so compare it but never show it.
        """
        done = self._git.run("config", "-z", "--get-regexp", REMOTE_KEYS)
        rows = (os.fsdecode(row).partition("\n") for row in done.stdout.split(b"\0") if row)
        # A remote may have several addresses; git fetches from the first one.
        remotes: dict[str, str] = {}
        for key, _, address in rows:
            remotes.setdefault(key.removeprefix("remote.").removesuffix(".url"), address)
        return remotes

    def user_name(self, home: str) -> str:
        """Return the author name for commits made here, or the empty text.

        It comes from the clone's configuration or from a home folder's. A file named with `--file`
        is read without its includes, and reading it runs nothing.
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
        """Return whether the clone lacks commits before some point of the history."""
        return self._git.output("rev-parse", "--is-shallow-repository").strip() == b"true"

    def commits_of(self, reference: str, *, max_commits: int) -> tuple[str, ...]:
        """Return the commits that a reference contains, each child before its parents.

        Raises `RepositoryError` in a shallow clone, which does not know all of them.
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
        """Return the newest common ancestor of two commits; a shallow clone may know none."""
        # Full hashes, so neither name can be taken for an option.
        done = self._git.run("merge-base", self.resolve(first), self.resolve(second))
        return done.stdout.decode("ascii").strip() if done.returncode == 0 else None

    def suspects(self, bad: str, good: tuple[str, ...], *, first_parent: bool) -> tuple[str, ...]:
        """Return the commits to bisect: contained in the bad commit, not in the good ones.

        All of them descend from a good commit. The commit that halves them best comes first, the
        bad one last. If a merge added commits that are older than all good ones, only the merge is
        listed. `first_parent` omits everything that merges added. All hashes are full.
        """
        words = ["--bisect-all", "--ancestry-path", *(["--first-parent"] if first_parent else [])]
        output = self._git.output("rev-list", *words, bad, *(f"^{commit}" for commit in good))
        # git prints each commit's distance after its hash
        commits = [line.split()[0].decode("ascii") for line in output.splitlines() if line]
        return (
            *(commit for commit in commits if commit != bad),
            *([bad] if bad in commits else []),
        )

    def facts_of(self, commit: str) -> CommitFacts:
        """Return parents, author, date and subject of a commit, given by its full hash."""
        return commit_facts(self._git, commit)

    def changed_between(self, first: str, second: str) -> tuple[str, ...]:
        """Return the sorted paths of the files that differ between two commits; reads only trees.

        Raises `RepositoryError` for a commit that this clone does not have.
        """
        commits = (self.resolve(first), self.resolve(second))
        rows = self._git.rows(
            "diff-tree", "-r", "-z", "--name-only", "--no-renames", "--end-of-options", *commits
        )
        return tuple(sorted(set(rows)))

    def changed_lines(self, first: str, second: str) -> Change:
        """Return the hunks between two commits, limited; no configured program runs.

        Raises `RepositoryError` for a commit that this clone does not have.
        """
        return changed_lines(self._git, self.resolve(first), self.resolve(second))

    def read_file(self, commit: str, path: str) -> bytes | None:
        """Return a file of a commit, or None if it has none there.

        Raises `CommitError` for a link, for anything but a file, and above `MAX_FILE_BYTES`.
        """
        listing = self._git.output(
            "ls-tree", "-z", "-l", "--full-tree", "--end-of-options", commit, path
        )
        entry = next((row for row in parse_entries(listing) if row.path == path), None)
        if entry is None:
            return None
        # Following a link could lead to a file that nobody reviewed.
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
        """Return a folder's regular files by name, or None if the commit has nothing there.

        Raises `CommitError` for any other entry in it, and above the limits.
        """
        return read_folder(self._git, commit, path, max_files=max_files, max_bytes=max_bytes)

    def python_lines(self, commit: str, *, max_files: int, max_bytes: int) -> dict[str, int]:
        """Return the number of lines of each Python file of a commit, within the limits."""
        return python_lines(self._git, commit, max_files=max_files, max_bytes=max_bytes)

    def folder_history(self, folder: str, *, max_commits: int) -> tuple[FolderCommit, ...]:
        """Return the newest commits up to HEAD that changed a file of a folder, newest first."""
        return folder_history(self._git, folder, max_commits=max_commits)

    def export_commit(self, commit: str, target: Path) -> str:
        """Write every file of a commit below a new or empty folder; return the tree's digest.

        The bytes are a fresh clone's. git itself applies line ends, `ident` and encoding of the
        commit's `.gitattributes`. No filter runs, and a Git LFS pointer stays a pointer. Raises
        `CommitError` for a file that a filter of this clone's configuration would change, a
        submodule, a link that leads outside, and an unsafe path. Also, with nothing written, for a
        name that is listed twice and for more than `MAX_ENTRIES` entries.
        """
        words = ("-r", "-t", "-z", "--full-tree", "--end-of-options", commit)
        with self._git.stream("ls-tree", *words) as listing:
            entries = read_tree_entries(listing, commit)
        # unlike `self._git`, without disabled filters: the question is which ones a clone would run
        plain = GitCommand(
            self._top, search_path=self._search_path, overrides=(f"safe.directory={self._top}",)
        )
        programs = filter_programs(plain)
        return write_commit(self._git, entries, target, commit, programs=programs)

    def write_source(self, commit: str, target: BinaryIO) -> None:
        """Write a commit, its trees and its blobs as one git pack, always with the same bytes."""
        write_source_pack(self._top, commit, target)

    def export_work_tree(self, target: Path) -> str:
        """Write all tracked and new files as they are now; return the tree's digest."""
        return write_work_tree(self._top, self.visible_files(), target)


def _is_new_byte_code(row: str) -> bool:
    """Return whether a row of `git status` is about byte code that is not committed."""
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
