"""Lock files of a commit: the versions they name, how two differ, and what a change installs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, field_validator

from gate.text.document import Document
from gate.training.environment import (
    MAX_PACKAGE_TEXT,
    MAX_PACKAGES,
    Environment,
    PackageMove,
    PackageText,
    normalized_name,
)

MAX_LOCKS: Final = 20
MAX_LOCK_BYTES: Final = 8 * 1024 * 1024
MAX_FILES: Final = 1000
ARCHIVE: Final = "archive "
FileHash = Annotated[str, Field(pattern=r"^[a-z0-9]{1,20}:[0-9A-Za-z._-]{1,200}$")]
_RELEASE: Final = re.compile(r"^[0-9]+(?:\.[0-9]+)*$")
# The only texts that a line for an installer may consist of: PEP 508 names, PEP 440 versions, and
# the words of a marker. None of them can begin an option, name a path, or contain a blank that the
# gate did not write.
DISTRIBUTION: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
EXACT_VERSION: Final = (
    r"[vV]?(?:[0-9]+!)?[0-9]+(?:\.[0-9]+)*"
    r"(?:[._-]?(?i:alpha|beta|preview|pre|rc|a|b|c)[._-]?[0-9]*)?"
    r"(?:-[0-9]+|[._-]?(?i:post|rev|r)[._-]?[0-9]*)?(?:[._-]?(?i:dev)[._-]?[0-9]*)?"
    r"(?:\+[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)?"
)
MARKER_VARIABLES: Final = (
    *("python_version", "python_full_version", "os_name", "sys_platform", "platform_release"),
    *("platform_system", "platform_version", "platform_machine", "platform_python_implementation"),
    *("implementation_name", "implementation_version", "extra"),
)
MARKER_OPERATORS: Final = ("===", "==", "~=", "!=", "<=", ">=", "<", ">", "not in", "in")
MARKER_TEXT: Final = r"(?:[A-Za-z0-9_.+*!][A-Za-z0-9_.+*!-]*)?"
_MARKER_WORD: Final = (
    rf'(?:[()]|and|or|{"|".join(MARKER_OPERATORS)}|{"|".join(MARKER_VARIABLES)}|"{MARKER_TEXT}")'
)
MAX_MARKER: Final = 2000
MAX_REQUIREMENTS_BYTES: Final = 4 * 1024 * 1024
# the algorithms that pip allows for `--hash`: at least as resistant to collisions as SHA-256
STRONG_HASH: Final = r"(?:sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128})"
# an installer takes a word with one of these endings for a file
ARCHIVE_ENDS: Final = (
    *(".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz"),
    *(".tar.lz", ".tlz", ".tar.lzma"),
)


class LockKind(StrEnum):
    """The tool or format that a lock file belongs to."""

    REQUIREMENTS = "pip requirements with hashes"
    UV = "uv.lock"
    POETRY = "poetry.lock"
    PIPFILE = "Pipfile.lock"
    CONDA = "conda explicit list"
    PYLOCK = "pylock.toml"
    PIXI = "pixi.lock"
    KERNELS = "kernels.lock"


class LockedPackage(Document):
    """A package in a lock: its versions and the hashes of its files.

    A package has several versions if environment markers choose between them. A hash is
    `algorithm:hex`, or `git:hex` for a commit. A kernel of a hub is named `kernel-` followed by its
    repository, and its version is the commit.
    """

    name: PackageText
    versions: Annotated[tuple[PackageText, ...], Field(max_length=100)]
    hashes: Annotated[tuple[FileHash, ...], Field(max_length=MAX_FILES)] = ()


class LockFile(Document):
    """A lock file of a commit; `path` is relative to the repository.

    If it could not be read, `problem` says why and `packages` is empty. `sha256` is the digest of
    the file's bytes, or empty if even these could not be read.
    """

    path: str = Field(min_length=1, max_length=500)
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    kind: LockKind | None = None
    packages: Annotated[tuple[LockedPackage, ...], Field(max_length=MAX_PACKAGES)] = ()
    problem: str = Field(default="", max_length=500)


class PinnedPackage(Document):
    """A package that may be installed: one version, the hashes of its files, and a marker.

    The patterns of the fields guarantee that `line` cannot contain anything else. This holds even
    if an attacker controls the reader that filled the fields (T5).
    """

    name: str = Field(max_length=MAX_PACKAGE_TEXT, pattern=rf"^{DISTRIBUTION}$")
    version: str = Field(max_length=MAX_PACKAGE_TEXT, pattern=rf"^{EXACT_VERSION}$")
    marker: str = Field(
        default="", max_length=MAX_MARKER, pattern=rf"^(?:{_MARKER_WORD}(?: {_MARKER_WORD})*)?$"
    )
    hashes: Annotated[
        tuple[Annotated[str, Field(pattern=rf"^{STRONG_HASH}$")], ...],
        Field(min_length=1, max_length=MAX_FILES),
    ]

    @field_validator("version")
    @classmethod
    def _no_file(cls, value: str) -> str:
        if value.lower().endswith(ARCHIVE_ENDS):
            message = "must not end as the name of a file does"
            raise ValueError(message)
        return value

    @property
    def line(self) -> str:
        """The line for a requirements file, with all hashes on one line."""
        marker = f" ; {self.marker}" if self.marker else ""
        return " ".join(
            (f"{self.name}=={self.version}{marker}", *(f"--hash={text}" for text in self.hashes))
        )


PinnedPackages = Annotated[tuple[PinnedPackage, ...], Field(max_length=MAX_PACKAGES)]
Locks = Annotated[tuple[LockFile, ...], Field(max_length=MAX_LOCKS)]


class LockChange(Document):
    """A lock file whose content differs between two commits; a side without the file has no digest.

    `moved` describes the packages that changed. It is empty if only the order, comments or hashes
    of additional files changed, or if one side could not be read.
    """

    path: str = Field(max_length=500)
    before: str = ""
    after: str = ""
    moved: tuple[str, ...] = ()


def differing_packages(before: LockFile, after: LockFile) -> tuple[PackageMove, ...]:
    """Return the packages whose versions differ between two locks, or whose files do.

    Files differ if the two locks have no hash in common: a lock may later name more files of the
    same version. If one lock could not be read, nothing is known to differ.
    """
    if before.problem or after.problem:
        return ()
    left, right = _by_name((before,)), _by_name((after,))
    moves = (_move(name, left.get(name), right.get(name)) for name in sorted({*left, *right}))
    return tuple(move for move in moves if move is not None)


def changed_locks(before: Iterable[LockFile], after: Iterable[LockFile]) -> tuple[LockChange, ...]:
    """Return every lock file that differs in `after`, and the packages that it moves."""
    left = {lock.path: lock for lock in before}
    right = {lock.path: lock for lock in after}
    changes = []
    for path in sorted({*left, *right}):
        left_lock = left.get(path, LockFile(path=path))
        other = right.get(path, LockFile(path=path))
        if (left_lock.sha256, left_lock.problem) == (other.sha256, other.problem):
            continue
        # a lock that exists on only one side does not show which packages moved
        known = differing_packages(left_lock, other) if path in left and path in right else ()
        changes.append(
            LockChange(
                path=path,
                before=left_lock.sha256,
                after=other.sha256,
                moved=tuple(move.described for move in known),
            )
        )
    return tuple(changes)


def unlike_installed(
    locks: Iterable[LockFile], environment: Environment
) -> tuple[PackageMove, ...]:
    """Return installed packages whose version no lock names, or that came from a different file.

    In the result `before` is what the locks name, and `after` what is installed. Packages that no
    lock names are left out. So are packages that the training does not import or that the settings
    ignore.
    """
    locked = _by_name(locks)
    imported = {normalized_name(name) for name in environment.imported}
    ignored = {normalized_name(name) for name in environment.ignored}
    origins = {normalized_name(name): text for name, text in environment.origins.items()}
    unlike = []
    for line in environment.packages:
        spelt, _, version = line.partition("==")
        name = normalized_name(spelt)
        if name not in locked or name in ignored or (imported and name not in imported):
            continue
        versions, hashes = locked[name]
        archive = origins.get(name, "")
        if versions and not any(_same_version(version_, version) for version_ in versions):
            unlike.append(
                PackageMove(name=name, before=" or ".join(sorted(versions)), after=version)
            )
        elif archive.startswith(ARCHIVE) and _is_other_file(archive.removeprefix(ARCHIVE), hashes):
            unlike.append(
                PackageMove(
                    name=name,
                    before=f"{version} of the files that the lock names",
                    after=f"{version} of {archive}",
                )
            )
    return tuple(unlike)


_Named = tuple[frozenset[str], frozenset[str]]


def _by_name(locks: Iterable[LockFile]) -> Mapping[str, _Named]:
    """Return versions and hashes by package name, of all locks together."""
    by_name: dict[str, _Named] = {}
    for lock in locks:
        for package in lock.packages:
            name = normalized_name(package.name)
            versions, hashes = by_name.get(name, (frozenset(), frozenset()))
            by_name[name] = (versions | set(package.versions), hashes | set(package.hashes))
    return by_name


def _move(name: str, before: _Named | None, after: _Named | None) -> PackageMove | None:
    left, right = (
        None if side is None else " or ".join(sorted(side[0])) for side in (before, after)
    )
    if left != right:
        return PackageMove(name=name, before=left or "", after=right or "")
    if before and after and before[1] and after[1] and before[1].isdisjoint(after[1]):
        return PackageMove(name=name, before=left or "", after=f"{left} from other files")
    return None


def _is_other_file(archive: str, hashes: frozenset[str]) -> bool:
    """Return whether the lock has hashes of this kind, and none of them is the archive's."""
    kind = archive.partition(":")[0]
    return archive not in hashes and any(known.startswith(f"{kind}:") for known in hashes)


