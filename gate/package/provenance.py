"""The in-toto Statement v1 about the making of a package, as a SLSA provenance v1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import ValidationError

from gate.errors import AttestationError
from gate.package.sealed_provenance import (
    BuildDefinition,
    Builder,
    BuilderVersion,
    BuildMetadata,
    Dependency,
    ExternalParameters,
    Making,
    NamedDigests,
    ProvenanceFacts,
    ProvenancePredicate,
    ProvenanceStatement,
    RunDetails,
)
from gate.package.sealed_statement import FileDescriptor, FileDigest
from gate.package.signing import read_record
from gate.text.documents import fault_lines
from gate.text.json_text import canonical_json

# ten thousand files with the longest names, and the rest of it
MAX_PROVENANCE_BYTES: Final = 5 * 1024 * 1024
SOURCE: Final = "the signed provenance"
OTHER_HINT: Final = "Verify it with the tool or the repro-gate version that made it."
# names of dependencies; those of lock files and of the baseline are theirs in the package
COMMIT: Final = "commit"
TREE: Final = "tree"
IMAGE: Final = "image"
BASELINE: Final = "baseline.json"
LOCKS: Final = "locks/"
DATA: Final = "data/"


def write_provenance(facts: ProvenanceFacts) -> bytes:
    """The payload to sign: canonical JSON, so equal facts give equal bytes.

    Raises `AttestationError` for facts that no statement can say, and for more than can be read.
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
        # 1e400 is a number to JSON, and infinity to whoever reads it
        raise AttestationError(
            f"how this package was made holds a number that JSON has none for: {error}",
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
    """The facts of a payload whose signature holds; the inverse of `write_provenance`.

    Raises `AttestationError` for another form than the one that is written here.
    """
    statement = read_record(
        ProvenanceStatement, payload, SOURCE, max_bytes=MAX_PROVENANCE_BYTES, hint=OTHER_HINT
    )
    facts = _facts(statement)
    # every part of it is a fact by now: what else it says, or in another order, is not ours
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
    # over names, modes and contents of the tree: no SHA-256 of any file
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
    used = [(each.name, next(iter(each.digest.values()))) for each in made.resolved_dependencies]
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
    return tuple((each.name, each.digest.sha256) for each in descriptors)


def _below(start: str, used: list[tuple[str, str]]) -> NamedDigests:
    return tuple(
        (name.removeprefix(start), digest) for name, digest in used if name.startswith(start)
    )
