"""Write the evidence folder, and read it back.

`set.json` has the evidence set without its runs, and `<label>/evidence.json` each run.
`manifest.json` has the SHA-256 of all of them, in the order of the runs. `environment.json`,
`cluster.json`, `data.json` and `seeds.json` repeat for people where, on what, and with which data
and seeds the runs ran.
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
# The name is one folder deep and does not begin with a dot. So a name that is read from the
# manifest cannot lead out of the folder.
RUN_NAME = r"[a-z0-9][a-z0-9-]{0,39}/evidence\.json"
# for people; a package has them at the top, where people look
READABLE_NAMES: Final = frozenset((ENVIRONMENT_NAME, CLUSTER_NAME, DATA_NAME, SEEDS_NAME))
MAX_DOCUMENTS = 1000
# limit for all documents together; a call with hundreds of runs stays far below it
MAX_BYTES = 512 * 1024 * 1024
NO_LINKS: Final = "The gate keeps no links; fetch the evidence again from where it was made."
Record = TypeVar("Record", bound=Document)


class EvidenceFile(Document):
    """A document of the folder, and its digest."""

    name: str = Field(pattern=rf"^({RUN_NAME}|set\.json)$")
    sha256: str = Field(pattern=SHA256_PATTERN)


class EvidenceManifest(Document):
    """The file `manifest.json`: the documents of the folder with their digests."""

    schema_version: Literal["repro-gate.evidence-manifest/1"] = MANIFEST_SCHEMA
    documents: Annotated[tuple[EvidenceFile, ...], Field(max_length=MAX_DOCUMENTS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenDocument:
    """The name of a file in the folder, and the SHA-256 of the bytes that were written."""

    name: str
    sha256: str


class EvidenceFolder:
    """Writes the evidence folder of one call, and remembers which runs are already on disk."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._runs: dict[str, tuple[RunEvidence, WrittenDocument]] = {}

    def write(self, evidence: EvidenceSet) -> tuple[WrittenDocument, ...]:
        """Write every file of the folder, the manifest last; unchanged runs are not written again.

        Raises `EvidenceError` if two runs have the same label, because one would overwrite the
        other.
        """
        labels = [run.run.label for run in evidence.runs]
        if len(set(labels)) != len(labels):
            raise EvidenceError(
                "two runs in the evidence have the same label",
                hint="Start the call again with a new folder for --out.",
            )
        # each run has a file of its own; a second copy in the set could disagree with it
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
        # The same object cannot have changed, because records are frozen. Rendering a run takes as
        # long as everything else together.
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
    """Yield the documents for people.

    They are built from the other documents whenever the folder is written, and are never read back.
    """
    yield ENVIRONMENT_NAME, environment_document(evidence)
    yield CLUSTER_NAME, cluster_document(evidence)
    yield DATA_NAME, data_document(evidence)
    yield SEEDS_NAME, seeds_document(evidence)


def read_evidence_set(files: Files, folder: Path) -> EvidenceSet:
    """Read an evidence folder.

    Raises `EvidenceError` for a missing, unknown or changed document, for a link, and for more than
    512 MiB in total. The manifest itself is protected by the seal of the package, and not here.
    """

    def read(name: str, limit: int) -> bytes:
        # the folder may come from an artifact, and one of its folders may be a link that leads out
        try:
            files.refuse_links(folder / name, below=folder)
        except StorageError as fault:
            raise EvidenceError(fault.message, hint=NO_LINKS) from fault
        with open_untrusted(files, folder / name, name, max_bytes=limit) as opened:
            return opened.read_at(0, opened.size_bytes)

    return evidence_from(within_bytes(read))


def within_bytes(read: Callable[[str, int], bytes]) -> Callable[[str], bytes]:
    """Return `read` with a limit on the size of all documents that it reads together."""
    left = MAX_BYTES

    def bounded(name: str) -> bytes:
        nonlocal left
        data = read(name, left)
        left -= len(data)
        return data

    return bounded


def evidence_from(read: Callable[[str], bytes]) -> EvidenceSet:
    """Return the evidence set from the documents that `read` returns by name.

    Raises the errors of `read_evidence_set`.
    """
    manifest = _parse(EvidenceManifest, read(MANIFEST_NAME), MANIFEST_NAME)
    names = [document.name for document in manifest.documents]
    # the code below takes the runs by position, so the list must have exactly this form
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
