"""Opens kept evidence: the folder of a call, or a package with its baseline and settings.

All of it is untrusted. Files are opened without following links and read within limits. The strict
readers parse them in a process that holds no key. Seals are not checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gate.baseline.entry import MAX_BASELINE_BYTES, Baseline
from gate.baseline.folder import files_in, read_entries
from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import AttestationError, DocumentError, EvidenceError, SettingsError
from gate.evidence.evidence_folder import (
    MANIFEST_NAME,
    evidence_from,
    read_evidence_set,
    within_bytes,
)
from gate.evidence.run_evidence import EvidenceSet
from gate.package.archive import read_archive
from gate.package.packing import CALL_NAME, CallDocument
from gate.package.seal import VERDICT_MEMBER
from gate.package.seal_opening import check_sums
from gate.package.ustar import BLOCK_BYTES, SUMS_NAME, looks_like_package, member_index
from gate.settings.gate_settings import GateSettings
from gate.settings.load import parse_settings
from gate.system.files.port import Files
from gate.text.digests import sha256_hex
from gate.text.documents import read_document
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import Outcome, Verdict

MAX_PACKAGE_BYTES: Final = 2**40
MAX_SETTINGS_BYTES: Final = 16 * 1024 * 1024
MAX_VERDICT_BYTES: Final = 64 * 1024 * 1024
IN_PACKAGE: Final = "evidence/"
BASELINE_MEMBER: Final = "baseline.json"
SETTINGS_MEMBER: Final = "repro-gate.yml"
EVIDENCE_HINT: Final = (
    "Name the evidence folder of a call (repro-gate-out/evidence, or what `repro-gate run` wrote), "
    "or its package.tar."
)
BASELINE_HINT: Final = "Name the folder of baseline.path; the default is .repro-gate/baseline."
PACKAGE_HINT: Final = "Name the package.tar that a gate call wrote."
NOTHING_KEPT: Final = (
    "The call that wrote this folder kept none, as a call that fails or trains nothing does: its "
    "verdict.json says why."
)
DAMAGED: Final = "The file was cut off or changed; fetch it again from where it was made."


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptEvidence:
    """Evidence with the documents beside it; `package` is true for an unverified package.

    `call` names the call that made a package, and `outcome` is what it decided, None where nobody
    asked for it or this version cannot read its verdict. `settings_text` is its settings file, byte
    for byte.
    """

    evidence: EvidenceSet
    package: bool = False
    baseline: Baseline | None = None
    settings: GateSettings | None = None
    settings_text: bytes = b""
    call: CallDocument | None = None
    outcome: Outcome | None = None
    package_sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A file of a package: its position, and its digest when the whole package was checked."""

    start: int
    size_bytes: int
    sha256: str


def open_kept_evidence(files: Files, path: Path, *, with_outcome: bool = False) -> KeptEvidence:
    """Return the evidence at `path`, a folder or a package.

    `with_outcome` reads the verdict of a package too, which most callers do not need. Raises
    `EvidenceError` for anything else, and for a missing, foreign, truncated or altered part.
    """
    shown = safe_line(str(path))
    if files.is_folder(path):
        return KeptEvidence(evidence=_of_folder(files, path, shown))
    if not files.exists(path):
        hint = hint_beside(path, EVIDENCE_HINT, files)
        raise EvidenceError(f"there is nothing at {shown}", hint=hint)
    with open_untrusted(files, path, shown, max_bytes=MAX_PACKAGE_BYTES) as opened:
        return _of_package(opened, EVIDENCE_HINT, with_outcome=with_outcome)


def hint_beside(missing: Path, hint: str, files: Files) -> str:
    """Return the hint for a missing file; a verdict beside it shows that its call kept none."""
    return NOTHING_KEPT if files.exists(missing.parent / VERDICT_MEMBER) else hint


def no_package(package: Path, files: Files) -> EvidenceError:
    """Return the error for a path without a package, the same in every verb."""
    return EvidenceError(
        f"there is no package at {safe_line(str(package))}",
        hint=hint_beside(package, PACKAGE_HINT, files),
    )


def read_kept_baseline(files: Files, folder: Path) -> Baseline:
    """Return the entries in a baseline's folder; raise `DocumentError` for none or a broken one."""
    shown = safe_line(str(folder))
    if not files.exists(folder):
        raise DocumentError(f"there is nothing at {shown}", hint=BASELINE_HINT)
    if not files.is_folder(folder):
        raise DocumentError(f"{shown} is not a folder", hint=BASELINE_HINT)
    entries = read_entries(files_in(files, folder, shown), shown)
    if entries is None:
        raise DocumentError(
            f"{shown} contains no entry of a baseline",
            hint=BASELINE_HINT,
        )
    return entries


