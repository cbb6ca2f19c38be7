"""Lock files and data pointers of a commit: copied out of its tree, parsed by the confined reader.

The settings name these files, but a pull request may write their content. So this process parses
none of them (T5 in docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from gate.data.data_sets import MAX_NUMBER, MAX_POINTERS, DataPointer, DataPointers, PointerFile
from gate.data.pointers import MAX_LFS_BYTES, MAX_POINTER_BYTES
from gate.errors import DataError, SettingsError, StorageError
from gate.evidence.lock_files import MAX_LOCK_BYTES, MAX_LOCKS, LockFile
from gate.evidence.lock_readers import has_hashes, is_explicit, is_pylock
from gate.pipelines.reader_questions import (
    MAX_POINTER_FILES,
    Ask,
    DataPointersQuestion,
    LocksQuestion,
)
from gate.settings.data import LOCK_NAME, DataKind, DataSource
from gate.system.files.port import Files
from gate.training.runs import Commit
from gate.verdict.request import GateRequest

ALWAYS: Final = ("uv.lock", "poetry.lock", "Pipfile.lock", "pixi.lock", "kernels.lock")
REQUIREMENTS: Final = ("requirements*.txt",)
EXPLICIT_LISTS: Final = ("conda*.txt", "conda*.lock", "*explicit*.txt", "environment*.txt")
MAX_NAMES: Final = 10_000
MAX_PROBLEM: Final = 500


def locks_of_commits(
    request: GateRequest, trees: Mapping[Commit, Path], folder: Path, files: Files, ask: Ask
) -> dict[Commit, tuple[LockFile, ...]]:
    """Return the lock files of head and of an exported base, from their exported trees.

    The base may lack a lock that the settings name, because it may be older than the lock.
    """
    locks: dict[Commit, tuple[LockFile, ...]] = {}
    for which, tree in trees.items():
        # copies of the other commit must not remain, as both use the same names
        files.fresh_folder(folder)
        required = which is Commit.HEAD
        locks[which] = read_locks(request, tree, folder, files, ask, required=required)
    return locks


def read_locks(
    request: GateRequest, tree: Path, folder: Path, files: Files, ask: Ask, *, required: bool
) -> tuple[LockFile, ...]:
    """Return the lock files of an exported commit.

    `folder` takes the copies that the reader parses. With `required`, a lock that the settings name
    must exist and be readable, or `SettingsError` is raised. A lock that was only found by its name
    keeps its problem for a finding.
    """
    named = tuple(dict.fromkeys(map(request.repository_path, request.settings.environment.locks)))
    names = (name for name in _beside(request, tree, files) if name not in named)
    copies: dict[str, Path] = {}
    locks: list[LockFile] = []
    for number, name in enumerate((*named, *names)):
        # locks that the settings name come first, so the limit never drops one of them for a found
        # file
        if number == MAX_LOCKS:
            break
        copy = folder / f"lock-{number}"
        problem = _copied(tree, name, copy, files)
        if problem:
            locks.append(LockFile(path=name, problem=problem))
        elif name in named or _locks_something(name, copy, files):
            copies[name] = copy
    if copies:
        # the reader parsed untrusted files: take only answers about files that it was asked about
        locks += [lock for lock in ask(LocksQuestion(copies=copies)) if lock.path in copies]
    if required:
        _refuse_unread(named, locks)
    return tuple(sorted(locks, key=lambda lock: lock.path))


def _beside(request: GateRequest, tree: Path, files: Files) -> Iterator[str]:
    """Yield the paths of possible lock files next to the settings and in the root folder."""
    for place in dict.fromkeys((request.repository_path("."), ".")):
        for name in files.list_names(tree / place, max_names=MAX_NAMES):
            if name in ALWAYS or is_pylock(name) or _fits(name, (*REQUIREMENTS, *EXPLICIT_LISTS)):
                yield PurePosixPath(place, name).as_posix()


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _copied(tree: Path, name: str, copy: Path, files: Files) -> str:
    """Copy a file out of the tree; return why that is impossible, or an empty text."""
    source = tree / name
    try:
        # checked first: a link of the commit could lead to a file of the gate
        files.refuse_links(source, below=tree)
        if not files.exists(source):
            return "is not in the commit"
        files.copy_file(source, copy, max_bytes=MAX_LOCK_BYTES)
    except StorageError as error:
        return error.message.replace(f"{source} ", "").replace(str(source), name)[:MAX_PROBLEM]
    return ""


def _locks_something(name: str, copy: Path, files: Files) -> bool:
    """Decide whether a found file is meant as a lock, by a search in its text without parsing."""
    last = PurePosixPath(name).name
    if last in ALWAYS or is_pylock(last):
        return True
    data = files.read_bytes(copy, max_bytes=MAX_LOCK_BYTES)
    return is_explicit(data) or (_fits(last, REQUIREMENTS) and has_hashes(data))


def _refuse_unread(named: tuple[str, ...], locks: list[LockFile]) -> None:
    wrong = [lock for lock in locks if lock.path in named and lock.problem]
    if wrong:
        raise SettingsError(
            f"environment.locks: {wrong[0].path}: {wrong[0].problem}",
            hint="Name lock files that the commit holds: uv.lock, poetry.lock, Pipfile.lock, "
            "pylock.toml, pixi.lock, kernels.lock, requirements with one version for each package, "
            "or conda's explicit list.",
            details=tuple(f"{lock.path}: {lock.problem}" for lock in wrong[1:]),
        )


# bounds on the walk, so that a tree made by a pull request cannot keep the gate busy
MAX_ENTRIES: Final = 200_000
MAX_DEPTH: Final = 100
MAGIC: Final = "*?["
ANY_FOLDERS: Final = "**"


def pointers_of_commit(
    tree: Path, folder: Path, *, request: GateRequest, files: Files, ask: Ask, required: bool
) -> dict[str, DataPointers]:
    """Return the pointers that the `dvc` and `lfs` entries name in an exported commit, by label.

    `folder` takes the copies that the reader parses. A pattern of Git LFS may match only files
    whose content is committed: then its entry has no pointer. Without `required`, as for a base
    commit that may be older, an entry without files is left out. Raises `DataError` for a file that
    is missing, a link, too large or no proper pointer.
    """
    pointers: dict[str, DataPointers] = {}
    for source in request.settings.data:
        if not source.in_tree:
            continue
        named = (
            _lfs_files(request, source, tree, files)
            if source.kind is DataKind.LFS
            else _dvc_file(request, source, tree, files)
        )
        if not named:
            if required:
                raise _missing(source)
            continue
        pointers[source.label] = tuple(_read(source, named, (tree, folder), files, ask))
    _refuse_one_place(pointers)
    return pointers


def _refuse_one_place(by_path: dict[str, DataPointers]) -> None:
    """Raise `DataError` if two entries name one path, or a path within the other's."""
    owners = {
        pointer.path: label
        for label, pointers in by_path.items()
        for pointer in pointers
        # a DVC output may be a whole folder, so another pointer may be inside it
        if pointer.kind is DataKind.DVC
    }
    for label, pointers in by_path.items():
        for pointer in pointers:
            above = (
                str(path)
                for path in (PurePosixPath(pointer.path), *PurePosixPath(pointer.path).parents)
            )
            other = next(
                (owners[path] for path in above if path in owners and owners[path] != label), ""
            )
            if other:
                raise DataError(
                    f"data: {label} and {other} both name {pointer.path}",
                    hint="Leave one of the two entries out of `data`.",
                )


