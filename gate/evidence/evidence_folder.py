"""The evidence folder: what goes into each file, and reading it back.

`set.json` holds the set without its runs, `<label>/evidence.json` each run, `manifest.json` the
SHA-256 of all of them, in the order of the runs. `environment.json`, `cluster.json`, `data.json`
and `seeds.json` say once more, for a person, where, on what, with which data and seeds they ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from gate.checkpoint.untrusted_files import open_untrusted
from gate.errors import DocumentError, EvidenceError, StorageError
from gate.evidence.context_documents import (
    CLUSTER_NAME,
    DATA_NAME,
    ENVIRONMENT_NAME,
    SEEDS_NAME,
    cluster_document,
    data_document,
    environment_document,
    seeds_document,
)
from gate.evidence.run_evidence import SHA256_PATTERN, EvidenceSet, RunEvidence
from gate.system.files.port import Files
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.text.documents import document_chunks, read_document

MANIFEST_SCHEMA: Final = "repro-gate.evidence-manifest/1"
MANIFEST_NAME = "manifest.json"
SET_NAME = "set.json"
# One folder deep and without a dot in front, so a name
# that is read from the manifest cannot leave the folder.
RUN_NAME = r"[a-z0-9][a-z0-9-]{0,39}/evidence\.json"
# for a person, and in a package at the top, where one looks
READABLE_NAMES: Final = frozenset((ENVIRONMENT_NAME, CLUSTER_NAME, DATA_NAME, SEEDS_NAME))
MAX_DOCUMENTS = 1000
# all documents together: a call of hundreds of runs stays far below
MAX_BYTES = 512 * 1024 * 1024
NO_LINKS: Final = "The gate keeps no links; fetch the evidence again from where it was made."
Record = TypeVar("Record", bound=Document)


class EvidenceFile(Document):
    """A document of the folder and its digest."""

    name: str = Field(pattern=rf"^({RUN_NAME}|set\.json)$")
    sha256: str = Field(pattern=SHA256_PATTERN)


class EvidenceManifest(Document):
    """The file `manifest.json`."""

    schema_version: Literal["repro-gate.evidence-manifest/1"] = MANIFEST_SCHEMA
    documents: Annotated[tuple[EvidenceFile, ...], Field(max_length=MAX_DOCUMENTS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenDocument:
    """A file of the folder by its name, and the SHA-256 of the bytes that were written."""

    name: str
    sha256: str


class EvidenceFolder:
    """The evidence folder of a call: what was rendered is on disk, and its digest is here."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._runs: dict[str, tuple[RunEvidence, WrittenDocument]] = {}

    def write(self, evidence: EvidenceSet) -> tuple[WrittenDocument, ...]:
        """Write every file of the folder, the manifest last; a run that lies there stays.

        Raises `EvidenceError` when two runs share a label: one would overwrite the other.
        """
        labels = [run.run.label for run in evidence.runs]
        if len(set(labels)) != len(labels):
            raise EvidenceError(
                "two runs in the evidence have the same label",
                hint="Start the call again with a new folder for --out.",
            )
        # the runs have files of their own: what stood in two places could disagree
        bare = evidence.model_copy(update={"runs": ()})
        judged = (self._written(SET_NAME, bare), *map(self._run, evidence.runs))
        readable = [
            self._written(name, document) for name, document in readable_documents(evidence)
        ]
        manifest = EvidenceManifest(
            documents=tuple(
                EvidenceFile(name=document.name, sha256=document.sha256) for document in judged
            )
        )
        return (*judged, *readable, self._written(MANIFEST_NAME, manifest))

    def _run(self, run: RunEvidence) -> WrittenDocument:
        known, written = self._runs.get(run.run.label, (None, None))
        # the very record: it cannot have changed, and rendering takes as long as all else
        if written is None or known is not run:
            written = self._written(f"{run.run.label}/evidence.json", run)
            self._runs[run.run.label] = run, written
        return written

    def _written(self, name: str, document: Document) -> WrittenDocument:
        hasher = hashlib.sha256()
        with self._files.replacing(self._folder / name) as file:
            for chunk in document_chunks(document):
                hasher.update(chunk)
                file.write(chunk)
        return WrittenDocument(name=name, sha256=hasher.hexdigest())


def readable_documents(evidence: EvidenceSet) -> Iterator[tuple[str, Document]]:
    """The documents for a person.

    They are made from the others whenever the folder is written, and never read back by it.
    """
    yield ENVIRONMENT_NAME, environment_document(evidence)
    yield CLUSTER_NAME, cluster_document(evidence)
    yield DATA_NAME, data_document(evidence)
    yield SEEDS_NAME, seeds_document(evidence)


def read_evidence_set(files: Files, folder: Path) -> EvidenceSet:
    """Read a folder back.

    Raises `EvidenceError` for a missing, foreign or altered document, for a link, and for more than
    512 MiB in all. The manifest itself is bound by the seal of the package, not by this folder.
    """

    def read(name: str, limit: int) -> bytes:
        # a folder of evidence may be an artifact, and one of its folders a link that leads out
        try:
            files.refuse_links(folder / name, below=folder)
        except StorageError as fault:
            raise EvidenceError(fault.message, hint=NO_LINKS) from fault
        with open_untrusted(files, folder / name, name, max_bytes=limit) as opened:
            return opened.read_at(0, opened.size_bytes)

    return evidence_from(within_bytes(read))


def within_bytes(read: Callable[[str, int], bytes]) -> Callable[[str], bytes]:
    """Reads documents until they are larger, all together, than any evidence is."""
    left = MAX_BYTES

    def bounded(name: str) -> bytes:
        nonlocal left
        data = read(name, left)
        left -= len(data)
        return data

    return bounded


def evidence_from(read: Callable[[str], bytes]) -> EvidenceSet:
    """The same from wherever `read` takes a document by its name; faults as above."""
    manifest = _parse(EvidenceManifest, read(MANIFEST_NAME), MANIFEST_NAME)
    names = [document.name for document in manifest.documents]
    # the runs are read by position below, so the list has to have this very form
    if names[:1] != [SET_NAME] or len(set(names)) != len(names):
        raise EvidenceError(
            f"{MANIFEST_NAME}: must list {SET_NAME} first and each document once",
            hint="The folder was changed; create the evidence again.",
        )
    contents = [_checked(read(document.name), document) for document in manifest.documents]
    runs = tuple(
        _parse(RunEvidence, data, name) for name, data in zip(names[1:], contents[1:], strict=True)
    )
    for name, run in zip(names[1:], runs, strict=True):
        if name != f"{run.run.label}/evidence.json":
            raise EvidenceError(
                f"{name}: holds the run {run.run.label[:60]!a}",
                hint="The folder was changed; create the evidence again.",
            )
    return _parse(EvidenceSet, contents[0], SET_NAME).model_copy(update={"runs": runs})


def _checked(data: bytes, document: EvidenceFile) -> bytes:
    if sha256_hex(data) != document.sha256:
        raise EvidenceError(
            f"{document.name}: is not the document that {MANIFEST_NAME} lists",
            hint="The folder was changed; create the evidence again.",
        )
    return data


def _parse(model: type[Record], data: bytes, name: str) -> Record:
    try:
        return read_document(model, data, name, max_bytes=MAX_BYTES)
    except DocumentError as error:
        hint = error.hint or "Create the evidence again."
        raise EvidenceError(error.message, hint=hint, details=error.details) from error
