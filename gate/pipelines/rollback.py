"""Finds the last good model: orders the sealed packages and takes the model out of one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.errors import AttestationError, DocumentError, EvidenceError, GateError, SettingsError
from gate.isolation.modes import IsolationMode
from gate.package.archive import read_archive
from gate.package.model_signing import model_folder
from gate.package.packing import CALL_NAME, CallDocument
from gate.package.seal_files import PACKAGE, seal_paths
from gate.package.seal_records import VerifiedPackage
from gate.package.ustar import BLOCK_BYTES, member_index, padding
from gate.pipelines.opening import ReproductionOutcome
from gate.publishing.artifact import ListedPackage
from gate.system.files.port import Files
from gate.text.document import Document, Timestamp, newest_first
from gate.text.documents import read_document
from gate.text.package_names import MAX_PACKAGE_BYTES, STATE_MEMBER, name_problem
from gate.text.phrases import count, joined
from gate.text.untrusted_text import safe_line

ROLLBACK_SCHEMA: Final = "repro-gate.rollback/1"
MODEL: Final = "model"
MAX_NAMES: Final = 10_000
# the document that names the commit is small, so a larger one is not read
MAX_CALL_BYTES: Final = 1024 * 1024
PIECE_BYTES: Final = 4 * 1024 * 1024
SHOWN: Final = 5
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class SkipReason(StrEnum):
    """Why a newer package is skipped for an older one."""

    EXCEPTED = "excepted"
    NOT_ON_BRANCH = "not-on-branch"
    NOT_SEALED = "not-sealed"
    NO_MODEL = "no-model"
    NOT_DEMANDED = "not-as-demanded"
    NOT_VERIFIED = "not-verified"


class Skipped(Document):
    """A newer package that was skipped; `why` is a sentence without its full stop."""

    package: str
    commit: str
    created_at: str
    reason: SkipReason
    why: str


class HandedOut(Document):
    """A file of the model as written here; `name` is its path inside the model's folder."""

    name: str
    path: str
    sha256: Sha256
    size_bytes: int = Field(ge=0)


class Rollback(Document):
    """The package that was taken, the checks that it passed, and the place of its model.

    `reference` names it in a registry by digest; `package` is the local file. `newer_commits`
    counts the newer commits on the branch that `--on` names; None without a branch. `rehearsal` is
    the result of running the package again; None if that was not requested.
    """

    schema_version: Literal["repro-gate.rollback/1"] = ROLLBACK_SCHEMA
    created_at: Timestamp
    wall_seconds: float = Field(ge=0, allow_inf_nan=False)
    commit: str
    outcome: str
    level: str
    made_at: Timestamp
    key_id: str = ""
    identity: str = ""
    repository: str = ""
    base_branch: str = ""
    base_commit: str = ""
    config: str
    package: str
    reference: str = ""
    package_sha256: Sha256
    model: tuple[HandedOut, ...]
    skipped: tuple[Skipped, ...] = ()
    newer_commits: int | None = None
    rehearsal: ReproductionOutcome | None = None
    notes: tuple[str, ...] = ()


class RollbackCandidate(Document):
    """A package that may be the last good one; commit and time are its own, unverified claims.

    `digest` names it in a registry, `path` is its file. `fault` is why its claims are unreadable.
    """

    shown: str
    commit: str = ""
    created_at: str = ""
    digest: str = ""
    path: str = ""
    sealed: bool = True
    fault: str = ""


class PackedFile(Document):
    """A file of a verified package, with its position in the archive."""

    name: str
    start: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    sha256: Sha256


