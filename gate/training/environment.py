"""The environment of a training: its parts, installed distributions, and those that it imported."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from gate.text.document import Document

MAX_PACKAGES = 5000
MAX_PACKAGE_TEXT = 200
SHOWN_DIGITS = 12
PACKAGES, DEVICE, CPU = "packages", "device", "cpu"
# the part of a run on a cluster: how many nodes of which kind, and how they are connected
NODES: Final = "nodes"
NOT_APPLICABLE = "none"
BETWEEN_RANKS = " | "
# The origin of a distribution. Nothing is recorded for one from an index. The tested project itself
# never counts.
INDEX: Final = "index"
PROJECT: Final = "project"
FOLDER: Final = "folder"
EDITABLE: Final = "editable "
# a plain version as on an index, without an origin
VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.!+_-]{0,60}", re.ASCII)
PackageText = Annotated[str, Field(max_length=MAX_PACKAGE_TEXT)]
PackageTexts = Annotated[tuple[PackageText, ...], Field(max_length=MAX_PACKAGES)]
PackageOrigins = Annotated[dict[PackageText, PackageText], Field(max_length=MAX_PACKAGES)]


def normalized_name(name: str) -> str:
    """Return the name by which distributions are compared: `Foo_Bar` is `foo-bar` (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class UnlikeRank(Document):
    """A part of the environment that one rank reports differently from rank 0.

    `found` and `expected` are the texts of this rank and of rank 0. For packages, `found` names
    each one. `versions` are packages that both ranks imported in different versions, with both
    versions.
    """

    rank: int = Field(ge=1, le=1_000_000)
    part: str = Field(max_length=100)
    found: str = Field(max_length=2000)
    expected: str = Field(default="", max_length=2000)
    versions: Annotated[
        dict[Annotated[str, Field(max_length=200)], Annotated[str, Field(max_length=1000)]],
        Field(max_length=20),
    ] = Field(default_factory=dict)

    @property
    def described(self) -> str:
        """The difference in words: `rank 1: packages: numpy 1.26 instead of 2.0`."""
        instead = f" instead of {self.expected}" if self.expected else ""
        return f"rank {self.rank}: {self.part}: {self.found}{instead}"


class Environment(Document):
    """Parts of machine and software on which a result depends, as observed inside the training.

    An absent part does not apply, like a part with the text `none`. If ranks report different texts
    for a part, they are joined by ` | ` in the order of the ranks, and `unlike_ranks` lists them.
    The part `packages` is a digest of the packages that count.

    The field `packages` lists all that is installed as `name==version`. `imported` are names that a
    rank of the training imported. `origins` has the origin of packages that came from no index.
    `ignored` are names that the settings exclude.
    """

    parts: dict[str, str]
    packages: PackageTexts = ()
    imported: PackageTexts = ()
    origins: PackageOrigins = Field(default_factory=dict)
    ignored: PackageTexts = ()
    unlike_ranks: Annotated[tuple[UnlikeRank, ...], Field(max_length=1000)] = ()

    def part(self, name: str) -> str:
        """Return the text of a part."""
        return self.parts.get(name, NOT_APPLICABLE)

    def of_ranks(self, name: str) -> tuple[str, ...]:
        """Return the different texts of a part; one if the ranks agree."""
        return tuple(self.part(name).split(BETWEEN_RANKS))

    @property
    def ranks_on_cpu(self) -> bool:
        """Whether a rank used no GPU."""
        return not {CPU, NOT_APPLICABLE}.isdisjoint(self.of_ranks(DEVICE))

    @property
    def on_gpu(self) -> bool:
        """Whether a rank used a GPU."""
        return not {CPU, NOT_APPLICABLE}.issuperset(self.of_ranks(DEVICE))

    def moved(self, other: Environment) -> tuple[str, ...]:
        """Return the sorted names of the parts in which two environments differ.

        Packages count only if one of the trainings imported them and neither side ignores them: an
        unused tool changes no number.
        """
        names = sorted(self.parts.keys() | other.parts.keys())
        return tuple(name for name in names if self._differs(name, other))

    def _differs(self, name: str, other: Environment) -> bool:
        if name == PACKAGES and self.packages and other.packages:
            return bool(moved_packages(self, other).counted)
        return self.part(name) != other.part(name)

    @property
    def installed(self) -> int:
        """The number of installed distributions."""
        return len({normalized_name(line.partition("==")[0]) for line in self.packages})


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageMove:
    """A distribution whose version or origin differs between two sides, or that one side lacks."""

    name: str
    before: str
    after: str

    @property
    def described(self) -> str:
        """The change over time: `torch 2.12.0 → 2.13.0`."""
        if not self.before:
            return f"{self.name} {self.after} added"
        if not self.after:
            return f"{self.name} {self.before} removed"
        return f"{self.name} {self.before} → {self.after}"

    @property
    def pin(self) -> str:
        """The former version as a requirement for pip; empty if it is no plain version."""
        return f"{self.name}=={self.before}" if VERSION.fullmatch(self.before) else ""

    @property
    def compared(self) -> str:
        """The difference between two places: `numpy 1.26 instead of 2.0`."""
        if not self.before:
            return f"{self.name} {self.after} beside none"
        if not self.after:
            return f"no {self.name} instead of {self.before}"
        return f"{self.name} {self.after} instead of {self.before}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageMoves:
    """Distributions that were added, removed or changed.

    `counted` are those that one of the trainings imported and neither side ignores. If neither side
    reports its imports, `imports_known` is False, and all count that no side ignores. `aside` are
    the others.
    """

    counted: tuple[PackageMove, ...] = ()
    aside: tuple[PackageMove, ...] = ()
    imports_known: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Installed:
    """A distribution on one side; its version joins several if ranks have different ones."""

    name: str
    version: str
    origin: str


def moved_packages(before: Environment, after: Environment) -> PackageMoves:
    """Return what was added, removed or changed; nothing if one side has no list of packages."""
    imported = _names((*before.imported, *after.imported))
    known = bool(imported)
    same = (before.packages, before.origins) == (after.packages, after.origins)
    if same or not before.packages or not after.packages:
        return PackageMoves(imports_known=known)
    left, right = _installed(before), _installed(after)
    ignored = _names((*before.ignored, *after.ignored))
    counted: list[PackageMove] = []
    aside: list[PackageMove] = []
    for name in sorted(left.keys() | right.keys()):
        sides = (left.get(name), right.get(name))
        # the tested project belongs to the commit, not to the environment: its version may contain
        # the commit
        if _alike(*sides) or PROJECT in {side.origin for side in sides if side}:
            continue
        counts = name not in ignored and (not known or name in imported)
        (counted if counts else aside).append(_move(*sides))
    return PackageMoves(counted=tuple(counted), aside=tuple(aside), imports_known=known)


def _installed(environment: Environment) -> dict[str, _Installed]:
    origins = {normalized_name(name): text for name, text in environment.origins.items()}
    versions: dict[str, list[str]] = {}
    for line in sorted(environment.packages):
        name, _, version = line.partition("==")
        versions.setdefault(normalized_name(name), []).append(version)
    # one spelling for both sides: a renamed distribution such as Foo_Bar to foo-bar has not moved
    return {
        key: _Installed(
            name=key, version=BETWEEN_RANKS.join(versions_found), origin=origins.get(key, INDEX)
        )
        for key, versions_found in versions.items()
    }


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(normalized_name, names))


def _alike(before: _Installed | None, after: _Installed | None) -> bool:
    if before is None or after is None or before.version != after.version:
        return before == after
    # no digest was taken of code that a side did not import, so there is nothing to compare
    unknown = FOLDER in {before.origin, after.origin}
    editable = any(side.origin.startswith(EDITABLE) for side in (before, after))
    return before.origin == after.origin or (unknown and editable)


def _short(origin: str) -> str:
    """Return an origin with digests and commits cut to their first digits, as in every report."""
    return re.sub(r"[0-9a-f]{40,}", lambda match: match[0][:SHOWN_DIGITS], origin)


def _move(before: _Installed | None, after: _Installed | None) -> PackageMove:
    apart = before is not None and after is not None and before.origin != after.origin
    texts = [
        "" if side is None else f"{side.version} ({_short(side.origin)})" if apart else side.version
        for side in (before, after)
    ]
    name = next(side.name for side in (after, before) if side)
    return PackageMove(name=name, before=texts[0], after=texts[1])
