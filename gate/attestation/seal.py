"""Sealing: the statement about a passing verdict, signed, in its two written forms."""

from __future__ import annotations

from pathlib import Path

from gate.attestation.dsse import PAYLOAD_TYPE, sign
from gate.attestation.envelope import MAX_ENVELOPE_BYTES, write_bundle, write_envelope
from gate.attestation.keys import PrivateKey
from gate.attestation.statement import utc_time, write_statement
from gate.checkpoint.hashing.canonical import ALGORITHM
from gate.codec.digests import sha256_hex
from gate.codec.documents import write_document
from gate.errors import AttestationError
from gate.ports import Files
from gate.records.sealed.attestation import Package, SealContext, SealFile
from gate.records.sealed.statement import Property, StatementFacts
from gate.records.sections.levels import ReachedLevel
from gate.records.verdict import Outcome, Verdict

VERDICT_MEMBER = "verdict.json"
BARE_SUFFIX = ".dsse.json"
BUNDLE_SUFFIX = ".sigstore.json"


def seal(
    verdict: Verdict, package: Package, context: SealContext, private_key: PrivateKey
) -> tuple[SealFile, SealFile]:
    """Sign a passing verdict and its package: the bare envelope, then the Sigstore bundle.

    Raises `AttestationError` for a verdict that does not pass or was made from uncommitted
    changes, and for a package whose `verdict.json` is not this verdict.
    """
    facts = statement_facts(verdict, package, context)
    envelope = sign(write_statement(facts), PAYLOAD_TYPE, private_key)
    bare, bundle = seal_paths(package.path)
    return (
        SealFile(name=bare.name, content=write_envelope(envelope)),
        SealFile(name=bundle.name, content=write_bundle(envelope)),
    )


def statement_facts(verdict: Verdict, package: Package, context: SealContext) -> StatementFacts:
    """What the statement about this verdict says; refuses what must not be signed."""
    _check_sealable(verdict)
    # the archive was written before: what it holds must be the very verdict that is signed now
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
        properties=_properties(verdict),
        strict_runs=verdict.strict_runs,
        settings_digest=verdict.settings_digest,
        baseline_digest=context.baseline_digest,
        snapshot_digest=verdict.snapshot_digest,
        isolation=verdict.isolation,
        created_at=utc_time(verdict.created_at),
        repository=context.repository,
        run_id=context.run_id,
        gate_version=context.gate_version,
        data=tuple((one.name, one.sha256) for one in verdict.data),
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
    # a signature over a commit would be a lie about files that no commit holds
    if verdict.changed_files:
        raise AttestationError(
            "the training used uncommitted changes, so no commit can be sealed",
            hint="Commit the changes and run the gate again.",
        )


def _properties(verdict: Verdict) -> tuple[Property, ...]:
    """Only what holds; a property that is not listed is not claimed."""
    repeat, baseline = verdict.repeat, verdict.baseline
    claims = {
        # true by the check above: nothing else comes as far as here
        Property.GATE_PASSED: True,
        Property.TWO_RUNS_IDENTICAL: repeat is not None and repeat.numerically_equal,
        Property.METRICS_WITHIN_BASELINE: baseline is not None
        and verdict.outcome is not Outcome.BASELINE_CHANGE
        and baseline.comparable
        and verdict.answers.baseline.good,
        Property.CHECKPOINT_MATCHES_BASELINE: baseline is not None
        and baseline.comparable
        and not baseline.tensors,
    }
    return tuple(name for name, holds in claims.items() if holds)


def seal_paths(package: Path) -> tuple[Path, Path]:
    """Where the bare envelope and the bundle of a package lie: beside it."""
    return package.with_suffix(BARE_SUFFIX), package.with_suffix(BUNDLE_SUFFIX)


def write_seals(seals: tuple[SealFile, SealFile], package: Path, files: Files) -> tuple[Path, Path]:
    """Write both forms beside the package."""
    paths = seal_paths(package)
    for path, each in zip(paths, seals, strict=True):
        files.write_bytes(path, each.content)
    return paths


def find_seals(package: Path, files: Files, chosen: Path | None = None) -> tuple[SealFile, ...]:
    """The seals to verify: the chosen file, or all forms that lie beside the package."""
    paths = [chosen] if chosen else [path for path in seal_paths(package) if files.exists(path)]
    if not paths:
        names = " or ".join(path.name for path in seal_paths(package))
        raise AttestationError(
            f"no seal found beside {package.name}",
            hint=f"Put {names} there, or name the seal. Only a passing gate writes one.",
        )
    return tuple(
        SealFile(name=path.name, content=files.read_bytes(path, max_bytes=MAX_ENVELOPE_BYTES))
        for path in paths
    )


def find_bundle(package: Path, files: Files, chosen: Path | None = None) -> SealFile:
    """The bundle of a seal without a key: the chosen file, or the one beside the package."""
    path = chosen or seal_paths(package)[1]
    if not files.exists(path):
        raise AttestationError(
            f"no bundle found at {path.name}",
            hint="Put it beside the package, or name it with --bundle.",
        )
    return SealFile(name=path.name, content=files.read_bytes(path, max_bytes=MAX_ENVELOPE_BYTES))
