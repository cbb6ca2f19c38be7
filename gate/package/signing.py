"""Who signs and what that needs: protocols of signers, seals without a key, strict text."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, TypeVar

from gate.errors import AttestationError, DocumentError
from gate.text.document import Document
from gate.text.documents import read_document
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import masked


def has_sigstore() -> bool:
    """Whether it is installed."""
    return find_spec("sigstore") is not None


Record = TypeVar("Record", bound=Document)
MAX_SHOWN = 200


def printable(text: str) -> str:
    """Text from outside, cut and with every control character replaced, fit for a terminal."""
    shown = masked(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"


def read_object(data: bytes, source: str, *, max_bytes: int, hint: str) -> dict[str, object]:
    """A JSON object whose keys are not yet known; `AttestationError` for anything else."""
    try:
        value = parse_json(data, source, max_bytes=max_bytes)
    except DocumentError as error:
        raise _refusal(error, hint) from error
    if not isinstance(value, dict):
        raise AttestationError(f"{source}: not a JSON object", hint=hint)
    return value


def read_record(
    model: type[Record], data: bytes, source: str, *, max_bytes: int, hint: str
) -> Record:
    """A document of ours or of Sigstore; `AttestationError` with one line for each fault."""
    try:
        return read_document(model, data, source, max_bytes=max_bytes)
    except DocumentError as error:
        raise _refusal(error, hint) from error


def _refusal(error: DocumentError, hint: str) -> AttestationError:
    details = tuple(printable(line) for line in error.details)
    return AttestationError(printable(error.message), hint=hint, details=details)


def decode_base64(text: str, what: str) -> bytes:
    """Decode either alphabet, with padding, and nothing but what encoding would give back.

    DSSE demands both alphabets. Python's decoder skips foreign characters and ignores the unused
    bits of the last one, so two texts would be one value: hence the comparison.
    """
    # a text that mixes both alphabets fails below, at the comparison
    alternative = b"-_" if "-" in text or "_" in text else b"+/"
    try:
        data = base64.b64decode(text, altchars=alternative, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _not_base64(what) from error
    if base64.b64encode(data, altchars=alternative) != text.encode("ascii"):
        raise _not_base64(what)
    return data


def _not_base64(what: str) -> AttestationError:
    return AttestationError(
        f"{what} is not valid base64",
        hint="The file was damaged or changed; fetch it again from where it was made.",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentityRequest:
    """Where a job asks for its identity token, and with which secret.

    `server_url` is the GitHub server that the job belongs to.
    """

    url: str
    token: str = field(repr=False)
    server_url: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who sealed: the name in the certificate (for GitHub the workflow's address), and its issuer.

    Only both together name somebody: another issuer could certify the same name.
    """

    name: str
    issuer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """What a transparency log answered: an entry, its promise and its proof of inclusion.

    `log_index` counts over all shards of the log, `proof_index` in the tree of `tree_size` entries
    with `root_hash`. `integrated_seconds` is the log's own time, in seconds since 1970.
    """

    body: bytes
    log_id: bytes
    log_index: int
    integrated_seconds: int
    signed_entry_timestamp: bytes
    proof_index: int
    tree_size: int
    root_hash: bytes
    hashes: tuple[bytes, ...]
    checkpoint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentitySigned:
    """What a verified bundle holds: the payload, and who signed it.

    `repository` is the address of the repository whose job it was, empty when the certificate names
    none.
    """

    payload: bytes
    payload_type: str
    identity: Identity
    repository: str


class Secrets(Protocol):
    """Keys and tokens: asked for only after the last training process is gone."""

    def names_key(self) -> bool:
        """Whether there is a key to sign with, wherever it is; reads no secret, so at any time."""
        ...

    def names_file(self) -> bool:
        """Whether there is a private key in PEM; reads nothing of it, so at any time."""
        ...

    def signing_key(self) -> bytes | None:
        """The private key in PEM, or None when nothing is to be sealed."""
        ...

    def passphrase(self) -> bytes | None:
        """What the key is encrypted with, or None."""
        ...

    def signer(self) -> Signer | None:
        """A key that is not a file, or None when none was named."""
        ...

    def secret_files(self) -> tuple[Path, ...]:
        """Files with a key, a PIN or a token: where, and nothing of what is in them."""
        ...

    def check_signer(self, *, checkout: Path | None, allow_plain: bool) -> None:
        """`SettingsError` for a key that cannot sign; tells nothing secret, so at any time.

        No program below `checkout` is started to sign. `allow_plain`: a file without a pass phrase.
        """
        ...

    def token(self) -> str:
        """The token for comments, or the empty text."""
        ...

    def may_identify(self) -> bool:
        """Whether the job may ask for an identity token; tells nothing secret, so at any time."""
        ...

    def identity_request(self) -> IdentityRequest | None:
        """Where and with what to ask for the job's identity token, or None when it may not."""
        ...


class Signer(Protocol):
    """A signing key, wherever it is; each failure is an `AttestationError`."""

    def public_key(self) -> bytes:
        """DER SubjectPublicKeyInfo."""
        ...

    def sign(self, message: bytes) -> bytes:
        """ECDSA P-256/SHA-256: DER; Ed25519: 64 bytes (RFC 8032, never prehashed)."""
        ...


class SealServices(Protocol):
    """What a seal without a key needs from others; each failure is an `AttestationError`."""

    def identity_token(self, request: IdentityRequest) -> str:
        """The job's identity token: a JWT, a secret while it is valid."""
        ...

    def certificate(self, token: str, signing_request: bytes) -> bytes:
        """A certificate (DER) for the key of a certificate signing request (PEM)."""
        ...

    def entry(self, envelope: bytes, certificate: bytes) -> LogEntry:
        """Enter a DSSE envelope (JSON) and the certificate (DER) of its key into the log."""
        ...

    def check_root(self, trusted_root: bytes | None) -> None:
        """Whether a seal could be checked against this root; None as in `verified`."""
        ...

    def verified(
        self, bundle: bytes, identity: Identity, trusted_root: bytes | None
    ) -> IdentitySigned:
        """Check all of a bundle offline; `trusted_root` None stands for the public services."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealing:
    """The verdict's seal that was written, as a bundle; `why_not` says why there is none.

    `identity` says whose a seal without a key is.
    """

    bundle: Path | None = None
    identity: Identity | None = None
    why_not: str = ""
