"""The evidence folder: what goes into each file, and reading it back.

`set.json` holds the set without its runs, `<label>/evidence.json` each run, `manifest.json` the
SHA-256 of all of them, in the order of the runs. `environment.json`, `cluster.json`, `data.json`
and `seeds.json` say once more, for a person, where, on what, with which data and seeds they ran.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import Field

from gate.checkpoint.sources.untrusted_file import open_untrusted
from gate.codec.digests import sha256_hex
from gate.codec.documents import read_document, write_document
from gate.errors import DocumentError, EvidenceError
from gate.ports import Files
from gate.records.document import Document
from gate.records.observed.documents.cluster import CLUSTER_NAME, cluster_document
from gate.records.observed.documents.data import DATA_NAME, data_document
from gate.records.observed.documents.environment import ENVIRONMENT_NAME, environment_document
from gate.records.observed.documents.seeds import SEEDS_NAME, seeds_document
from gate.records.observed.evidence import SHA256_PATTERN, EvidenceSet, RunEvidence

MANIFEST_SCHEMA: Final = "repro-gate.evidence-manifest/1"
MANIFEST_NAME = "manifest.json"
SET_NAME = "set.json"
# One folder deep and without a dot in front, so a name
# that is read from the manifest cannot leave the folder.
RUN_NAME = r"[a-z0-9][a-z0-9-]{0,39}/evidence\.json"
MAX_DOCUMENTS = 1000
MAX_BYTES = 512 * 1024 * 1024
Record = TypeVar("Record", bound=Document)


class EvidenceFile(Document):
    """A document of the folder and its digest."""

    name: str = Field(pattern=rf"^({RUN_NAME}|set\.json)$")
    sha256: str = Field(pattern=SHA256_PATTERN)


class EvidenceManifest(Document):
    """The file `manifest.json`."""

    schema_version: Literal["repro-gate.evidence-manifest/1"] = MANIFEST_SCHEMA
    documents: Annotated[tuple[EvidenceFile, ...], Field(max_length=MAX_DOCUMENTS)]


def run_document(run: RunEvidence) -> tuple[str, bytes]:
    """Name and content of one run's document."""
    return f"{run.run.label}/evidence.json", write_document(run)


def evidence_documents(evidence: EvidenceSet) -> tuple[tuple[str, bytes], ...]:
    """Name and content of every file of the folder, the manifest last; raises as below."""
    *documents, manifest = judged_documents(evidence)
    return (*documents, *readable_documents(evidence), manifest)


def judged_documents(evidence: EvidenceSet) -> tuple[tuple[str, bytes], ...]:
    """The same without those for a person: what `read_evidence_set` reads back.

    Raises `EvidenceError` when two runs share a label: one would overwrite the other.
    """
    labels = [run.run.label for run in evidence.runs]
    if len(set(labels)) != len(labels):
        raise EvidenceError("two runs in the evidence have the same label")
    # the runs have files of their own: what stood in two places could disagree
    bare = evidence.model_copy(update={"runs": ()})
    documents = ((SET_NAME, write_document(bare)), *map(run_document, evidence.runs))
    manifest = EvidenceManifest(
        documents=tuple(
            EvidenceFile(name=name, sha256=sha256_hex(content)) for name, content in documents
        )
    )
    return (*documents, (MANIFEST_NAME, write_document(manifest)))


def readable_documents(evidence: EvidenceSet) -> tuple[tuple[str, bytes], ...]:
    """Name and content of the documents for a person.

    They are made from the others whenever the folder is written, and never read back by it.
    """
    return (
        (ENVIRONMENT_NAME, write_document(environment_document(evidence))),
        (CLUSTER_NAME, write_document(cluster_document(evidence))),
        (DATA_NAME, write_document(data_document(evidence))),
        (SEEDS_NAME, write_document(seeds_document(evidence))),
    )


def read_evidence_set(files: Files, folder: Path) -> EvidenceSet:
    """Read a folder back.

    Raises `EvidenceError` for a missing, foreign or altered document. The manifest itself is bound
    by the seal of the package, not by this folder.
    """
    return evidence_from(lambda name: _read(files, folder, name))


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


def _read(files: Files, folder: Path, name: str) -> bytes:
    with open_untrusted(files, folder / name, name, max_bytes=MAX_BYTES) as opened:
        return opened.read_at(0, opened.size_bytes)


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
