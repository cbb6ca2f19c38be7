"""Seal a passing verdict: write its statements, and sign each of them in all written forms."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gate.checkpoint.tensor_hashing import ALGORITHM
from gate.diagnosis.diagnosis import ResumeState
from gate.errors import AttestationError
from gate.evidence.run_evidence import SHA256_PATTERN
from gate.package.envelope import sign, write_bundle, write_envelope
from gate.package.model_signing import ModelFolder, model_folder, model_members, sign_model
from gate.package.provenance import Making, NamedDigests, ProvenanceFacts, write_provenance
from gate.package.seal_files import (
    BARE_SUFFIX,
    BUNDLE_SUFFIX,
    MODEL_SUFFIX,
    PROVENANCE_BARE_SUFFIX,
    PROVENANCE_BUNDLE_SUFFIX,
    seal_file,
)
from gate.package.seal_records import PAYLOAD_TYPE, Package, SealContext, SealFile
from gate.package.signing import Signer
from gate.package.statement import Property, StatementFacts, utc_time, write_statement
from gate.settings.levels import ReachedLevel
from gate.text.digests import sha256_hex
from gate.text.documents import write_document
from gate.verdict.verdict import Outcome, Verdict

VERDICT_MEMBER = "verdict.json"
# what the training produced apart from its states, as the provenance lists it
BYPRODUCTS = (VERDICT_MEMBER, "evidence/manifest.json")
# prefix of an image's digest as container engines write it
IMAGE_ID = "sha256:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Statements:
    """What one call seals: two payloads, and the model, which is signed file by file."""

    verdict: bytes
    provenance: bytes
    model: ModelFolder | None


def statements_of(
    verdict: Verdict, package: Package, context: SealContext, making: Making
) -> Statements:
    """Return the statements about a passing verdict and its package.

    Raises `AttestationError` for a verdict that does not pass or was made from uncommitted changes,
    and for a package whose `verdict.json` is not this verdict.
    """
    facts = statement_facts(verdict, package, context)
    return Statements(
        verdict=write_statement(facts),
        provenance=write_provenance(provenance_facts(facts, package.members, making)),
        model=model_folder(package.members),
    )


def seal(statements: Statements, package: Package, signer: Signer) -> tuple[SealFile, ...]:
    """Sign all statements with one key and return the seals.

    Verdict and provenance are written twice, bare and as a bundle; the model's signature is written
    once, if there is a model and the key can make one.
    """
    verdict = sign(statements.verdict, PAYLOAD_TYPE, signer)
    provenance = sign(statements.provenance, PAYLOAD_TYPE, signer)
    written = [
        (BARE_SUFFIX, write_envelope(verdict)),
        (BUNDLE_SUFFIX, write_bundle(verdict)),
        (PROVENANCE_BARE_SUFFIX, write_envelope(provenance)),
        (PROVENANCE_BUNDLE_SUFFIX, write_bundle(provenance)),
    ]
    model = sign_model(statements.model, signer) if statements.model is not None else None
    if model is not None:
        written.append((MODEL_SUFFIX, model))
    return tuple(seal_file(package.path, suffix, content) for suffix, content in written)


def provenance_facts(
    facts: StatementFacts, members: NamedDigests, making: Making
) -> ProvenanceFacts:
    """Return the provenance's facts: the ones that it shares with the verdict, and `making`.

    Verification calls this too, to compare a provenance with its verdict. `members` has (name,
    SHA-256) of the package's files.
    """
    packed = dict(members)
    image = facts.isolation.image.removeprefix(IMAGE_ID)
    return ProvenanceFacts(
        package_name=facts.package_name,
        package_sha256=facts.package_sha256,
        model=model_members(members),
        repository=facts.repository,
        settings_digest=facts.settings_digest,
        commit=facts.commit,
        snapshot_digest=facts.snapshot_digest,
        image=image if re.match(SHA256_PATTERN, image) else "",
        data=facts.data,
        baseline_digest=facts.baseline_digest,
        gate_version=facts.gate_version,
        run_id=facts.run_id,
        finished_at=facts.created_at,
        byproducts=tuple((name, packed[name]) for name in BYPRODUCTS if name in packed),
        making=making,
    )


def statement_facts(verdict: Verdict, package: Package, context: SealContext) -> StatementFacts:
    """Return the facts to state about this verdict; raises the errors of `statements_of`."""
    _check_sealable(verdict)
    # The archive was written earlier, so check that it contains the very verdict that is signed
    # now.
    if dict(package.members).get(VERDICT_MEMBER) != sha256_hex(write_document(verdict)):
        raise AttestationError(
            f"the package's {VERDICT_MEMBER} is not the verdict that is to be sealed",
            hint="Pack the verdict as write_document gives it, then seal.",
        )
    return StatementFacts(
        package_name=package.path.name,
        package_sha256=package.sha256,
        package_size_bytes=package.size_bytes,
        commit=verdict.commit,
        checkpoint_algorithm=ALGORITHM,
        checkpoint_root=verdict.checkpoint_root,
        states=verdict.states,
        outcome=verdict.outcome,
        level=_level(verdict),
        properties=properties_of(verdict),
        strict_runs=verdict.strict_runs,
        one_run=verdict.one_run,
        settings_digest=verdict.settings_digest,
        configuration_digest=verdict.configuration.digest if verdict.configuration else "",
        baseline_digest=context.baseline_digest,
        snapshot_digest=verdict.snapshot_digest,
        isolation=verdict.isolation,
        imported_evidence=verdict.imported_evidence,
        base_branch=verdict.base_branch,
        base_commit=verdict.base_commit or "",
        created_at=utc_time(verdict.created_at),
        repository=context.repository,
        run_id=context.run_id,
        gate_version=context.gate_version,
        data=tuple((data_set.name, data_set.sha256) for data_set in verdict.data),
    )


def _level(verdict: Verdict) -> ReachedLevel:
    if verdict.level is None:
        raise AttestationError(
            "the verdict names no level that was reached, so nothing can be sealed",
            hint="Run the gate again; a pass always reaches one.",
        )
    return verdict.level


def _check_sealable(verdict: Verdict) -> None:
    if not verdict.passes:
        raise AttestationError(
            f"only a passing verdict is sealed; this one is {verdict.outcome}",
            hint="Make the gate pass first; the unsigned report says why it does not.",
        )
    # A signature about a commit would be false for files that are in no commit.
    if verdict.changed_files:
        raise AttestationError(
            "the training used uncommitted changes, so no commit can be sealed",
            hint="Commit the changes and run the gate again.",
        )


def properties_of(verdict: Verdict) -> tuple[Property, ...]:
    """Return the properties that hold; a property that is missing is not claimed."""
    repeat, baseline = verdict.repeat, verdict.baseline
    claims = {
        # always true: `_check_sealable` and `check_verdict` refuse every other verdict
        Property.GATE_PASSED: True,
        Property.TWO_RUNS_IDENTICAL: repeat is not None and repeat.numerically_equal,
        Property.METRICS_WITHIN_BASELINE: baseline is not None
        and verdict.outcome is not Outcome.BASELINE_CHANGE
        and baseline.comparable
        and verdict.answers.baseline.good,
        Property.CHECKPOINT_MATCHES_BASELINE: baseline is not None
        and baseline.comparable
        and not baseline.tensors,
        Property.RESUMES_EXACTLY: verdict.resume is not None
        and verdict.resume.state is ResumeState.EXACT,
        Property.SURVIVES_KILLS: verdict.resume is not None and verdict.resume.survives_kills,
    }
    return tuple(name for name, holds in claims.items() if holds)
