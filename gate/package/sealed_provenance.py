"""How a package was made: the facts, and the SLSA provenance v1 that they are written as.

Format: https://slsa.dev/spec/v1.0/provenance. No SLSA level is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue

from gate.evidence.overrides import OverrideKind
from gate.package.sealed_statement import (
    STATEMENT_TYPE,
    CamelDocument,
    FileDescriptor,
    Sha256,
    ShortText,
    UtcTime,
)

PROVENANCE_PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:repro-gate:smoke-training:v1"
BUILDER_ID: Final = "urn:repro-gate:gate:v1"
PROGRAM: Final = "repro-gate"
MAX_SUBJECTS: Final = 10_001
MAX_DEPENDENCIES: Final = 2000
MAX_SEEDS: Final = 1000
MAX_OVERRIDES: Final = 200
MAX_NAME: Final = 1100
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
NamedDigests = tuple[tuple[str, str], ...]


class OverrideSeen(CamelDocument):
    """What the training's own code did to a setting or a seed in the first run, and where."""

    kind: OverrideKind
    name: str = Field(max_length=200)
    before: str = Field(max_length=200)
    after: str = Field(max_length=200)
    file: str = Field(max_length=200)
    line: int = Field(ge=0, le=2**53)
    rank: int = Field(ge=0, le=2**53)


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """What went into a training and came of its own doing, beside what a verdict says.

    `settings` holds every setting, defaults included, `cluster` what `cluster.json` holds.
    `overridden` counts all overrides, of which `overrides` may be the first only. `locks` are path
    and SHA-256 of each lock file.
    """

    settings: Mapping[str, JsonValue]
    seeds: tuple[int, ...]
    overrides: tuple[OverrideSeen, ...]
    overridden: int
    cluster: Mapping[str, JsonValue]
    locks: NamedDigests


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceFacts:
    """Everything that a provenance says; all but `making` a verdict or the package says too.

    `model` are name and SHA-256 of the package's saved states, `byproducts` of other members.
    `image`, `baseline_digest` and `repository` are empty where there was none; `finished_at` is in
    UTC.
    """

    package_name: str
    package_sha256: str
    model: NamedDigests
    repository: str
    settings_digest: str
    commit: str
    snapshot_digest: str
    image: str
    data: NamedDigests
    baseline_digest: str
    gate_version: str
    run_id: str
    finished_at: str
    byproducts: NamedDigests
    making: Making


class ExternalParameters(CamelDocument):
    """What was asked for; and what the training's own code did to it."""

    repository: ShortText
    settings: dict[str, JsonValue]
    settings_digest: Sha256
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(max_length=MAX_SEEDS)]
    overrides: Annotated[tuple[OverrideSeen, ...], Field(max_length=MAX_OVERRIDES)]
    overridden: int = Field(ge=0, le=2**53)


class Dependency(CamelDocument):
    """Something that went into the training, with one digest."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    digest: Annotated[
        dict[Literal["sha256", "gitCommit", "reproGateTree"], Digest],
        Field(min_length=1, max_length=1),
    ]


class BuildDefinition(CamelDocument):
    """What was trained, from what; `internal_parameters` is the content of `cluster.json`."""

    build_type: Literal["urn:repro-gate:smoke-training:v1"] = BUILD_TYPE
    external_parameters: ExternalParameters
    internal_parameters: dict[str, JsonValue]
    resolved_dependencies: Annotated[tuple[Dependency, ...], Field(max_length=MAX_DEPENDENCIES)]


class BuilderVersion(CamelDocument):
    """The version of the program."""

    version: ShortText = Field(alias=PROGRAM)


class Builder(CamelDocument):
    """Who ran the training."""

    id: Literal["urn:repro-gate:gate:v1"] = BUILDER_ID
    version: BuilderVersion


class BuildMetadata(CamelDocument):
    """Which call it was: the job's address, empty outside a job, and when the last run ended."""

    invocation_id: ShortText
    finished_on: UtcTime


class RunDetails(CamelDocument):
    """Who, when, and what else came of it."""

    builder: Builder
    metadata: BuildMetadata
    byproducts: Annotated[tuple[FileDescriptor, ...], Field(max_length=10)]


class ProvenancePredicate(CamelDocument):
    """A SLSA provenance, version 1."""

    build_definition: BuildDefinition
    run_details: RunDetails


class ProvenanceStatement(CamelDocument):
    """An in-toto Statement, version 1, over a package and every saved state in it."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[FileDescriptor, ...], Field(min_length=1, max_length=MAX_SUBJECTS)]
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = PROVENANCE_PREDICATE
    predicate: ProvenancePredicate