def _of_folder(files: Files, folder: Path, shown: str) -> EvidenceSet:
    # accept a call's output folder too, since that is what users have at hand
    places = (folder, folder / IN_PACKAGE.rstrip("/"))
    place = next(
        (candidate for candidate in places if files.exists(candidate / MANIFEST_NAME)), None
    )
    if place is None:
        hint = hint_beside(folder, hint_beside(folder / MANIFEST_NAME, EVIDENCE_HINT, files), files)
        raise EvidenceError(f"there is no evidence in {shown}: no {MANIFEST_NAME}", hint=hint)

    return read_evidence_set(files, place)


def open_kept_package(files: Files, path: Path) -> KeptEvidence:
    """Return the evidence in a package; raise `EvidenceError` for anything else."""
    if not files.exists(path) or files.is_folder(path):
        raise no_package(path, files)
    shown = safe_line(str(path))
    with open_untrusted(files, path, shown, max_bytes=MAX_PACKAGE_BYTES) as opened:
        return _of_package(opened, PACKAGE_HINT)


def _of_package(opened: UntrustedFile, hint: str, *, with_outcome: bool = False) -> KeptEvidence:
    # one block is enough to recognise the gate's USTAR before the whole file is hashed
    head = opened.read_at(0, min(BLOCK_BYTES, opened.size_bytes))
    if not looks_like_package(head):
        raise EvidenceError(f"{opened.shown} is not a package of repro-gate", hint=hint)
    try:
        # all digests are checked before any member is parsed
        sha256, members = _checked_members(opened)
    except AttestationError as error:
        raise EvidenceError(
            f"{opened.shown}: {error.message}", hint=DAMAGED, details=error.details
        ) from error

    def read(name: str, limit: int) -> bytes:
        return _content(opened, members, f"{IN_PACKAGE}{name}", limit)

    evidence = evidence_from(within_bytes(read))
    baseline = settings = call = None
    text = b""
    if BASELINE_MEMBER in members:
        data = _content(opened, members, BASELINE_MEMBER, MAX_BASELINE_BYTES)
        baseline = read_document(Baseline, data, BASELINE_MEMBER, max_bytes=MAX_BASELINE_BYTES)
    if SETTINGS_MEMBER in members:
        text = _content(opened, members, SETTINGS_MEMBER, MAX_SETTINGS_BYTES)
        settings = _settings(text)
    if CALL_NAME in members:
        data = _content(opened, members, CALL_NAME, MAX_SETTINGS_BYTES)
        call = read_document(CallDocument, data, CALL_NAME, max_bytes=MAX_SETTINGS_BYTES)
    return KeptEvidence(
        evidence=evidence,
        package=True,
        baseline=baseline,
        settings=settings,
        settings_text=text,
        call=call,
        outcome=_outcome(opened, members) if with_outcome else None,
        package_sha256=sha256,
    )


def _outcome(opened: UntrustedFile, members: Mapping[str, _Member]) -> Outcome | None:
    """Return the outcome in the package's verdict; None where this version cannot read it."""
    if VERDICT_MEMBER not in members:
        return None
    data = _content(opened, members, VERDICT_MEMBER, MAX_VERDICT_BYTES)
    try:
        return read_document(Verdict, data, VERDICT_MEMBER, max_bytes=MAX_VERDICT_BYTES).outcome
    except DocumentError:
        return None


def _checked_members(opened: UntrustedFile) -> tuple[str, Mapping[str, _Member]]:
    """Check all files against `SHA256SUMS`; return the package's SHA-256 and their positions."""
    archive = read_archive(opened.stream, size_bytes=opened.size_bytes, keep=frozenset({SUMS_NAME}))
    check_sums(archive)
    digests = {member.name: member.sha256 for member in archive.members}
    return archive.sha256, {
        name: _Member(start=start, size_bytes=size_bytes, sha256=digests[name])
        for name, start, size_bytes in member_index(opened.read_at, opened.size_bytes)
        if name in digests
    }


def _content(opened: UntrustedFile, members: Mapping[str, _Member], name: str, limit: int) -> bytes:
    member = members.get(name)
    if member is None:
        raise opened.fault(f"holds no {name}", hint=DAMAGED)
    if member.size_bytes > limit:
        raise opened.fault(
            f"{name} has {member.size_bytes:,} bytes, the limit is {limit:,}", hint=DAMAGED
        )
    data = opened.read_at(member.start, member.size_bytes)
    # the file may be changed between the check of all members and this read
    if sha256_hex(data) != member.sha256:
        raise opened.fault(f"{name} changed while it was read", hint=DAMAGED)
    return data


def _settings(data: bytes) -> GateSettings:
    try:
        return parse_settings(data, SETTINGS_MEMBER)
    except SettingsError as error:
        raise EvidenceError(error.message, hint=DAMAGED, details=error.details) from error
