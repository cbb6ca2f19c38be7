"""Open seals: find out which statement each contains, and check that all of them agree.

A file's name proves nothing. The signed predicate type decides what a payload is, and only the
types that the gate writes are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from gate.errors import AttestationError
from gate.evidence.configuration import configuration_digest
from gate.evidence.run_evidence import StateRoots
from gate.isolation.modes import RunIsolation
from gate.package.archive import MAX_KEPT_BYTES
from gate.package.envelope import read_envelope, verify
from gate.package.keys import public_pem, trusted_public_key
from gate.package.model_signing import (
    MAX_MODEL_BYTES,
    MODEL_PREDICATE,
    check_model_statement,
    model_folder,
)
from gate.package.provenance import (
    BASELINE,
    LOCKS,
    PROVENANCE_PREDICATE,
    Making,
    ProvenanceFacts,
    read_provenance,
)
from gate.package.seal import VERDICT_MEMBER, properties_of, provenance_facts
from gate.package.seal_files import seal_file_names
from gate.package.seal_records import (
    PAYLOAD_TYPE,
    Archive,
    SealFile,
    StatementKind,
    TrustedKey,
    TrustedKeys,
)
from gate.package.signing import printable, read_object, read_record
from gate.package.statement import STATEMENT_TYPE, VERDICT_PREDICATE, StatementFacts, utc_time
from gate.package.ustar import SUMS_NAME, sums_text
from gate.text.digests import sha256_hex
from gate.text.json_text import canonical_json
from gate.verdict.verdict import Verdict

CLUSTER_MEMBER: Final = "cluster.json"
# Members whose content is kept in memory while a package is read. A state may have gigabytes, so it
# is only hashed.
KEPT_MEMBERS: Final = frozenset({SUMS_NAME, VERDICT_MEMBER, CLUSTER_MEMBER})
MAX_DIFFERENCES: Final = 5


def check_sums(archive: Archive) -> None:
    """Compare every file with `SHA256SUMS`; `AttestationError` names the ones that differ."""
    # `read_archive` has checked that the list comes last. It cannot list itself.
    *others, sums = archive.members
    # Rebuild the list and compare bytes: a list that is parsed could name one file twice.
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


def check_verdict(archive: Archive, facts: StatementFacts) -> None:
    """Raise `AttestationError` if `verdict.json`, which people read, differs from the seal."""
    content = _content(archive, VERDICT_MEMBER)
    if content is None:
        raise AttestationError(f"the package holds no {VERDICT_MEMBER}", hint=CLAIM_HINT)
    verdict = read_record(
        Verdict, content, VERDICT_MEMBER, max_bytes=MAX_KEPT_BYTES, hint=CLAIM_HINT
    )
    # Every fact that both have. A field missing here could be changed in the readable file.
    claims = {
        "passes": (verdict.passes, True),
        "outcome": (verdict.outcome, facts.outcome),
        "level": (verdict.level, facts.level),
        "strict_runs": (verdict.strict_runs, facts.strict_runs),
        "one_run": (verdict.one_run, facts.one_run),
        "commit": (verdict.commit, facts.commit),
        "checkpoint_root": (verdict.checkpoint_root, facts.checkpoint_root),
        "states": (verdict.states, facts.states),
        "checkpoint_algorithm": (_algorithms(verdict), {facts.checkpoint_algorithm}),
        "properties": (properties_of(verdict), facts.properties),
        "settings_digest": (verdict.settings_digest, facts.settings_digest),
        "configuration_digest": (_configuration(verdict), facts.configuration_digest),
        "snapshot_digest": (verdict.snapshot_digest, facts.snapshot_digest),
        "isolation": (verdict.isolation, facts.isolation),
        "imported_evidence": (verdict.imported_evidence, facts.imported_evidence),
        "base_branch": (verdict.base_branch, facts.base_branch),
        "base_commit": (verdict.base_commit or "", facts.base_commit),
        "data": (tuple((data_set.name, data_set.sha256) for data_set in verdict.data), facts.data),
        "created_at": (utc_time(verdict.created_at), facts.created_at),
    }
    for name, (in_verdict, sealed) in claims.items():
        if in_verdict != sealed:
            raise AttestationError(
                f"{VERDICT_MEMBER} says {name} {_shown(in_verdict)}, "
                f"the seal says {_shown(sealed)}",
                hint=CLAIM_HINT,
            )


def _configuration(verdict: Verdict) -> str:
    """Return the digest recomputed from the verdict's configuration; empty without one."""
    return configuration_digest(verdict.configuration.values) if verdict.configuration else ""


