"""Reads a package for an audit: one pass over untrusted bytes, each document on its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from gate.audit.items import PackageFacts, SealCheck
from gate.errors import (
    AttestationError,
    DocumentError,
    EvidenceError,
    GateError,
    SettingsError,
)
from gate.evidence.context_documents import (
    CLUSTER_NAME,
    DATA_NAME,
    ENVIRONMENT_NAME,
    SEEDS_NAME,
    ClusterDocument,
    DataDocument,
    EnvironmentDocument,
    SeedsDocument,
)
from gate.package.archive import read_archive
from gate.package.packing import CALL_NAME, CallDocument
from gate.package.seal_files import find_seals, seal_paths
from gate.package.seal_opening import check_sums
from gate.package.seal_records import Archive, Expected, TrustedKeys
from gate.package.ustar import BLOCK_BYTES, SUMS_NAME, looks_like_package
from gate.package.verify import verify_package
from gate.pipelines.kept_evidence import PACKAGE_HINT, no_package
from gate.settings.gate_settings import FILE_NAME, GateSettings
from gate.settings.load import parse_settings, settings_digest
from gate.system.files.port import Files
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.package_names import MAX_PACKAGE_BYTES
from gate.text.untrusted_text import safe_line
from gate.verdict.verdict import Verdict

MAX_DOCUMENT_BYTES: Final = 64 * 1024 * 1024
VERDICT_NAME: Final = "verdict.json"
DOCUMENTS: Final = (CALL_NAME, ENVIRONMENT_NAME, CLUSTER_NAME, DATA_NAME, SEEDS_NAME)
Record = TypeVar("Record", bound=Document)


def look_at_package(
    package: Path, files: Files, trusted: TrustedKeys | None, expected: Expected | None
) -> PackageFacts:
    """Return the content of a package; with keys and the expected commit, check its seal too.

    An unreadable document becomes a problem of its part. Raises `EvidenceError` and `StorageError`
    if the file is no complete package.
    """
    archive = _archive(package, files)
    read = _Documents({member.name: member.content for member in archive.members})
    settings, digest = read.settings()
    seal, words = _seal(package, files, trusted, expected, read_sha256=archive.sha256)
    return PackageFacts(
        place=safe_line(str(package)),
        sha256=archive.sha256,
        members=tuple(member.name for member in archive.members),
        verdict=read.document(Verdict, VERDICT_NAME),
        call=read.document(CallDocument, CALL_NAME),
        environment=read.document(EnvironmentDocument, ENVIRONMENT_NAME),
        cluster=read.document(ClusterDocument, CLUSTER_NAME),
        data=read.document(DataDocument, DATA_NAME),
        seeds=read.document(SeedsDocument, SEEDS_NAME),
        settings=settings,
        settings_digest=digest,
        seal=seal,
        seal_words=words,
        # last, because each reading above may add a problem
        problems=dict(read.problems),
    )


def _archive(package: Path, files: Files) -> Archive:
    if not files.exists(package):
        raise no_package(package, files)
    keep = frozenset((SUMS_NAME, VERDICT_NAME, FILE_NAME, *DOCUMENTS))
    shown = safe_line(str(package))
    with files.open_binary(package, max_bytes=MAX_PACKAGE_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        # what is no package was not cut off either
        if not looks_like_package(stream.read(BLOCK_BYTES)):
            raise EvidenceError(f"{shown} is not a package of repro-gate", hint=PACKAGE_HINT)
        stream.seek(0)
        try:
            archive = read_archive(stream, size_bytes=size_bytes, keep=keep)
            # the sums only prove that the package is complete; anyone can compute them again
            check_sums(archive)
        except AttestationError as fault:
            raise EvidenceError(
                f"{shown}: {fault.message}", hint=PACKAGE_HINT, details=fault.details
            ) from fault
    return archive


class _Documents:
    """The documents of a package, each read on its own; faults are collected in `problems`."""

    def __init__(self, contents: Mapping[str, bytes | None]) -> None:
        self._contents = contents
        self.problems: dict[str, str] = {}

    def _kept(self, name: str, read: Callable[[bytes], Record]) -> Record | None:
        data = self._contents.get(name)
        if data is None:
            return None
        try:
            return read(data)
        # one broken document must not hide the others
        except (DocumentError, SettingsError) as fault:
            self.problems[name] = "; ".join((fault.message, *fault.details[:1]))
        return None

    def document(self, model: type[Record], name: str) -> Record | None:
        """Return a document; None if it is missing, of another version or broken."""
        return self._kept(
            name, lambda data: read_document(model, data, name, max_bytes=MAX_DOCUMENT_BYTES)
        )

    def settings(self) -> tuple[GateSettings | None, str]:
        """Return the packed settings and their digest."""
        parsed = self._kept(FILE_NAME, lambda data: parse_settings(data, FILE_NAME))
        return parsed, settings_digest(parsed) if parsed is not None else ""


def _seal(
    package: Path,
    files: Files,
    trusted: TrustedKeys | None,
    expected: Expected | None,
    *,
    read_sha256: str,
) -> tuple[SealCheck, str]:
    """Check the seal; return the result and a sentence about it."""
    if not any(files.exists(path) for path in seal_paths(package)):
        return SealCheck.NONE, ""
    if trusted is None or expected is None:
        return SealCheck.NOT_ASKED, ""
    try:
        verified = verify_package(package, find_seals(package, files), trusted, expected, files)
    except GateError as fault:
        return SealCheck.REFUSED, fault.message
    # the file is opened once to be read and once to be verified; it may be replaced in between
    if verified.package_sha256 != read_sha256:
        return SealCheck.REFUSED, "the package was replaced while it was looked at"
    words = f"valid, key {verified.key_id[:16]}, level {verified.level}, made {verified.created_at}"
    return SealCheck.VALID, words
