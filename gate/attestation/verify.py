"""Verifying a package: from the signature inwards, each step resting on the one before.

A seal proves who signed and what was compared, not that the training was honest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from gate.attestation.dsse import PAYLOAD_TYPE, verify
from gate.attestation.envelope import read_envelope
from gate.attestation.identity_bundle import read_identity_bundle
from gate.attestation.packing.archive import MAX_KEPT_BYTES, read_archive
from gate.attestation.packing.ustar import SUMS_NAME, sums_text
from gate.attestation.reading import printable, read_record
from gate.attestation.seal import VERDICT_MEMBER
from gate.attestation.statement import read_statement, utc_time
from gate.errors import AttestationError
from gate.ports import Files
from gate.records.observed.state_roots import StateRoots
from gate.records.runs import RunIsolation
from gate.records.sealed.attestation import (
    Archive,
    Expected,
    KeyStatus,
    SealFile,
    TrustedKey,
    TrustedKeys,
    VerifiedPackage,
)
from gate.records.sealed.identity import Identity, IdentitySigned
from gate.records.sealed.statement import StatementFacts
from gate.records.sections.isolation import IsolationMode
from gate.records.sections.levels import ReachedLevel
from gate.records.verdict import Verdict

OTHER_RESULT = {
    ReachedLevel.STATISTICAL: "its metrics are equivalent over seeds",
    ReachedLevel.FUNCTIONAL: "it met the policy's thresholds",
    ReachedLevel.SCIENTIFIC: "it ranks the policy's variants alike",
}
MAX_PACKAGE_BYTES = 64 * 1024**3
MAX_DIFFERENCES = 5
FETCH_HINT = "The package was damaged or changed after sealing; fetch it again or do not use it."
CLAIM_HINT = "The seal and the package do not belong together; do not use this package."


def verify_package(
    path: Path,
    seals: Sequence[SealFile],
    trusted: TrustedKeys,
    expected: Expected,
    files: Files,
) -> VerifiedPackage:
    """Check a package against every given seal and against what the caller expects.

    Raises `AttestationError` with its own message for each way to fail, and `StorageError`
    when the package cannot be read.
    """
    # from here on only what is signed is read: size and digest of the package come from the payload
    key, payload = _signed_payload(seals, trusted)
    facts, archive = _checked_package(path, payload, expected, files)
    _check_made(facts.created_at, expected)
    _check_key_at(key, facts)
    return _verified_package(facts, archive, key_id=key.key_id, notes=_key_notes(key, facts))


def verify_identity_package(
    path: Path,
    seal: SealFile,
    check: Callable[[bytes], IdentitySigned],
    expected: Expected,
    files: Files,
) -> VerifiedPackage:
    """The same for a seal without a key: `check` verifies a bundle and whom it names.

    Raises what `verify_package` raises.
    """
    # ours first: what a bundle of the gate never holds is not handed to a larger reader
    bundle = read_identity_bundle(seal)
    signed = check(seal.content)
    _check_payload_type(signed.payload_type, seal.name)
    owner = urlsplit(signed.repository).path.strip("/")
    facts, archive = _checked_package(path, signed.payload, expected, files, certified=owner)
    logged_at = datetime.fromtimestamp(bundle.integrated_seconds, tz=UTC).isoformat()
    # the log's word and not the signer's
    _check_made(logged_at, expected)
    return _verified_package(
        facts, archive, identity=signed.identity, logged_at=utc_time(logged_at)
    )


def _checked_package(
    path: Path, payload: bytes, expected: Expected, files: Files, *, certified: str = ""
) -> tuple[StatementFacts, Archive]:
    """All that a verified payload says of the package, against the package itself.

    `certified` is the repository that a certificate names, owner/name, or empty.
    """
    facts = _in_repository(read_statement(payload), certified)
    archive = _read_package(path, facts, files)
    check_sums(archive)
    # the digest of the package is right by now: this asks
    # whether what people read in it is what was signed
    _check_verdict(archive, facts)
    _check_expected(facts, expected)
    return facts, archive


def _in_repository(facts: StatementFacts, certified: str) -> StatementFacts:
    """Refuse a statement about another repository than the certificate's; one about none is its."""
    # a reusable workflow has one name whoever calls it: the certificate tells whose job it was
    if certified and facts.repository and facts.repository != certified:
        raise AttestationError(
            f"the seal is about repository {printable(facts.repository)!r}, its certificate about "
            f"{printable(certified)!r}",
            hint=CLAIM_HINT,
        )
    return replace(facts, repository=facts.repository or certified)


def _verified_package(
    facts: StatementFacts,
    archive: Archive,
    *,
    key_id: str = "",
    identity: Identity | None = None,
    logged_at: str = "",
    notes: tuple[str, ...] = (),
) -> VerifiedPackage:
    if facts.level in OTHER_RESULT:
        notes += (f"The result is another one than the baseline's; {OTHER_RESULT[facts.level]}.",)
    if facts.isolation.mode is IsolationMode.NONE:
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
        created_at=facts.created_at,
        checkpoint_root=facts.checkpoint_root,
        members=len(archive.members),
        package_sha256=archive.sha256,
        isolation=facts.isolation,
        repository=facts.repository,
        properties=tuple(each.value for each in facts.properties),
        notes=notes,
    )


