"""Turns a package into a gate call: which code, which settings, which place; and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.comparison.differences import Comparison
from gate.comparison.level_records import LevelResult
from gate.comparison.statistical_tests import MetricSpread
from gate.data.data_sets import DataMoves
from gate.diagnosis.diagnosis import Diagnosis, ResumeResult, ResumeState
from gate.errors import AttestationError, EvidenceError, ExitCode, RepositoryError, SettingsError
from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.package.packing import SOURCE_MEMBER, CallDocument
from gate.package.ustar import member_index
from gate.pipelines.adapters import Adapters
from gate.pipelines.kept_evidence import MAX_PACKAGE_BYTES, KeptEvidence
from gate.pipelines.snapshots import prepare_out
from gate.settings.data import DataKind, DataSource
from gate.settings.gate_settings import GateSettings
from gate.settings.load import settings_digest
from gate.system.files.port import Files
from gate.system.git.changes import ChangedLines
from gate.system.git.export import open_source_pack
from gate.system.git.repository import GitRepository
from gate.text.document import Document, Timestamp
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.verdict.request import GateRequest

REPRODUCTION_SCHEMA: Final = "repro-gate.reproduction/1"
MAX_CHANGED_LINES: Final = 1000


class ReproductionOutcome(StrEnum):
    """The result of running a package again.

    `within-tolerance` uses the tolerances of the package's own settings. `within-spread` uses how
    the numbers varied, in the package or here. `not-repeatable` means that the runs here differ
    from each other. `resume-differs` means that the result is reproduced, but a run that was
    resumed here gives another one.
    """

    REPRODUCED = "reproduced"
    WITHIN_TOLERANCE = "within-tolerance"
    WITHIN_SPREAD = "within-spread"
    DIFFERS = "differs"
    NOT_REPEATABLE = "not-repeatable"
    RESUME_DIFFERS = "resume-differs"

    @property
    def good(self) -> bool:
        """Whether the package counts as reproduced."""
        return self in {
            ReproductionOutcome.REPRODUCED,
            ReproductionOutcome.WITHIN_TOLERANCE,
            ReproductionOutcome.WITHIN_SPREAD,
        }


HEADLINES: Final = {
    ReproductionOutcome.REPRODUCED: "reproduced, bit for bit",
    ReproductionOutcome.WITHIN_TOLERANCE: "reproduced within the tolerances of its own settings",
    ReproductionOutcome.WITHIN_SPREAD: "reproduced within the spread",
    ReproductionOutcome.DIFFERS: "not reproduced: the result differs",
    ReproductionOutcome.NOT_REPEATABLE: "not reproduced: the runs here differ from each other",
    ReproductionOutcome.RESUME_DIFFERS: "not reproduced: a resumed run gives a different result",
}


class CodeSource(StrEnum):
    """Where the code came from: a clone, or the package itself."""

    CLONE = "clone"
    PACKAGE = "package"


class EnvironmentPart(Document):
    """A part of the environment, in the package and here; `details` names what moved in it."""

    name: str
    then: str
    here: str
    same: bool
    details: tuple[str, ...] = ()


class SealChecked(Document):
    """Who sealed the package, by key id or identity; both are empty if no seal was checked."""

    key_id: str = ""
    identity: str = ""

    @property
    def checked(self) -> bool:
        """Whether a seal was verified."""
        return bool(self.key_id or self.identity)


class Reproduction(Document):
    """The result in a package and the result here.

    `commit` is the package's. `code` is another commit that was run instead, or `work tree`, or
    empty. `wall_seconds` is the time from opening the package to the answer, trainings included.
    `same_code` says whether the trained files equal those of the package. If not, `changed_lines`
    of another commit or `changed_files` of a work tree name the differences. `judged` is set if
    several seeds decide the package's level. `resume` is set if the package's call resumed a run
    and the runs here are equal; `resume_then` is how that call's own resume ended.
    """

    schema_version: Literal["repro-gate.reproduction/1"] = REPRODUCTION_SCHEMA
    outcome: ReproductionOutcome
    commit: str
    code: str = ""
    same_code: bool
    changed_lines: Annotated[tuple[ChangedLines, ...], Field(max_length=MAX_CHANGED_LINES)] = ()
    changed_files: Annotated[tuple[str, ...], Field(max_length=MAX_CHANGED_LINES)] = ()
    source: CodeSource
    package_sha256: str
    seal: SealChecked
    made_at: Timestamp
    created_at: Timestamp
    wall_seconds: float = Field(ge=0, allow_inf_nan=False)
    runs: int = Field(ge=2)
    environment: tuple[EnvironmentPart, ...]
    data_moved: DataMoves = ()
    comparison: Comparison
    repeat: Comparison
    spread: tuple[MetricSpread, ...] = ()
    judged: LevelResult | None = None
    resume: ResumeResult | None = None
    resume_then: ResumeState | None = None
    diagnosis: Diagnosis | None = None

    @property
    def moved(self) -> tuple[EnvironmentPart, ...]:
        """The environment parts that differ from the package's."""
        return tuple(part for part in self.environment if not part.same)

    @property
    def exit_code(self) -> ExitCode:
        """0 if the package is reproduced, as for a gate call."""
        return ExitCode.PASS if self.outcome.good else ExitCode.FAIL


