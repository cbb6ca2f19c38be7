"""Verify a package, from the signatures inwards: each step relies only on what was verified before.

The order is: seals, what the statements claim, the package's size and digest, its files, and what
people read in it. A seal proves who signed and what was compared, not that the training was honest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from gate.errors import AttestationError
from gate.isolation.modes import IsolationMode
from gate.package.archive import read_archive
from gate.package.keyless import read_identity_bundle
from gate.package.model_signing import ModelFolder, model_folder, takes_model_signature
from gate.package.seal_opening import (
    CLAIM_HINT,
    KEPT_MEMBERS,
    Opened,
    check_model_signature,
    check_provenance,
    check_sums,
    check_verdict,
    open_seals,
    opened_seal,
    together,
)
from gate.package.seal_records import (
    Archive,
    Expected,
    KeyStatus,
    SealFile,
    StatementKind,
    TrustedKey,
    TrustedKeys,
    VerifiedPackage,
)
from gate.package.signing import Identity, IdentitySigned, printable
from gate.package.statement import StatementFacts, read_statement, utc_time
from gate.settings.levels import ReachedLevel
from gate.system.files.port import Files
from gate.text.package_names import MAX_PACKAGE_BYTES

OTHER_RESULT = {
    ReachedLevel.STATISTICAL: "its metrics are equivalent over seeds",
    ReachedLevel.FUNCTIONAL: "it met the policy's thresholds",
    ReachedLevel.SCIENTIFIC: "it ranks the policy's variants the same way",
}
NO_MODEL_SIGNATURE = (
    "The model has no signature of its own, which no Ed25519 key can make; the provenance lists "
    "its files."
)
FETCH_HINT = "The package was damaged or changed after sealing; fetch it again or do not use it."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Checked:
    """A package whose every statement holds; `model` is the folder with a signature of its own."""

    opened: Opened
    facts: StatementFacts
    archive: Archive
    model: ModelFolder | None


def verify_package(
    path: Path,
    seals: Sequence[SealFile],
    trusted: TrustedKeys,
    expected: Expected,
    files: Files,
) -> VerifiedPackage:
    """Check a package against all its seals and against what the caller expects.

    The seals must include the verdict and the provenance. They must also include the model's own
    signature if the package has a model and the key can make one. Raises `AttestationError`, with a
    different message for each way to fail, and `StorageError` when the package cannot be read.
    """
    # From here on only signed content is believed: even the package's size and digest come from it.
    opened, key = open_seals(seals, trusted)
    signs_models = takes_model_signature(key.key_details)
    checked = _checked_package(path, opened, expected, files, signs_models=signs_models)
    _check_made(checked.facts.created_at, expected)
    _check_key_at(key, checked.facts)
    notes = _key_notes(key, checked.facts) + opened.unsigned
    notes += () if signs_models else (NO_MODEL_SIGNATURE,)
    return _verified_package(checked, key_id=key.key_id, notes=notes)


def verify_identity_package(
    path: Path,
    seals: Sequence[SealFile],
    check: Callable[[bytes], IdentitySigned],
    expected: Expected,
    files: Files,
) -> VerifiedPackage:
    """Check a package like `verify_package`, but with seals that were made without a key.

    `check` verifies a bundle and the identity that its certificate names. Each bundle has its own
    certificate, and all must name the same repository. Raises the same errors as `verify_package`.
    """
    opened, signed, times = [], [], []
    for seal in seals:
        # Our strict reader comes first, so that content which the gate never writes does not reach
        # sigstore's larger parsers.
        bundle = read_identity_bundle(seal)
        verified = check(seal.content)
        opened.append(
            opened_seal(seal, verified.payload_type, verified.payload, verified.repository)
        )
        signed.append(verified)
        times.append(bundle.integrated_seconds)
    statements = together(opened)
    owner = urlsplit(statements.signer).path.strip("/")
    checked = _checked_package(path, statements, expected, files, certified=owner)
    logged_at = datetime.fromtimestamp(min(times), tz=UTC).isoformat()
    # The age is judged by the log's time, because the signer's own time is only a claim.
    _check_made(logged_at, expected)
    return _verified_package(checked, identity=signed[0].identity, logged_at=utc_time(logged_at))


def _checked_package(
    path: Path,
    opened: Opened,
    expected: Expected,
    files: Files,
    *,
    certified: str = "",
    signs_models: bool = False,
) -> _Checked:
    """Compare everything that the verified payloads claim with the package itself.

    `certified` is the repository (owner/name) that a certificate names, or empty.
    """
    facts = read_statement(opened.payload(StatementKind.VERDICT, path))
    # Checks that do not need the package come first, before gigabytes are read.
    provenance = opened.payload(StatementKind.PROVENANCE, path)
    certain = _in_repository(facts, certified)
    check_expected(certain, expected)
    archive = _read_package(path, facts, files)
    check_sums(archive)
    # The package's digest is verified by now. The remaining question is whether the documents in
    # it, which people read, say what was signed.
    check_verdict(archive, facts)
    check_provenance(provenance, facts, archive)
    model = model_folder((member.name, member.sha256) for member in archive.members)
    signed_model = StatementKind.MODEL in opened.payloads or (signs_models and model is not None)
    if signed_model:
        check_model_signature(opened.payload(StatementKind.MODEL, path), archive)
    return _Checked(
        opened=opened, facts=certain, archive=archive, model=model if signed_model else None
    )


def _in_repository(facts: StatementFacts, certified: str) -> StatementFacts:
    """Refuse a statement about another repository than the certificate's; fill in a missing one."""
    # A reusable workflow has one identity for all its callers, so a seal of any caller would pass.
    # Only the certificate's repository names the calling job.
    if certified and facts.repository and facts.repository != certified:
        raise AttestationError(
            f"the seal is about repository {printable(facts.repository)!r}, its certificate about "
            f"{printable(certified)!r}",
            hint=CLAIM_HINT,
        )
    return replace(facts, repository=facts.repository or certified)