def _signed_payload(seals: Sequence[SealFile], trusted: TrustedKeys) -> tuple[TrustedKey, bytes]:
    """The one payload that every seal holds, and the key that signed the first of them."""
    if not seals:
        raise AttestationError("no seal was given", hint="Name the seal of the package.")
    found = [_verified(seal, trusted) for seal in seals]
    # one that is valid beside one of another package must not lend it its signature
    if len({payload for _, payload in found}) > 1:
        names = " and ".join(seal.name for seal in seals)
        raise AttestationError(f"{names} seal different statements", hint=CLAIM_HINT)
    return found[0]


def _verified(seal: SealFile, trusted: TrustedKeys) -> tuple[TrustedKey, bytes]:
    envelope = read_envelope(seal)
    key = verify(envelope, trusted)
    # after the signature, which covers the type: a key may sign other documents too
    _check_payload_type(envelope.payload_type, seal.name)
    return key, envelope.payload


def _check_payload_type(found: str, name: str) -> None:
    if found != PAYLOAD_TYPE:
        raise AttestationError(
            f"{name} seals a payload of type {printable(found)!r}, "
            f"only {PAYLOAD_TYPE!r} is accepted",
            hint="This signer signed something other than a repro-gate statement.",
        )


def _read_package(path: Path, facts: StatementFacts, files: Files) -> Archive:
    # only these two are held in memory; a state of gigabytes is hashed and let go
    keep = frozenset({SUMS_NAME, VERDICT_MEMBER})
    with files.open_binary(path, max_bytes=MAX_PACKAGE_BYTES) as stream:
        size_bytes = stream.seek(0, os.SEEK_END)
        # the cheap question first: a terabyte is refused before it is hashed
        if size_bytes != facts.package_size_bytes:
            raise AttestationError(
                f"{path.name} has {size_bytes:,} bytes, the seal says {facts.package_size_bytes:,}",
                hint=FETCH_HINT,
            )
        stream.seek(0)
        archive = read_archive(stream, size_bytes=size_bytes, keep=keep)
    # over the whole file, headers and padding included: no byte is left to choose
    if archive.sha256 != facts.package_sha256:
        raise AttestationError(
            f"{path.name} is not the file that was sealed: its SHA-256 differs",
            hint=FETCH_HINT,
            details=(f"sealed: {facts.package_sha256}", f"found:  {archive.sha256}"),
        )
    return archive


def check_sums(archive: Archive) -> None:
    """Every file must be the one that `SHA256SUMS` lists; `AttestationError` names what is not."""
    *others, sums = archive.members
    expected = sums_text([(member.name, member.sha256) for member in others])
    if sums.content == expected:
        return
    listed, packed = (sums.content or b"").splitlines(), expected.splitlines()
    wrong = [
        f"listed, but the package differs: {line!r}" for line in sorted(set(listed) - set(packed))
    ]
    wrong += [f"packed, but not listed: {line!r}" for line in sorted(set(packed) - set(listed))]
    raise AttestationError(
        f"{SUMS_NAME} does not match the files of the package",
        hint=CLAIM_HINT,
        details=tuple(printable(line) for line in wrong[:MAX_DIFFERENCES]),
    )


def _check_verdict(archive: Archive, facts: StatementFacts) -> None:
    """What people read in `verdict.json` must be what was signed."""
    content = {member.name: member.content for member in archive.members}.get(VERDICT_MEMBER)
    if content is None:
        raise AttestationError(f"the package holds no {VERDICT_MEMBER}", hint=CLAIM_HINT)
    verdict = read_record(
        Verdict, content, VERDICT_MEMBER, max_bytes=MAX_KEPT_BYTES, hint=CLAIM_HINT
    )
    claims = {
        "passes": (verdict.passes, True),
        "outcome": (verdict.outcome, facts.outcome),
        "level": (verdict.level, facts.level),
        "strict_runs": (verdict.strict_runs, facts.strict_runs),
        "commit": (verdict.commit, facts.commit),
        "checkpoint_root": (verdict.checkpoint_root, facts.checkpoint_root),
        "states": (verdict.states, facts.states),
        "settings_digest": (verdict.settings_digest, facts.settings_digest),
        "snapshot_digest": (verdict.snapshot_digest, facts.snapshot_digest),
        "isolation": (verdict.isolation, facts.isolation),
        "data": (tuple((one.name, one.sha256) for one in verdict.data), facts.data),
        "created_at": (utc_time(verdict.created_at), facts.created_at),
    }
    for name, (found, sealed) in claims.items():
        if found != sealed:
            raise AttestationError(
                f"{VERDICT_MEMBER} says {name} {_shown(found)}, the seal says {_shown(sealed)}",
                hint=CLAIM_HINT,
            )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        named = (f"{one.name} {one.root}" if isinstance(one, StateRoots) else one for one in value)
        return repr(printable(", ".join(map(str, named))))
    text = value.described if isinstance(value, RunIsolation) else str(value)
    return repr(printable(text))


def _check_expected(facts: StatementFacts, expected: Expected) -> None:
    # replaying a valid seal of an older commit: the caller says which commit it must be about
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


def _check_made(made_at: str, expected: Expected) -> None:
    if expected.not_before is not None and datetime.fromisoformat(made_at) < expected.not_before:
        raise AttestationError(
            f"this package was made at {made_at}, which is too long ago",
            hint="Run the gate again, or allow a greater --max-age.",
        )


def _check_key_at(key: TrustedKey, facts: StatementFacts) -> None:
    """A key that is retired counts for what it sealed before; the time is the signer's claim."""
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
