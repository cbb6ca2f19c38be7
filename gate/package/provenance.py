"""The SLSA provenance of a package: how it was made, as facts and as the statement that is signed.

Format: https://slsa.dev/spec/v1.0/provenance. No SLSA level is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, ValidationError

from gate.errors import AttestationError
from gate.evidence.context_documents import cluster_document
from gate.evidence.observations import Override, OverrideKind
from gate.evidence.run_evidence import EvidenceSet
from gate.package.signing import read_record
from gate.package.statement import (
    STATEMENT_TYPE,
    CamelDocument,
    FileDescriptor,
    FileDigest,
    Sha256,
    ShortText,
    UtcTime,
)
from gate.text.documents import fault_lines
from gate.text.json_text import canonical_json
from gate.verdict.request import GateRequest

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
    """A setting or seed that the training's own code changed in the first run, and where."""

    kind: OverrideKind
    name: str = Field(max_length=200)
    before: str = Field(max_length=200)
    after: str = Field(max_length=200)
    file: str = Field(max_length=200)
    line: int = Field(ge=0, le=2**53)
    rank: int = Field(ge=0, le=2**53)


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """How a training was made, apart from what its verdict says.

    `settings` has every setting, defaults included, and `cluster` the content of `cluster.json`.
    `overridden` counts all overrides, while `overrides` may list only the first ones. `locks` has
    (path, SHA-256) of each lock file.
    """

    settings: Mapping[str, JsonValue]
    seeds: tuple[int, ...]
    overrides: tuple[OverrideSeen, ...]
    overridden: int
    cluster: Mapping[str, JsonValue]
    locks: NamedDigests


@dataclass(frozen=True, kw_only=True, slots=True)
class ProvenanceFacts:
    """Everything that a provenance states; all but `making` is in the verdict or the package too.

    `model` has (name, SHA-256) of the package's saved states, `byproducts` of other members.
    `image`, `baseline_digest` and `repository` are empty if there was none. `finished_at` is in
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
    """What was asked of the training, and what its own code overrode."""

    repository: ShortText
    settings: dict[str, JsonValue]
    settings_digest: Sha256
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(max_length=MAX_SEEDS)]
    overrides: Annotated[tuple[OverrideSeen, ...], Field(max_length=MAX_OVERRIDES)]
    overridden: int = Field(ge=0, le=2**53)


class Dependency(CamelDocument):
    """An input of the training, with one digest."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    digest: Annotated[
        dict[Literal["sha256", "gitCommit", "reproGateTree"], Digest],
        Field(min_length=1, max_length=1),
    ]


class BuildDefinition(CamelDocument):
    """What was trained, and from what; `internal_parameters` is the content of `cluster.json`."""

    build_type: Literal["urn:repro-gate:smoke-training:v1"] = BUILD_TYPE
    external_parameters: ExternalParameters
    internal_parameters: dict[str, JsonValue]
    resolved_dependencies: Annotated[tuple[Dependency, ...], Field(max_length=MAX_DEPENDENCIES)]


class BuilderVersion(CamelDocument):
    """The version of repro-gate."""

    version: ShortText = Field(alias=PROGRAM)


class Builder(CamelDocument):
    """The program that ran the training."""

    id: Literal["urn:repro-gate:gate:v1"] = BUILDER_ID
    version: BuilderVersion


class BuildMetadata(CamelDocument):
    """The call: the job's address (empty outside a job), and when the last run ended."""

    invocation_id: ShortText
    finished_on: UtcTime


class RunDetails(CamelDocument):
    """Who ran the training and when, and which other files resulted."""

    builder: Builder
    metadata: BuildMetadata
    byproducts: Annotated[tuple[FileDescriptor, ...], Field(max_length=10)]


class ProvenancePredicate(CamelDocument):
    """A SLSA provenance, version 1."""

    build_definition: BuildDefinition
    run_details: RunDetails