def _algorithms(verdict: Verdict) -> set[str]:
    """Return how the states were hashed; a verdict with two ways agrees with no seal."""
    return {state.algorithm for state in verdict.states}


def _shown(value: object) -> str:
    if isinstance(value, tuple | set):
        named = (
            f"{value_part.name} {value_part.root}"
            if isinstance(value_part, StateRoots)
            else value_part
            for value_part in value
        )
        return repr(printable(", ".join(map(str, named))))
    text = value.described if isinstance(value, RunIsolation) else str(value)
    return repr(printable(text))


def _content(archive: Archive, name: str) -> bytes | None:
    return next((member.content for member in archive.members if member.name == name), None)


def check_provenance(payload: bytes, facts: StatementFacts, archive: Archive) -> None:
    """Check a provenance against the verdict and the package.

    Raises `AttestationError` that names the first fact on which they disagree.
    """
    provenance = read_provenance(payload)
    members = tuple((member.name, member.sha256) for member in archive.members)
    facts_expected = provenance_facts(facts, members, provenance.making)
    for name in (field.name for field in fields(ProvenanceFacts)):
        said, sealed = getattr(provenance, name), getattr(facts_expected, name)
        if said != sealed:
            raise AttestationError(
                f"the provenance says {name} {_shown(said)}, verdict and package say "
                f"{_shown(sealed)}",
                hint=CLAIM_HINT,
            )
    _check_making(provenance.making, facts, archive)


def _check_making(making: Making, facts: StatementFacts, archive: Archive) -> None:
    packed = {member.name: member.sha256 for member in archive.members}
    listed = {f"{LOCKS}{path}": digest for path, digest in making.locks}
    if facts.baseline_digest:
        listed[BASELINE] = facts.baseline_digest
    for name, digest in packed.items():
        if (name == BASELINE or name.startswith(LOCKS)) and listed.get(name) != digest:
            raise AttestationError(
                f"{printable(name)} in the package is not the one that the provenance lists",
                hint=CLAIM_HINT,
            )
    # The verdict states the settings' digest, the provenance the settings themselves. Comparing
    # both means that neither can come from another call.
    if sha256_hex(canonical_json(making.settings)) != facts.settings_digest:
        raise AttestationError(
            "the provenance lists other settings than the ones that were judged by",
            hint=CLAIM_HINT,
        )
    cluster = _content(archive, CLUSTER_MEMBER)
    if cluster is not None and _text(_object(cluster)) != _text(making.cluster):
        raise AttestationError(
            f"the provenance describes another machine than {CLUSTER_MEMBER}", hint=CLAIM_HINT
        )


def _text(value: Mapping[str, object]) -> str:
    """Return the value as text: Python treats 1, 1.0 and True as equal, and text does not."""
    return json.dumps(value, sort_keys=True)


def _object(content: bytes) -> dict[str, object]:
    return read_object(content, CLUSTER_MEMBER, max_bytes=MAX_KEPT_BYTES, hint=CLAIM_HINT)


def check_model_signature(payload: bytes, archive: Archive) -> None:
    """Check that the model's own signature lists exactly the files that are packed."""
    members = ((member.name, member.sha256) for member in archive.members)
    check_model_statement(payload, model_folder(members))


