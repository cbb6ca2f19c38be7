"""The lock files of a commit: found in its exported tree, copied out, read by the confined process.

A pull request may bring any of them, so none is parsed here (T5 in docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from gate.errors import SettingsError, StorageError
from gate.evidence.lock_files import MAX_LOCK_BYTES, MAX_LOCKS, LockFile
from gate.evidence.lock_readers import has_hashes, is_explicit, is_pylock
from gate.pipelines.reading import ReadingAnswer, ReadingRequest, ReadingTask
from gate.system.files.port import Files
from gate.training.runs import Commit
from gate.verdict.request import GateRequest

ALWAYS: Final = ("uv.lock", "poetry.lock", "Pipfile.lock", "pixi.lock", "kernels.lock")
REQUIREMENTS: Final = ("requirements*.txt",)
EXPLICIT_LISTS: Final = ("conda*.txt", "conda*.lock", "*explicit*.txt", "environment*.txt")
MAX_NAMES: Final = 10_000
MAX_PROBLEM: Final = 500
Ask = Callable[[ReadingRequest], ReadingAnswer]


def locks_of_commits(
    request: GateRequest, trees: Mapping[Commit, Path], folder: Path, files: Files, ask: Ask
) -> dict[Commit, tuple[LockFile, ...]]:
    """Those of head and, where it was exported, base, from their exported trees.

    The base may lack what the settings name: it may be older than the lock.
    """
    found: dict[Commit, tuple[LockFile, ...]] = {}
    for which, tree in trees.items():
        files.fresh_folder(folder)
        required = which is Commit.HEAD
        found[which] = read_locks(request, tree, folder, files, ask, required=required)
    return found


def read_locks(
    request: GateRequest, tree: Path, folder: Path, files: Files, ask: Ask, *, required: bool
) -> tuple[LockFile, ...]:
    """The lock files of an exported commit, those that the settings name first.

    `folder` takes the copies that the other process reads. With `required`, a lock that the
    settings name has to be there and readable, or `SettingsError` says what is wrong; one that was
    only found keeps its problem for a finding.
    """
    named = tuple(dict.fromkeys(map(request.repository_path, request.settings.environment.locks)))
    found = (name for name in _beside(request, tree, files) if name not in named)
    copies: dict[str, str] = {}
    locks: list[LockFile] = []
    for number, name in enumerate((*named, *found)):
        if number == MAX_LOCKS:
            break
        copy = folder / f"lock-{number}"
        problem = _copied(tree, name, copy, files)
        if problem:
            locks.append(LockFile(path=name, problem=problem))
        elif name in named or _locks_something(name, copy, files):
            copies[name] = str(copy.absolute())
    if copies:
        question = ReadingRequest(task=ReadingTask.LOCKS, out=str(folder.absolute()), taken=copies)
        # only what was asked for: the other process read what a pull request wrote
        locks += [lock for lock in ask(question).locks if lock.path in copies]
    if required:
        _refuse_unread(named, locks)
    return tuple(sorted(locks, key=lambda lock: lock.path))


def _beside(request: GateRequest, tree: Path, files: Files) -> Iterator[str]:
    """Names of what may be a lock, next to the settings and at the root, each from the root."""
    for place in dict.fromkeys((request.repository_path("."), ".")):
        for name in files.list_names(tree / place, max_names=MAX_NAMES):
            if name in ALWAYS or is_pylock(name) or _fits(name, (*REQUIREMENTS, *EXPLICIT_LISTS)):
                yield PurePosixPath(place, name).as_posix()


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _copied(tree: Path, name: str, copy: Path, files: Files) -> str:
    """Copy it out of the tree; why that cannot be done, in words, or nothing."""
    source = tree / name
    try:
        files.refuse_links(source, below=tree)
        if not files.exists(source):
            return "is not in the commit"
        files.copy_file(source, copy, max_bytes=MAX_LOCK_BYTES)
    except StorageError as error:
        return error.message.replace(f"{source} ", "").replace(str(source), name)[:MAX_PROBLEM]
    return ""


def _locks_something(name: str, copy: Path, files: Files) -> bool:
    """Whether a file that was only found is meant as a lock; text is searched, nothing parsed."""
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