def _verified_package(
    checked: _Checked,
    *,
    key_id: str = "",
    identity: Identity | None = None,
    logged_at: str = "",
    notes: tuple[str, ...] = (),
) -> VerifiedPackage:
    facts, model = checked.facts, checked.model
    if facts.level in OTHER_RESULT:
        notes += (f"The result differs from the baseline's; {OTHER_RESULT[facts.level]}.",)
    if facts.imported_evidence:
        notes += ("Another job ran the training: isolation and numbers are what that job reports.",)
    if facts.isolation.job is not None:
        level = facts.isolation.job.value
        notes += (f"The training ran on a cluster, as {level}: the account that submitted it.",)
    elif facts.isolation.mode is IsolationMode.NONE:
        notes += ("The training ran under the gate's own account (isolation none).",)
    return VerifiedPackage(
        key_id=key_id,
        identity=identity.name if identity else "",
        issuer=identity.issuer if identity else "",
        logged_at=logged_at,
        commit=facts.commit,
        outcome=facts.outcome.value,
        level=facts.level.value,
        strict_runs=facts.strict_runs,
        one_run=facts.one_run.described if facts.one_run is not None else "",
        configuration_digest=facts.configuration_digest,
        created_at=facts.created_at,
        checkpoint_root=facts.checkpoint_root,
        states=facts.states,
        members=len(checked.archive.members),
        package_sha256=checked.archive.sha256,
        isolation=facts.isolation,
        imported_evidence=facts.imported_evidence,
        base_branch=facts.base_branch,
        base_commit=facts.base_commit,
        repository=facts.repository,
        properties=tuple(property_.value for property_ in facts.properties),
        seals=checked.opened.names,
        statements=tuple(sorted(checked.opened.payloads, key=list(StatementKind).index)),
        model_folder=model.name if model is not None else "",
        model_files=len(model.files) if model is not None else 0,
        notes=notes,
    )


