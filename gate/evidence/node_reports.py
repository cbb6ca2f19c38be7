"""Records that each node of a cluster writes about a run: its files, exit codes and facts.

A node copies the small documents into the shared folder. For a state that stays on the node, it
writes the digests there. The gate trusts none of these files before it has hashed its own copy
(T3).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.columns import MAX_BYTES
from gate.evidence.harness_files import KIND_PATTERN, PROCESS_PATTERN, OwnedDocument
from gate.evidence.run_evidence import (
    MAX_NOT_FINITE,
    MAX_SKETCHES,
    SHA256_PATTERN,
    NotFiniteTensor,
    SketchText,
)
from gate.evidence.step_work import Settings
from gate.system.node import NodeFacts
from gate.text.document import Document

REPORT_NAME: Final = "report.json"
REPORT_SCHEMA: Final = "repro-gate.node-report/1"
MAX_REPORT_BYTES: Final = 8 * 1024 * 1024
MAX_NODES: Final = 512
MAX_TASKS: Final = 128
MAX_LEAVES: Final = 1_000_000
MAX_LEAVES_BYTES: Final = 256 * 1024 * 1024
# limit for one run on one node, without rank 0's own state
MAX_DOCUMENTS_BYTES: Final = 1024**3
# names of harness files, and of the gradients that rank 0 writes on demand
FILE_PATTERN: Final = f"^(?:{KIND_PATTERN}|gradients){PROCESS_PATTERN}$"
FileName = Annotated[str, Field(max_length=60, pattern=FILE_PATTERN)]
TaskNumber = Annotated[str, Field(pattern=r"^(?:0|[1-9][0-9]{0,5})$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]


class ReportedLeaf(Document):
    """One leaf of a state with the fields of `LeafDigest`; a value has no shape."""

    path: str = Field(min_length=1, max_length=1000)
    part: str = Field(max_length=40)
    kind: str = Field(max_length=40)
    shape: Annotated[tuple[int, ...], Field(max_length=64)] | None
    size_bytes: int = Field(ge=0, le=MAX_BYTES)
    sha256: Sha256


class StateLeaves(OwnedDocument):
    """`leaves-rR-P.json`: the digests of a rank's captured state, which stays on its node."""

    leaves: Annotated[tuple[ReportedLeaf, ...], Field(max_length=MAX_LEAVES)]
    not_finite: Annotated[tuple[NotFiniteTensor, ...], Field(max_length=MAX_NOT_FINITE)] = ()
    optimizer_settings: Settings = Field(default_factory=dict)
    sketches: Annotated[dict[str, SketchText], Field(max_length=MAX_SKETCHES)] = Field(
        default_factory=dict
    )


class NodeReport(Document):
    """`report.json` of one node; it is written last, so its presence shows that the rest exists.

    `files` has the SHA-256 of each copy in the shared folder. `exits` has the exit code of each
    task that ended by itself, by the task's number in the whole job. `steps` has the last step of
    each rank.
    """

    schema_version: Literal["repro-gate.node-report/1"] = REPORT_SCHEMA
    token: Token
    number: int = Field(ge=0, lt=MAX_NODES)
    node: NodeFacts
    files: Annotated[dict[FileName, Sha256], Field(max_length=20_000)]
    exits: Annotated[
        dict[TaskNumber, Annotated[int, Field(ge=0, le=255)]], Field(max_length=MAX_TASKS)
    ] = Field(default_factory=dict)
    steps: Annotated[dict[TaskNumber, Annotated[int, Field(ge=0)]], Field(max_length=10_000)] = (
        Field(default_factory=dict)
    )