KINDS: Final = {
    VERDICT_PREDICATE: StatementKind.VERDICT,
    PROVENANCE_PREDICATE: StatementKind.PROVENANCE,
    MODEL_PREDICATE: StatementKind.MODEL,
}
ARTICLED: Final = {
    StatementKind.VERDICT: "a verdict",
    StatementKind.PROVENANCE: "a provenance",
    StatementKind.MODEL: "a model signature",
}
MAX_PAYLOAD_BYTES: Final = MAX_MODEL_BYTES
CLAIM_HINT: Final = "The seal and the package do not belong together; do not use this package."
ONE_CALL_HINT: Final = (
    "One call of the gate makes all seals of a package; put the seals of that call together."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedSeal:
    """A payload with a valid signature; `signer` is the id of a key, or a certified repository."""

    name: str
    kind: StatementKind
    payload: bytes
    signer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The statements of a package's seals, one payload for each kind.

    `names` are the files in their order, and `kinds` the statement in each. `unsigned` has a
    sentence for each file that names a different key than the one that signed it.
    """

    names: tuple[str, ...]
    kinds: tuple[StatementKind, ...]
    payloads: dict[StatementKind, bytes]
    signer: str
    unsigned: tuple[str, ...] = ()

    def payload(self, kind: StatementKind, package: Path) -> bytes:
        """Return the payload of a statement; `AttestationError` if no seal contains it."""
        if kind not in self.payloads:
            raise AttestationError(
                f"{ARTICLED[kind]} is missing among the seals of {package.name}",
                hint=f"Put {seal_file_names(kind, package)} beside {package.name}, or name it with "
                "--seal as well. A package without it is not verified.",
            )
        return self.payloads[kind]


def open_seals(seals: Sequence[SealFile], trusted: TrustedKeys) -> tuple[Opened, TrustedKey]:
    """Return every seal's payload, and the one trusted key that signed all of them.

    Raises `AttestationError` for an invalid signature and for two different keys. Also for two
    different statements of one kind, and for a kind that the gate does not write.
    """
    opened, keys, unsigned = [], [], []
    for seal in seals:
        envelope = read_envelope(seal)
        key = verify(envelope, trusted)
        # Only now, because the signature covers the type: the key may have signed other documents
        # too.
        opened.append(opened_seal(seal, envelope.payload_type, envelope.payload, key.key_id))
        keys.append(key)
        # The name of the key is not signed, so a false one is reported, not refused.
        named = envelope.hint or "".join(signature.key_id for signature in envelope.signatures)
        if named and named not in _names_of(key):
            unsigned.append(
                f"{seal.name} names the key {printable(named)!r}, which nobody signed: the "
                "signature is by the key above."
            )
    return replace(together(opened), unsigned=tuple(unsigned)), keys[0]


def _names_of(key: TrustedKey) -> frozenset[str]:
    """Return a key's names as the gate writes them: in envelopes, bundles and model bundles."""
    pem = public_pem(trusted_public_key(key))
    return frozenset(
        (
            key.key_id,
            base64.b64encode(bytes.fromhex(key.key_id)).decode("ascii"),
            hashlib.sha256(pem).hexdigest(),
        )
    )


def opened_seal(seal: SealFile, payload_type: str, payload: bytes, signer: str) -> OpenedSeal:
    """Check a verified payload's type, and that its file may contain it; return it as a seal."""
    if payload_type != PAYLOAD_TYPE:
        raise AttestationError(
            f"{seal.name} seals a payload of type {printable(payload_type)!r}, "
            f"only {PAYLOAD_TYPE!r} is accepted",
            hint="This signer signed something other than a repro-gate statement.",
        )
    kind = _kind(payload, seal.name)
    if seal.kind not in {None, kind}:
        raise AttestationError(
            f"{seal.name} holds {ARTICLED[kind]}, where {_belongs(seal.kind)} belongs",
            hint="Put each seal under its own name again, or fetch all of them again.",
        )
    return OpenedSeal(name=seal.name, kind=kind, payload=payload, signer=signer)


def _belongs(kind: StatementKind | None) -> str:
    return ARTICLED[kind] if kind is not None else ""


def _kind(payload: bytes, name: str) -> StatementKind:
    value = read_object(
        payload,
        "the signed statement",
        max_bytes=MAX_PAYLOAD_BYTES,
        hint="Verify it with the tool or the repro-gate version that made it.",
    )
    # in-toto's Statement v1 requires both keys
    declared = {key: str(value.get(key)) for key in ("_type", "predicateType")}
    kind = KINDS.get(declared["predicateType"])
    expected = {"_type": STATEMENT_TYPE, "predicateType": " or ".join(KINDS)}
    if kind is None or declared["_type"] != STATEMENT_TYPE:
        wrong = "_type" if declared["_type"] != STATEMENT_TYPE else "predicateType"
        raise AttestationError(
            f"{name} seals a statement of {wrong} {printable(declared[wrong])!r}, which is not one "
            "that repro-gate writes",
            hint=f"Only {expected[wrong]} is accepted.",
        )
    return kind


def together(opened: Sequence[OpenedSeal]) -> Opened:
    """Return one payload for each kind; `AttestationError` for two signers or two statements."""
    if not opened:
        raise AttestationError("no seal was given", hint="Name the seals of the package.")
    first = opened[0]
    payloads: dict[StatementKind, OpenedSeal] = {}
    for envelope in opened:
        if envelope.signer != first.signer:
            raise AttestationError(
                f"{first.name} and {envelope.name} are sealed by different signers",
                hint=ONE_CALL_HINT,
                details=(printable(first.signer), printable(envelope.signer)),
            )
        known = payloads.setdefault(envelope.kind, envelope)
        # A valid statement about another package must not pass under the signature of this one.
        if known.payload != envelope.payload:
            raise AttestationError(
                f"{known.name} and {envelope.name} seal different statements", hint=CLAIM_HINT
            )
    return Opened(
        names=tuple(opening.name for opening in opened),
        kinds=tuple(opening.kind for opening in opened),
        payloads={kind: opening.payload for kind, opening in payloads.items()},
        signer=first.signer,
    )