def _dvc_file(
    request: GateRequest, source: DataSource, tree: Path, files: Files
) -> tuple[str, ...]:
    path = request.repository_path(source.dvc or "")
    # not there: the caller decides whether the commit must have it
    return (path,) if _there(tree / path, tree, files) else ()


def _there(path: Path, tree: Path, files: Files) -> bool:
    try:
        files.refuse_links(path, below=tree)
        return files.exists(path)
    except StorageError as error:
        raise _unreadable(error, path, tree) from error


def _lfs_files(
    request: GateRequest, source: DataSource, tree: Path, files: Files
) -> tuple[str, ...]:
    """Return the paths from the root that a pattern matches; no link is followed."""
    pattern = request.repository_path(source.lfs or "")
    # one more than allowed, so that the excess is noticed without walking the whole tree
    paths = tuple(islice(_matches(tree, pattern.split("/"), files), MAX_POINTERS + 1))
    if len(paths) > MAX_POINTERS:
        raise DataError(
            f"data: {source.label}: the pattern matches more than {MAX_POINTERS:,} files",
            hint="Name fewer, in several entries, or keep such data as one archive.",
        )
    return paths


def _matches(tree: Path, pattern: list[str], files: Files) -> Iterator[str]:
    """Walk the tree depth first; enter a folder only if a part of the pattern may match below it.

    `states` are the positions in the pattern that a path can have reached, as in a nondeterministic
    automaton.
    """
    seen = 0
    pending: list[tuple[str, tuple[int, ...]]] = [("", _reached(pattern, (0,)))]
    while pending:
        place, states = pending.pop()
        for name in _names(tree / place, pattern, states, files):
            path = f"{place}/{name}" if place else name
            seen += 1
            if seen > MAX_ENTRIES:
                raise _too_many(pattern, f"more than {MAX_ENTRIES:,} files are in question")
            if path.count("/") > MAX_DEPTH:
                raise _too_many(pattern, f"folders are deeper than {MAX_DEPTH} levels")
            behind = _reached(pattern, tuple(_steps(pattern, states, name)))
            # no part of the pattern fits, so nothing below this path can match either
            if not behind:
                continue
            if files.is_folder(tree / path):
                pending.append((path, behind))
            elif len(pattern) in behind and not _is_link(tree / path, tree, files):
                yield path


