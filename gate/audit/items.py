"""What was found in a repository or a package, before `gate/audit/` answers from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gate.baseline.entry import Baseline
from gate.evidence.data import DataDocument
from gate.evidence.documents import ClusterDocument
from gate.evidence.documents_environment import EnvironmentDocument
from gate.evidence.documents_seeds import SeedsDocument
from gate.evidence.lock_files import LockFile
from gate.package.call import CallDocument
from gate.settings.gate_settings import GateSettings
from gate.verdict.verdict import Verdict


class LineKind(StrEnum):
    """What a line of a script does, as far as its syntax shows."""

    SEEDS = "seeds"
    UNSEEDED = "unseeded"
    DRAWS = "draws"
    FLAG = "flag"
    READS = "reads"
    DOWNLOADS = "downloads"


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ScriptLine:
    """A line of a script; `what` is the call or the flag, `subject` the library or the path."""

    file: str
    line: int
    kind: LineKind
    what: str
    subject: str = ""

    @property
    def place(self) -> str:
        """File and line."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class WishList:
    """A file that names packages, and those of which it names no single version."""

    path: str
    packages: int
    unpinned: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RepositoryFacts:
    """A folder as an audit sees it; nothing of it was run.

    `commit` is empty without one, and `git_problem` says why. `names` are its files and folders,
    `incomplete` says why there are more than were looked at. `settings` is None without
    repro-gate.yml, or with one that `settings_problem` is about; `settings_place` is its folder.
    `images` are base images that are named without a digest, `modules` what the training imports.
    """

    place: str
    commit: str = ""
    git_problem: str = ""
    changed: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    incomplete: str = ""
    settings: GateSettings | None = None
    settings_place: str = ""
    settings_problem: str = ""
    baseline: Baseline | None = None
    baseline_problem: str = ""
    active_keys: int = 0
    keys_problem: str = ""
    workflow: str = ""
    locks: tuple[LockFile, ...] = ()
    wishes: tuple[WishList, ...] = ()
    images: tuple[str, ...] = ()
    training: str = ""
    script_missing: str = ""
    scripts: int = 0
    modules: frozenset[str] = frozenset()
    unreadable: tuple[str, ...] = ()
    lines: tuple[ScriptLine, ...] = ()

    @property
    def has_gate(self) -> bool:
        """Whether any file of the gate is there, be it broken."""
        return bool(
            self.settings
            or self.settings_problem
            or (self.baseline and self.baseline.entries)
            or self.baseline_problem
            or self.active_keys
            or self.keys_problem
            or self.workflow
        )


class SealCheck(StrEnum):
    """What came of a package's seal."""

    NOT_ASKED = "not-asked"
    NONE = "none"
    VALID = "valid"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageFacts:
    """A package as an audit sees it.

    A document is None where the package has none that can be read; `problems` says why, by its
    name. `settings_digest` is that of the packed settings. `seal_words` are of whoever checked it.
    """

    place: str
    sha256: str
    members: tuple[str, ...]
    problems: dict[str, str]
    verdict: Verdict | None = None
    call: CallDocument | None = None
    environment: EnvironmentDocument | None = None
    cluster: ClusterDocument | None = None
    data: DataDocument | None = None
    seeds: SeedsDocument | None = None
    settings: GateSettings | None = None
    settings_digest: str = ""
    seal: SealCheck = SealCheck.NOT_ASKED
    seal_words: str = ""