def _same_version(locked: str, installed: str) -> bool:
    """Compare versions like `==` of PEP 440: `1.0` equals `1.0.0`.

    The local part counts only if the lock has one.

    https://packaging.python.org/en/latest/specifications/version-specifiers/#version-matching
    """
    if "+" not in locked:
        installed = installed.partition("+")[0]
    return _plain(locked) == _plain(installed)


def _plain(version: str) -> str:
    text = version.lower().removeprefix("v")
    if not _RELEASE.match(text):
        return text
    # keep numbers as text: `int` of a very long one, which a pull request may write, takes long
    numbers = [part.lstrip("0") or "0" for part in text.split(".")]
    while len(numbers) > 1 and numbers[-1] == "0":
        numbers.pop()
    return ".".join(numbers)


MAX_BROUGHT_FILES: Final = 50


class BroughtEnvironment(Document):
    """What the change under test installs differently from the base commit.

    `files` declare packages, an image, or what a workflow installs. `base_image` and `head_image`
    are the `isolation.image` of the two commits; both are empty if it is unchanged.
    """

    files: Annotated[tuple[str, ...], Field(max_length=MAX_BROUGHT_FILES)] = ()
    base_image: str = ""
    head_image: str = ""

    @property
    def another_image(self) -> bool:
        """Whether the change under test asks for a different image."""
        return bool(self.head_image) and self.head_image != self.base_image


NOTHING_BROUGHT: Final = BroughtEnvironment()