def _too_many(pattern: list[str], why: str) -> DataError:
    return DataError(
        f"data: {'/'.join(pattern)}: {why}",
        hint="Begin the pattern with the folder that holds the files, as in data/*.bin.",
    )


def _is_link(path: Path, tree: Path, files: Files) -> bool:
    """Decide whether the path is or passes a link. Git LFS keeps none, so the match is chance."""
    try:
        files.refuse_links(path, below=tree)
    except StorageError:
        return True
    return False


def _names(
    folder: Path, pattern: list[str], states: tuple[int, ...], files: Files
) -> tuple[str, ...]:
    """Return the names to look at in a folder; only a wildcard makes a listing necessary."""
    parts = [pattern[state] for state in states if state < len(pattern)]
    if parts and not any(sign in part for part in parts for sign in MAGIC):
        return tuple(part for part in dict.fromkeys(parts) if files.exists(folder / part))
    return files.list_names(folder, max_names=MAX_ENTRIES) if parts else ()


def _reached(pattern: list[str], states: tuple[int, ...]) -> tuple[int, ...]:
    """Add the states that `**` leads to, because it may stand for no folder at all."""
    reached = set(states)
    for state in sorted(reached):
        ahead = state
        while ahead < len(pattern) and pattern[ahead] == ANY_FOLDERS:
            ahead += 1
            reached.add(ahead)
    return tuple(sorted(reached))


def _steps(pattern: list[str], states: tuple[int, ...], name: str) -> Iterator[int]:
    for state in states:
        if state == len(pattern):
            continue
        if pattern[state] == ANY_FOLDERS:
            yield state
        elif fnmatchcase(name, pattern[state]):
            yield state + 1