def _read_package(path: Path, facts: StatementFacts, files: Files) -> Archive:
    with files.open_binary(path, max_bytes=MAX_PACKAGE_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        # The cheap check first: a terabyte is refused before it is hashed.
        if size_bytes != facts.package_size_bytes:
            raise AttestationError(
                f"{path.name} has {size_bytes:,} bytes, the seal says {facts.package_size_bytes:,}",
                hint=FETCH_HINT,
            )
        stream.seek(0)
        archive = read_archive(stream, size_bytes=size_bytes, keep=KEPT_MEMBERS)
    # The digest covers the whole file, headers and padding included, so no byte can be chosen
    # freely.
    if archive.sha256 != facts.package_sha256:
        raise AttestationError(
            f"{path.name} is not the file that was sealed: its SHA-256 differs",
            hint=FETCH_HINT,
            details=(f"sealed: {facts.package_sha256}", f"found:  {archive.sha256}"),
        )
    return archive


def check_expected(facts: StatementFacts, expected: Expected) -> None:
    """Raise `AttestationError` if the statement is not about what the caller demands."""
    # Against replay of a valid seal for an older commit: the caller names the commit.
    if facts.commit != expected.commit.lower():
        raise AttestationError(
            f"this package is about commit {facts.commit}, "
            f"not about {printable(expected.commit)!r}",
            hint="Give the full hash (`git rev-parse COMMIT`), or the package of that commit.",
        )
    if expected.repository and facts.repository != expected.repository:
        raise AttestationError(
            f"this package is about repository {printable(facts.repository)!r}, "
            f"not about {printable(expected.repository)!r}",
            hint="Give the package that was made for that repository.",
        )
    branch = facts.base_branch
    if expected.base_branch and branch != expected.base_branch:
        judged = f"a merge into {printable(branch)!r}" if branch else "no merge"
        raise AttestationError(
            f"this package was judged for {judged}, not for one into "
            f"{printable(expected.base_branch)!r}",
            hint="Another branch has other rules. Give the package of the pull request into that "
            "branch, or leave --base out.",
        )
    # A report of another job about its own runs is a claim, so it proves no isolation.
    if facts.imported_evidence and expected.least_isolation is not IsolationMode.NONE:
        raise AttestationError(
            "another job ran the training: nothing proves the isolation "
            f"{facts.isolation.mode.value} that it reports, and at least "
            f"{expected.least_isolation.value} is demanded",
            hint="Let one job train and judge (mode: gate), or leave --least-isolation out.",
        )
    if facts.isolation.mode.strength < expected.least_isolation.strength:
        raise AttestationError(
            f"the training ran under isolation {facts.isolation.mode.value}, at least "
            f"{expected.least_isolation.value} is demanded",
            hint="Run the gate where that isolation is possible, or accept a weaker one.",
        )


def _check_made(made_at: str, expected: Expected) -> None:
    if expected.not_before is not None and datetime.fromisoformat(made_at) < expected.not_before:
        raise AttestationError(
            f"this package was made at {made_at}, longer ago than --max-age allows",
            hint="Run the gate again, or allow a higher --max-age.",
        )


def _check_key_at(key: TrustedKey, facts: StatementFacts) -> None:
    """Refuse a seal made after its key was retired; the time in the seal is the signer's claim."""
    if key.status is not KeyStatus.RETIRED or key.retired_at is None:
        return
    if datetime.fromisoformat(facts.created_at) > datetime.fromisoformat(key.retired_at):
        raise AttestationError(
            f"the signing key {key.key_id[:16]} was retired at {key.retired_at}, and this seal "
            f"says that it was made at {facts.created_at}",
            hint="Seal with an active key: run the gate again with the new one.",
        )


def _key_notes(key: TrustedKey, facts: StatementFacts) -> tuple[str, ...]:
    notes = []
    if key.status is KeyStatus.RETIRED:
        notes.append(
            f"The signing key {key.key_id[:16]} has been retired since {key.retired_at}: this "
            f"seal claims to be older, and nothing proves its time."
        )
    if datetime.fromisoformat(facts.created_at) < datetime.fromisoformat(key.added_at):
        notes.append(
            f"The seal is older than the trust file's entry for its key, which was added at "
            f"{printable(key.added_at)}."
        )
    return tuple(notes)
