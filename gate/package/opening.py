"""Opening seals: which statement each one holds, and whether all of them are one signer's.

A file's name proves nothing: what a payload is decides its own signed predicate type, and only the
types that the gate writes are taken.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gate.errors import AttestationError
from gate.package.dsse import verify
from gate.package.envelope import read_envelope
from gate.package.keys import public_pem, trusted_public_key
from gate.package.model_signature import MODEL_PREDICATE
from gate.package.model_signing import MAX_MODEL_BYTES
from gate.package.seal_files import names_of
from gate.package.seal_records import PAYLOAD_TYPE, SealFile, StatementKind, TrustedKey, TrustedKeys
from gate.package.sealed_provenance import PROVENANCE_PREDICATE
from gate.package.sealed_statement import STATEMENT_TYPE, VERDICT_PREDICATE
from gate.package.signing import printable, read_object

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
    """A payload whose signature holds; `signer` is the id of a key, or a certified repository."""

    name: str
    kind: StatementKind
    payload: bytes
    signer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What the seals of a package say, one payload for each statement.

    `names` are the files in their order, and `kinds` what each of them holds. `unsigned` has a
    sentence for each file that names another key than the one that signed it.
    """

    names: tuple[str, ...]
    kinds: tuple[StatementKind, ...]
    payloads: dict[StatementKind, bytes]
    signer: str
    unsigned: tuple[str, ...] = ()

    def payload(self, kind: StatementKind, package: Path) -> bytes:
        """The payload of a statement; `AttestationError` where no seal holds it."""
        if kind not in self.payloads:
            raise AttestationError(
                f"{ARTICLED[kind]} is missing among the seals of {package.name}",
                hint=f"Put {names_of(kind, package)} beside {package.name}, or name it with "
                "--seal as well. A package without it is not verified.",
            )
        return self.payloads[kind]


def open_seals(seals: Sequence[SealFile], trusted: TrustedKeys) -> tuple[Opened, TrustedKey]:
    """Every seal's payload, and the one trusted key that signed them all.

    Raises `AttestationError` for a signature that does not hold, for two keys, for two different
    statements of one kind, and for a statement of a kind that the gate does not write.
    """
    opened, keys, unsigned = [], [], []
    for seal in seals:
        envelope = read_envelope(seal)
        key = verify(envelope, trusted)
        # after the signature, which covers the type: a key may sign other documents too
        opened.append(opened_seal(seal, envelope.payload_type, envelope.payload, key.key_id))
        keys.append(key)
        named = envelope.hint or "".join(each.key_id for each in envelope.signatures)
        if named and named not in _names_of(key):
            unsigned.append(
                f"{seal.name} names the key {printable(named)!r}, which nobody signed: the "
                "signature is by the key above."
            )
    return replace(together(opened), unsigned=tuple(unsigned)), keys[0]


def _names_of(key: TrustedKey) -> frozenset[str]:
    """What the gate calls a key in an envelope, a bundle, and the bundle of a model."""
    pem = public_pem(trusted_public_key(key))
    return frozenset(
        (
            key.key_id,
            base64.b64encode(bytes.fromhex(key.key_id)).decode("ascii"),
            hashlib.sha256(pem).hexdigest(),
        )
    )


def opened_seal(seal: SealFile, payload_type: str, payload: bytes, signer: str) -> OpenedSeal:
    """A verified payload of a type that is accepted, in the file where it belongs."""
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
    found = {key: str(value.get(key)) for key in ("_type", "predicateType")}
    kind = KINDS.get(found["predicateType"])
    wanted = {"_type": STATEMENT_TYPE, "predicateType": " or ".join(KINDS)}
    if kind is None or found["_type"] != STATEMENT_TYPE:
        wrong = "_type" if found["_type"] != STATEMENT_TYPE else "predicateType"
        raise AttestationError(
            f"{name} seals a statement of {wrong} {printable(found[wrong])!r}, which is not one "
            "that repro-gate writes",
            hint=f"Only {wanted[wrong]} is accepted.",
        )
    return kind


def together(opened: Sequence[OpenedSeal]) -> Opened:
    """One payload for each kind and one signer for all; `AttestationError` for anything else."""
    if not opened:
        raise AttestationError("no seal was given", hint="Name the seals of the package.")
    first = opened[0]
    payloads: dict[StatementKind, OpenedSeal] = {}
    for each in opened:
        if each.signer != first.signer:
            raise AttestationError(
                f"{first.name} and {each.name} are sealed by different signers",
                hint=ONE_CALL_HINT,
                details=(printable(first.signer), printable(each.signer)),
            )
        known = payloads.setdefault(each.kind, each)
        # one that is valid beside one of another package must not lend it its signature
        if known.payload != each.payload:
            raise AttestationError(
                f"{known.name} and {each.name} seal different statements", hint=CLAIM_HINT
            )
    return Opened(
        names=tuple(each.name for each in opened),
        kinds=tuple(each.kind for each in opened),
        payloads={kind: each.payload for kind, each in payloads.items()},
        signer=first.signer,
    )