class PackedModel(Document):
    """The files of the model in a verified package, below `folder`; empty without a model.

    `captured` is the state that the harness captured, if the package contains it.
    """

    folder: str
    files: tuple[PackedFile, ...]
    captured: PackedFile | None
    config: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Demands:
    """What a valid sealed pass must fulfil to be taken; an empty text demands nothing."""

    repository: str = ""
    base_branch: str = ""
    least_isolation: IsolationMode = IsolationMode.NONE

    def unmet(self, verified: VerifiedPackage) -> str:
        """Return the first demand that a verified package does not meet, or an empty text."""
        # claims in the sealed statement, so they are only compared after the seal has been verified
        if self.repository and verified.repository != self.repository:
            return f"it is about repository {safe_line(verified.repository) or 'unknown'}"
        if self.base_branch and verified.base_branch != self.base_branch:
            judged = (
                f"a merge into {safe_line(verified.base_branch)}"
                if verified.base_branch
                else "none"
            )
            return f"it was judged for {judged}, not for a merge into {self.base_branch}"
        # isolation that another job reports about its runs is a claim and counts as none
        mode = IsolationMode.NONE if verified.imported_evidence else verified.isolation.mode
        if mode.strength < self.least_isolation.strength:
            return f"its training ran under isolation {mode.value}"
        return ""


def from_registry(listed: ListedPackage) -> RollbackCandidate:
    """Return the candidate for a package that a registry lists."""
    return RollbackCandidate(
        shown=listed.tag,
        commit=listed.commit,
        created_at=listed.created_at,
        digest=listed.digest,
    )


def packages_in(folder: Path, files: Files) -> tuple[RollbackCandidate, ...]:
    """Return the packages in a folder and its subfolders, the newest first by their own claims.

    Only the headers and one small file of each package are read. Unreadable packages come first,
    because their age is unknown.
    """
    names = files.list_names(folder, max_names=MAX_NAMES)
    places = [folder / name for name in names if name.endswith(".tar")]
    for name in names:
        below = folder / name
        if files.is_folder(below):
            inside = files.list_names(below, max_names=MAX_NAMES)
            places += [below / file_name for file_name in inside if file_name.endswith(".tar")]
    packages = [_candidate(place, files) for place in places if _may_be_package(place, files)]
    return tuple(sorted(packages, key=lambda candidate: newest_first(candidate.created_at)))


def _may_be_package(place: Path, files: Files) -> bool:
    # other tar files may be in the folder: only the usual name or a seal marks a package
    return place.name == PACKAGE or any(map(files.exists, seal_paths(place)))


def _candidate(place: Path, files: Files) -> RollbackCandidate:
    shown = safe_line(str(place))
    sealed = any(map(files.exists, seal_paths(place)))
    try:
        call = _call(place, files)
    except GateError as fault:
        return RollbackCandidate(shown=shown, path=str(place), sealed=sealed, fault=fault.message)
    return RollbackCandidate(
        shown=shown,
        commit=call.commit,
        created_at=call.created_at,
        path=str(place),
        sealed=sealed,
    )


def _call(place: Path, files: Files) -> CallDocument:
    with files.open_binary(place, max_bytes=MAX_PACKAGE_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)

        def read_at(start: int, length: int) -> bytes:
            stream.seek(start)
            return stream.read(length)

        for name, start, member_bytes in member_index(read_at, size_bytes):
            if name == CALL_NAME and member_bytes <= MAX_CALL_BYTES:
                content = read_at(start, member_bytes)
                return read_document(CallDocument, content, CALL_NAME)
    raise EvidenceError(f"it has no {CALL_NAME} that says which commit it is of")