def _read(
    source: DataSource,
    paths: tuple[str, ...],
    places: tuple[Path, Path],
    files: Files,
    ask: Ask,
) -> Iterator[DataPointer]:
    """Yield the pointers that the reader found, of those that it was asked for."""
    tree, folder = places
    for start in range(0, len(paths), MAX_POINTER_FILES):
        files.fresh_folder(folder)
        asked = tuple(_copies(source, paths[start : start + MAX_POINTER_FILES], places, files))
        if not asked:
            continue
        for pointer in ask(DataPointersQuestion(folder=folder, files=asked)):
            if pointer.name == source.label and pointer.kind is source.kind:
                yield from _accepted(source, pointer, {file.path for file in asked}, tree, files)


def _accepted(
    source: DataSource, pointer: DataPointer, asked: set[str], tree: Path, files: Files
) -> Iterator[DataPointer]:
    """Yield a pointer if the commit does not contain the file itself."""
    if source.kind is DataKind.LFS:
        # the reader parsed untrusted text, so accept only paths that were asked about
        if pointer.path in asked:
            yield pointer
        return
    if not _there(tree / pointer.path, tree, files):
        yield pointer
    # a dvc.lock also lists outputs with `cache: false`, such as metrics, which are committed
    elif not (source.dvc or "").endswith(LOCK_NAME):
        raise DataError(
            f"data: {source.label}: {pointer.path} is in the commit as well",
            hint=f"`git rm -r --cached {pointer.path}`: DVC keeps it, and .gitignore names it.",
        )


def _copies(
    source: DataSource, paths: tuple[str, ...], places: tuple[Path, Path], files: Files
) -> Iterator[PointerFile]:
    tree, folder = places
    for number, path in enumerate(paths):
        try:
            data = _beginning(tree / path, files)
        except StorageError as error:
            raise _unreadable(error, tree / path, tree) from error
        # a file larger than any Git LFS pointer is committed content
        if source.kind is DataKind.LFS and len(data) > MAX_LFS_BYTES:
            continue
        if len(data) > MAX_POINTER_BYTES:
            raise DataError(
                f"data: {path} is larger than {MAX_POINTER_BYTES:,} bytes",
                hint="A pointer of DVC is small: name the .dvc file, not its data.",
            )
        file = _pointer_file(source, path, number)
        files.write_bytes(folder / file.copy_name, data)
        yield file


def _beginning(path: Path, files: Files) -> bytes:
    """Return the first bytes, one more than a pointer may have, to notice a larger file."""
    # a file with large content is opened for its first bytes only
    with files.open_binary(path, max_bytes=MAX_NUMBER) as file:
        return file.read(MAX_POINTER_BYTES + 1)


def _pointer_file(source: DataSource, path: str, number: int) -> PointerFile:
    try:
        return PointerFile(
            name=source.label,
            kind=DataKind.LFS if source.kind is DataKind.LFS else DataKind.DVC,
            path=path,
            stage=source.stage or "",
            copy_name=f"pointer-{number}",
        )
    except ValueError as error:
        raise DataError(
            f"data: {source.label}: {path[:200]!a} cannot be the place of data",
            hint="Give the file a name of at most 1,000 characters that can be printed, and keep "
            "it out of .git and .dvc.",
        ) from error


def _missing(source: DataSource) -> DataError:
    if source.kind is DataKind.LFS:
        return DataError(
            f"data: the pattern {source.lfs} matches no file of the commit",
            hint="Correct `lfs` in repro-gate.yml: `git lfs ls-files` lists what Git LFS keeps.",
        )
    return DataError(
        f"data: {source.dvc} is not in the commit",
        hint=f"Commit it (`git add {source.dvc}`), or correct `dvc` in repro-gate.yml: the path "
        "is relative to that file.",
    )


def _unreadable(error: StorageError, path: Path, tree: Path) -> DataError:
    shown = path.relative_to(tree).as_posix()
    return DataError(
        f"data: {error.message.replace(str(path), shown).replace(f'{tree}/', '')}",
        hint="A pointer is a small regular file of the commit, and no link leads to it.",
    )
