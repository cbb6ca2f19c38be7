"""A baseline with one entry, and the documents of a package, as the gate makes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from attestation_cases import member, pack_to, verdict_of
from evidence_cases import (
    COMMIT,
    CREATED_AT,
    PARTS,
    evidence_of,
    evidence_set_of,
    settings_of,
)

from gate.baseline.entry import Baseline, BaselineEntry
from gate.evidence.evidence_folder import readable_documents
from gate.evidence.run_evidence import HarnessProcess, RunEvidence
from gate.package.packing import CallDocument
from gate.settings.load import parse_settings, settings_digest
from gate.system.version import VERSION
from gate.text.documents import write_document
from gate.training.environment import Environment
from gate.verdict.verdict import Verdict

SETTINGS = b"version: 1\ntrain: {command: python train.py, max_steps: 3}\n"
RUN = evidence_of()
BASELINE = Baseline(
    entries=(
        BaselineEntry(
            commit=COMMIT,
            recorded_at=CREATED_AT,
            training={"train.seed": str(settings_of().train.seed)},
            environment=Environment(parts={**PARTS, "packages": "0" * 64}),
            metrics=RUN.metrics,
            steps=RUN.steps,
            checkpoint=RUN.checkpoint,
        ),
    )
)


def package_members(
    verdict: Verdict | None = None, other: Mapping[str, bytes | None] = MappingProxyType({})
) -> dict[str, bytes]:
    """Return a package's documents as a gate call packs them; `other` replaces or removes some."""
    evidence = evidence_set_of(_seeded("strict-1"), _seeded("strict-2"))
    settings = parse_settings(SETTINGS, "repro-gate.yml")
    made = verdict or verdict_of(settings_digest=settings_digest(settings))
    call = CallDocument(
        commit=made.commit,
        config="repro-gate.yml",
        settings_digest=made.settings_digest,
        snapshot_digest=made.snapshot_digest,
        created_at=CREATED_AT,
        gate_version=VERSION,
        repository="org/repo",
    )
    members: dict[str, bytes | None] = {
        "verdict.json": write_document(made),
        "call.json": write_document(call),
        "repro-gate.yml": SETTINGS,
        **{name: write_document(one) for name, one in readable_documents(evidence)},
    }
    members |= other
    return {name: content for name, content in members.items() if content is not None}


def packed(path: Path, members: dict[str, bytes]) -> Path:
    """Write a package with these members, and return its path."""
    return pack_to(path, *(member(name, data) for name, data in members.items())).path


def _seeded(label: str) -> RunEvidence:
    """Return a run whose process reports its seeds and its machine."""
    attested = HarnessProcess(
        pid=7, applied={"seed_torch": "42"}, variables={"PYTHONHASHSEED": "42"}
    )
    environment = Environment(
        parts={**PARTS, "packages": "0" * 64}, packages=("torch==2.13.0",), imported=("torch",)
    )
    return evidence_of(label).model_copy(
        update={"processes": (attested,), "environment": environment}
    )
