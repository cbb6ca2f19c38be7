"""The document `environment.json`: all that is known of where a commit was trained, for a person.

It is made from the evidence and read by nobody who judges.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from gate.evidence.lock_files import Locks
from gate.evidence.run_evidence import Devices, EvidenceSet, RunEvidence
from gate.system.facts import FactMap, MachineFacts, VariableMap
from gate.text.records_document import Document, Timestamp
from gate.training.environment import (
    INDEX,
    MAX_PACKAGES,
    Environment,
    PackageText,
    UnlikeRank,
    normalized_name,
)

ENVIRONMENT_SCHEMA: Final = "repro-gate.environment/1"
ENVIRONMENT_NAME: Final = "environment.json"


class InstalledPackage(Document):
    """A distribution: where it came from, whether a rank imported it, or the settings ignore it."""

    name: PackageText
    version: PackageText
    origin: PackageText
    imported: bool
    ignored: bool


class RankEnvironment(Document):
    """A rank of the first run: its facts, its variables, and every GPU that it can see."""

    rank: int = Field(ge=0, le=1_000_000)
    facts: FactMap
    variables: VariableMap
    devices: Devices = ()


class EnvironmentDocument(Document):
    """The file `environment.json`.

    `parts` decide which entry of a baseline judges, with the packages that are imported and not
    ignored. All else is told and decides nothing.
    """

    schema_version: Literal["repro-gate.environment/1"] = ENVIRONMENT_SCHEMA
    commit: str
    base_commit: str | None
    created_at: Timestamp
    parts: dict[str, str]
    packages: Annotated[tuple[InstalledPackage, ...], Field(max_length=MAX_PACKAGES)]
    unlike_ranks: tuple[UnlikeRank, ...]
    ranks: Annotated[tuple[RankEnvironment, ...], Field(max_length=1000)]
    machine: MachineFacts | None
    locks: Locks
    base_locks: Locks


def environment_document(evidence: EvidenceSet) -> EnvironmentDocument:
    """Of the first run of the commit; a second one that ran elsewhere is an error of its own."""
    run = evidence.runs[0]
    return EnvironmentDocument(
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        created_at=evidence.created_at,
        parts=run.environment.parts,
        packages=_packages(run.environment),
        unlike_ranks=run.environment.unlike_ranks,
        ranks=_ranks(run),
        machine=evidence.machine,
        locks=evidence.locks,
        base_locks=evidence.base_locks,
    )


def _packages(environment: Environment) -> tuple[InstalledPackage, ...]:
    imported = set(map(normalized_name, environment.imported))
    ignored = set(map(normalized_name, environment.ignored))
    found = (line.partition("==") for line in environment.packages)
    return tuple(
        InstalledPackage(
            name=name,
            version=version,
            origin=environment.origins.get(name, INDEX),
            imported=normalized_name(name) in imported,
            ignored=normalized_name(name) in ignored,
        )
        for name, _, version in found
    )


def _ranks(run: RunEvidence) -> tuple[RankEnvironment, ...]:
    devices = {process.rank: process.devices for process in run.processes if process.devices}
    return tuple(
        RankEnvironment(
            rank=rank.rank,
            facts=rank.facts,
            variables=rank.variables,
            devices=devices.get(rank.rank, ()),
        )
        for rank in run.rank_facts
    )