def packed_model(package: Path, sha256: str, files: Files) -> PackedModel:
    """Return where the model is in a package whose seal was verified with the digest `sha256`.

    Raises `AttestationError` if the file has been replaced since then.
    """
    with files.open_binary(package, max_bytes=MAX_PACKAGE_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        archive = read_archive(stream, size_bytes=size_bytes, keep=frozenset((CALL_NAME,)))
    # the file is opened once for the verification and once here; it may be replaced in between
    if archive.sha256 != sha256:
        raise AttestationError(
            "the package was replaced while it was checked",
            hint="Copy it to a folder that nobody else can write to, and call this again.",
        )
    places, start, call = {}, 0, b""
    for member in archive.members:
        # USTAR: each member has a header block, and its content is padded to whole blocks
        start += BLOCK_BYTES
        places[member.name] = PackedFile(
            name=member.name, start=start, size_bytes=member.size_bytes, sha256=member.sha256
        )
        start += member.size_bytes + len(padding(member.size_bytes))
        call = member.content or call
    folder = model_folder((member.name, member.sha256) for member in archive.members)
    names = [] if folder is None else [f"{folder.name}/{name}" for name, _ in folder.files]
    return PackedModel(
        folder="" if folder is None else folder.name,
        files=tuple(places[name] for name in names),
        captured=places.get(STATE_MEMBER),
        config=read_document(CallDocument, call, CALL_NAME).config,
    )


def chosen_files(model: PackedModel, name: str) -> Mapping[str, PackedFile]:
    """Return the files to hand out, by target path: all that the script saved, or the one named.

    Raises `SettingsError` for a name that the model does not have.
    """
    start = f"{model.folder}/"
    own = {file.name.removeprefix(start): file for file in model.files}
    # names become paths below the output folder; a sealed package may still have unsafe ones
    wrong = next((path for path in own if name_problem(path)), None)
    if wrong is not None:
        raise DocumentError(f"{safe_line(wrong)!r} is not the name of a file of a model")
    if not name:
        return own
    # the file of the harness has the same name in every package
    captured = {STATE_MEMBER.rpartition("/")[2]: model.captured} if model.captured else {}
    # a file of the script with the same name wins over the captured state
    every = captured | own
    if name not in every:
        known = joined([safe_line(path) for path in sorted(every)[:SHOWN]])
        raise SettingsError(
            f"the package's model has no file {safe_line(name)!r}",
            hint=f"It has {count(len(every), 'file')}, among them {known}. Without --model "
            "everything that the script saved is handed out.",
        )
    return {name: every[name]}


def hand_out(
    package: Path, chosen: Mapping[str, PackedFile], folder: Path, files: Files
) -> tuple[HandedOut, ...]:
    """Write files of a package to a fresh folder; a file gets its name once its digest is right.

    Nothing in the package is parsed here. A confined process read the positions, and the digests
    show whether these bytes are the sealed ones. Raises `AttestationError` if they are not.
    """
    files.fresh_folder(folder)
    done = []
    with files.open_binary(package, max_bytes=MAX_PACKAGE_BYTES) as stream:
        for name, packed in chosen.items():
            target = folder / name
            hasher, left = hashlib.sha256(), packed.size_bytes
            stream.seek(packed.start)
            with files.replacing(target) as out:
                # in pieces, because a model may be larger than the memory
                while left and (piece := stream.read(min(PIECE_BYTES, left))):
                    left -= len(piece)
                    hasher.update(piece)
                    out.write(piece)
                # raised inside `replacing`, so that the file never gets its final name
                if left or hasher.hexdigest() != packed.sha256:
                    raise AttestationError(
                        f"{safe_line(name)} is not the file that was sealed: the package was "
                        "changed while it was copied",
                        hint="Nothing was handed out. Copy the package to a folder that nobody "
                        "else can write to, and call this again.",
                    )
            done.append(
                HandedOut(
                    name=name,
                    path=str(target),
                    sha256=packed.sha256,
                    size_bytes=packed.size_bytes,
                )
            )
    return tuple(done)


def by_branch_order(
    candidates: Sequence[RollbackCandidate], commits: Sequence[str]
) -> list[RollbackCandidate]:
    """Sort candidates by a branch's commits, the newest first; other commits come last.

    Candidates without a commit come first, because their age is unknown.
    """
    place = {commit: number for number, commit in enumerate(commits)}
    return sorted(
        candidates,
        key=lambda candidate: (
            place.get(candidate.commit, len(commits)) if candidate.commit else -1,
            newest_first(candidate.created_at),
        ),
    )