class ProvenanceStatement(CamelDocument):
    """An in-toto Statement, version 1, about a package and every saved state in it."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[FileDescriptor, ...], Field(min_length=1, max_length=MAX_SUBJECTS)]
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = PROVENANCE_PREDICATE
    predicate: ProvenancePredicate


# enough for ten thousand files with the longest names, and for the rest of the statement
MAX_PROVENANCE_BYTES: Final = 5 * 1024 * 1024
SOURCE: Final = "the signed provenance"
OTHER_HINT: Final = "Verify it with the tool or the repro-gate version that made it."
# Names of dependencies. Lock files and the baseline have the names that they have in the package.
COMMIT: Final = "commit"
TREE: Final = "tree"
IMAGE: Final = "image"
BASELINE: Final = "baseline.json"
LOCKS: Final = "locks/"
DATA: Final = "data/"


def write_provenance(facts: ProvenanceFacts) -> bytes:
    """Return the payload to sign: canonical JSON, so equal facts give equal bytes.

    Raises `AttestationError` for facts that a statement cannot express, and for a payload above
    `MAX_PROVENANCE_BYTES`, which no verifier would read.
    """
    try:
        payload = canonical_json(_statement(facts).model_dump(mode="json", by_alias=True))
    except ValidationError as error:
        raise AttestationError(
            "how this package was made cannot be sealed",
            hint="Run the gate again; a provenance needs all of these facts.",
            details=fault_lines(error, lambda _path: "", ProvenanceStatement),
        ) from error
    except ValueError as error:
        # JSON allows 1e400, which Python reads as infinity and canonical JSON cannot write back.
        raise AttestationError(
            f"how this package was made holds a number that JSON cannot express: {error}",
            hint="Look for infinity or NaN in the settings.",
        ) from error
    if len(payload) > MAX_PROVENANCE_BYTES:
        raise AttestationError(
            f"the provenance would have {len(payload):,} bytes, "
            f"the limit is {MAX_PROVENANCE_BYTES:,}",
            hint="Shorten the settings, or save the model in fewer files.",
        )
    return payload


def read_provenance(payload: bytes) -> ProvenanceFacts:
    """Return the facts of a payload with a valid signature; the inverse of `write_provenance`.

    Raises `AttestationError` for a payload that `write_provenance` would not write.
    """
    statement = read_record(
        ProvenanceStatement, payload, SOURCE, max_bytes=MAX_PROVENANCE_BYTES, hint=OTHER_HINT
    )
    facts = _facts(statement)
    # Every known part is a fact by now. Rebuilding refuses anything else: unknown parts, and known
    # parts in another order or notation.
    if write_provenance(facts) != payload:
        raise AttestationError(f"{SOURCE} is not written as repro-gate writes it", hint=OTHER_HINT)
    return facts


def _statement(facts: ProvenanceFacts) -> ProvenanceStatement:
    return ProvenanceStatement(
        subject=_descriptors(((facts.package_name, facts.package_sha256), *facts.model)),
        predicate=ProvenancePredicate(
            build_definition=BuildDefinition(
                external_parameters=ExternalParameters(
                    repository=facts.repository,
                    settings=dict(facts.making.settings),
                    settings_digest=facts.settings_digest,
                    seeds=facts.making.seeds,
                    overrides=facts.making.overrides,
                    overridden=facts.making.overridden,
                ),
                internal_parameters=dict(facts.making.cluster),
                resolved_dependencies=tuple(_dependencies(facts)),
            ),
            run_details=RunDetails(
                builder=Builder(version=BuilderVersion(version=facts.gate_version)),
                metadata=BuildMetadata(invocation_id=facts.run_id, finished_on=facts.finished_at),
                byproducts=_descriptors(facts.byproducts),
            ),
        ),
    )


def _descriptors(named: NamedDigests) -> tuple[FileDescriptor, ...]:
    return tuple(
        FileDescriptor(name=name, digest=FileDigest(sha256=digest)) for name, digest in named
    )


def _dependencies(facts: ProvenanceFacts) -> Iterator[Dependency]:
    yield Dependency(name=COMMIT, digest={"gitCommit": facts.commit})
    # This digest covers names, modes and contents of the tree. It is not a SHA-256 of a file, so it
    # has its own algorithm name.
    yield Dependency(name=TREE, digest={"reproGateTree": facts.snapshot_digest})
    for name, digest in ((IMAGE, facts.image), (BASELINE, facts.baseline_digest)):
        if digest:
            yield Dependency(name=name, digest={"sha256": digest})
    for start, named in ((LOCKS, facts.making.locks), (DATA, facts.data)):
        for name, digest in named:
            yield Dependency(name=f"{start}{name}", digest={"sha256": digest})


def _facts(statement: ProvenanceStatement) -> ProvenanceFacts:
    made, run = statement.predicate.build_definition, statement.predicate.run_details
    asked = made.external_parameters
    package, *model = _named(statement.subject)
    used = [
        (resolved_dependency.name, next(iter(resolved_dependency.digest.values())))
        for resolved_dependency in made.resolved_dependencies
    ]
    alone = dict(used)
    return ProvenanceFacts(
        package_name=package[0],
        package_sha256=package[1],
        model=tuple(model),
        repository=asked.repository,
        settings_digest=asked.settings_digest,
        commit=alone.get(COMMIT, ""),
        snapshot_digest=alone.get(TREE, ""),
        image=alone.get(IMAGE, ""),
        data=_below(DATA, used),
        baseline_digest=alone.get(BASELINE, ""),
        gate_version=run.builder.version.version,
        run_id=run.metadata.invocation_id,
        finished_at=run.metadata.finished_on,
        byproducts=_named(run.byproducts),
        making=Making(
            settings=asked.settings,
            seeds=asked.seeds,
            overrides=asked.overrides,
            overridden=asked.overridden,
            cluster=made.internal_parameters,
            locks=_below(LOCKS, used),
        ),
    )


def _named(descriptors: tuple[FileDescriptor, ...]) -> NamedDigests:
    return tuple((descriptor.name, descriptor.digest.sha256) for descriptor in descriptors)


def _below(start: str, used: list[tuple[str, str]]) -> NamedDigests:
    return tuple(
        (name.removeprefix(start), digest) for name, digest in used if name.startswith(start)
    )


def making_of(evidence: EvidenceSet, request: GateRequest) -> Making:
    """Return how the first run of the commit was made; every strict run gets the same request."""
    run = evidence.runs[0]
    # The training's own seed comes first, then the further ones in order, up to the limit.
    further = {seeded.result.seed for seeded in evidence.seeded}
    seed = request.settings.train.seed
    return Making(
        settings=request.settings.model_dump(mode="json"),
        seeds=(seed, *sorted(further - {seed}))[:MAX_SEEDS],
        overrides=tuple(_seen(override) for override in run.overrides[:MAX_OVERRIDES]),
        overridden=max(run.overridden, len(run.overrides)),
        cluster=cluster_document(evidence).model_dump(mode="json"),
        # a lock file that could not be read has no digest, and is not in the package either
        locks=tuple((lock.path, lock.sha256) for lock in evidence.locks if lock.sha256),
    )


def _seen(override: Override) -> OverrideSeen:
    return OverrideSeen(
        kind=override.kind,
        name=override.name,
        before=override.before,
        after=override.after,
        file=override.file,
        line=override.line,
        rank=override.rank,
    )