PLACE: Final[RecordForm[tuple[int, int]]] = RecordForm(tuple[int, int])
SOURCE_FOLDER: Final = "source"
OLD_HINT: Final = "Reproduce it with the repro-gate version that made it."
CLONE_HINT: Final = (
    "Clone the repository and name it with --repository. With `package: {source: true}` in "
    "repro-gate.yml the next package holds the code itself."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReproductionCall:
    """The arguments of a reproduction.

    `repository` is the folder of a clone. Without it the current folder is used. If the commit is
    not there, the code in the package is used. `code` is another commit to run, or None.
    `work_tree` runs the clone's files as they are now. `data` maps names of declared data to paths
    on this machine. `seeds` is how many seeds to train here; 0 trains only those that the package's
    own level needs. `cluster` is where the runs go; the default is this machine, even for a package
    made on a cluster.
    """

    package: Path
    out: Path
    repository: Path | None = None
    code: str | None = None
    work_tree: bool = False
    data: Mapping[str, Path]
    seeds: int = 0
    cluster: ClusterSettings = field(default_factory=ClusterSettings)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedPackage:
    """A package whose code is available, with the request that runs it again."""

    kept: KeptEvidence
    call: CallDocument
    source: CodeSource
    request: GateRequest
    adapters: Adapters


def open_for_reproduction(
    call: ReproductionCall,
    kept: KeptEvidence,
    files: Files,
    adapters_for: Callable[[Path], Adapters],
) -> OpenedPackage:
    """Find the code in the clone or else in the package, and make the request.

    Raises `EvidenceError` for an incomplete package and `RepositoryError` if the code is nowhere.
    Raises `SettingsError` for unknown names of data, or an output folder in other use.
    """
    recorded, settings = kept.call, kept.settings
    if recorded is None or settings is None:
        raise EvidenceError("the package does not say which call it is of", hint=OLD_HINT)
    # before anything is written: a package that contradicts itself must not be run
    _check_told(recorded, kept, settings)
    prepare_out(call.out, files)
    repository, source = _repository(call, recorded, files)
    top = repository.top_level()
    config = PurePosixPath(recorded.config)
    request = GateRequest(
        top=top,
        project=config.parent.as_posix(),
        config_name=config.name,
        settings=_settings_here(settings, call),
        settings_text=kept.settings_text,
        settings_from="package",
        out=call.out,
        commit=_commit(call, recorded, repository),
        allow_dirty=call.work_tree,
    )
    return OpenedPackage(
        kept=kept, call=recorded, source=source, request=request, adapters=adapters_for(top)
    )


def check_same_file(kept: KeptEvidence, sealed_sha256: str) -> None:
    """Raise `AttestationError` if the package that was read is not the one with the valid seal."""
    # the file is opened once to be read and once to be verified; it may be replaced in between
    if kept.package_sha256 != sealed_sha256:
        raise AttestationError(
            "the package was replaced while it was checked",
            hint="Copy it to a folder that nobody else can write to, and call this again.",
        )


def _check_told(recorded: CallDocument, kept: KeptEvidence, settings: GateSettings) -> None:
    """Raise `EvidenceError` if the package contradicts itself; a seal covers all of it."""
    if kept.evidence.changed_files:
        raise EvidenceError(
            "the package was made from uncommitted changes",
            hint="Its uncommitted.diff says what they were. Apply it to a clone, commit, and run "
            "the gate there.",
        )
    said = (recorded.commit, recorded.snapshot_digest, recorded.settings_digest)
    facts = (kept.evidence.commit, kept.evidence.snapshot_digest, settings_digest(settings))
    if said != facts:
        raise EvidenceError(
            "the package contradicts itself: call.json is about another call than its evidence",
            hint="It was changed, or made by another version; fetch it again.",
        )


def _repository(
    call: ReproductionCall, recorded: CallDocument, files: Files
) -> tuple[GitRepository, CodeSource]:
    clone = GitRepository(call.repository or Path.cwd())
    try:
        clone.resolve(recorded.commit)
    except RepositoryError as fault:
        # other code can only come from a clone, so the package's source does not help
        if call.code is not None or call.work_tree or not recorded.source:
            raise RepositoryError(
                f"commit {recorded.commit[:12]} of the package is not in this repository",
                hint=CLONE_HINT,
            ) from fault
    else:
        return clone, CodeSource.CLONE
    folder = call.out / SOURCE_FOLDER
    files.remove_tree(folder)
    _unpack_source(call.package, recorded.commit, folder, files)
    return GitRepository(folder), CodeSource.PACKAGE


def _unpack_source(package: Path, commit: str, folder: Path, files: Files) -> None:
    pack = folder.with_name(SOURCE_MEMBER)
    # one open file for both steps: the bytes at the position cannot be replaced in between
    with open_untrusted(files, package, package.name, max_bytes=MAX_PACKAGE_BYTES) as opened:
        # a confined child parses the archive; this process only copies bytes
        start, size_bytes = read_apart(
            PLACE,
            lambda: _source_place(opened),
            what=safe_line(str(package)),
            seconds=reading_seconds(package),
        )
        with files.replacing(pack) as target:
            target.writelines(opened.pieces(start, size_bytes))
    with files.open_binary(pack, max_bytes=MAX_PACKAGE_BYTES) as stream:
        open_source_pack(stream, commit, folder)
    files.remove_tree(pack)


def _source_place(opened: UntrustedFile) -> tuple[int, int]:
    for name, start, size_bytes in member_index(opened.read_at, opened.size_bytes):
        if name == SOURCE_MEMBER:
            return start, size_bytes
    raise opened.fault(f"holds no {SOURCE_MEMBER}", hint=CLONE_HINT)


def _commit(
    call: ReproductionCall, recorded: CallDocument, repository: GitRepository
) -> str | None:
    if call.work_tree:
        return None
    return repository.resolve(call.code) if call.code is not None else recorded.commit


def _settings_here(settings: GateSettings, call: ReproductionCall) -> GateSettings:
    """Return the package's settings with this machine's paths of data."""
    labels = {source.label for source in settings.data if source.kind is DataKind.PATH}
    unknown = sorted(call.data.keys() - labels)
    if unknown:
        known = ", ".join(sorted(labels)) or "none"
        raise SettingsError(
            f"--data {unknown[0]}: the package declares no such data by a path",
            hint=f"Data that it declares by a path: {known}.",
        )
    data = tuple(_data_here(source, call.data.get(source.label)) for source in settings.data)
    # a package may come from anyone, so only the caller decides which nodes a call uses
    return settings.model_copy(update={"data": data, "cluster": call.cluster})


def _data_here(source: DataSource, path: Path | None) -> DataSource:
    if path is None:
        return source
    # keep the old name: for the training and every report it is the same data set
    return source.model_copy(update={"path": str(path.absolute()), "name": source.label})
