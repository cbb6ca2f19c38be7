"""What each node of a cluster says of a run: what was left on it, how tasks ended, what it is.

A node copies the small documents into the shared folder, and of a state that stays on it the
digests. Nothing of it is believed before the gate has hashed its own copy.
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
# of one run and one node, apart from rank 0's own state
MAX_DOCUMENTS_BYTES: Final = 1024**3
# the harness's files, and what is kept of rank 0 on demand
FILE_PATTERN: Final = f"^(?:{KIND_PATTERN}|gradients){PROCESS_PATTERN}$"
FileName = Annotated[str, Field(max_length=60, pattern=FILE_PATTERN)]
TaskNumber = Annotated[str, Field(pattern=r"^(?:0|[1-9][0-9]{0,5})$")]
Token = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]


class Leaf(Document):
    """One leaf of a state, as `LeafDigest` has it; a value has no shape."""

    path: str = Field(min_length=1, max_length=1000)
    part: str = Field(max_length=40)
    kind: str = Field(max_length=40)
    shape: Annotated[tuple[int, ...], Field(max_length=64)] | None
    size_bytes: int = Field(ge=0, le=MAX_BYTES)
    sha256: Sha256


class StateLeaves(OwnedDocument):
    """`leaves-rR-P.json`: a rank's captured state, which stays on its node."""

    leaves: Annotated[tuple[Leaf, ...], Field(max_length=MAX_LEAVES)]
    not_finite: Annotated[tuple[NotFiniteTensor, ...], Field(max_length=MAX_NOT_FINITE)] = ()
    optimizer_settings: Settings = Field(default_factory=dict)
    sketches: Annotated[dict[str, SketchText], Field(max_length=MAX_SKETCHES)] = Field(
        default_factory=dict
    )


class NodeReport(Document):
    """`report.json` of one node: written last, so its presence says that the rest is there.

    `files` has the SHA-256 of each copy in the shared folder, `exits` the exit code of each task
    that ended by itself, by its number among all; `steps` the last step of each rank.
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
