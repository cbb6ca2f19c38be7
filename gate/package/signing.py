"""Who can sign: the protocols of signers and services, and strict reading of signed text.

Implementations are in `keys.py`, `signers.py`, `pkcs11.py` and `sigstore_services.py`; tests have
others.
"""

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
    """Return whether the optional package sigstore is installed."""
    return find_spec("sigstore") is not None


Record = TypeVar("Record", bound=Document)
MAX_SHOWN = 200


def printable(text: str) -> str:
    """Return untrusted text for a terminal: shortened, with control characters replaced."""
    shown = masked(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"


def read_object(data: bytes, source: str, *, max_bytes: int, hint: str) -> dict[str, object]:
    """Read a JSON object whose keys are not known yet; `AttestationError` for anything else."""
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
    """Read a document of a known model; `AttestationError` has one line for each fault."""
    try:
        return read_document(model, data, source, max_bytes=max_bytes)
    except DocumentError as error:
        raise _refusal(error, hint) from error


def _refusal(error: DocumentError, hint: str) -> AttestationError:
    details = tuple(printable(line) for line in error.details)
    return AttestationError(printable(error.message), hint=hint, details=details)


def decode_base64(text: str, what: str) -> bytes:
    """Decode padded base64 of either alphabet, and refuse what encoding would not give back.

    DSSE requires both alphabets. Python's decoder ignores the unused bits of the last character, so
    two texts could decode to one value: hence the comparison.
    """
    # A text that mixes both alphabets fails at the comparison below.
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
    """Where a job asks for its identity token, and the secret to ask with.

    `server_url` is the GitHub server that the job belongs to.
    """

    url: str
    token: str = field(repr=False)
    server_url: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """Who sealed: the name in the certificate (on GitHub the workflow's address), and its issuer.

    Only both together identify somebody: another issuer could certify the same name.
    """

    name: str
    issuer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """A transparency log's answer: an entry, its promise, and its proof of inclusion.

    `log_index` counts over all shards of the log, `proof_index` within the tree of `tree_size`
    entries and `root_hash`. `integrated_seconds` is the log's own time, in seconds since 1970.
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
    """The content of a verified bundle: the payload, and who signed it.

    `repository` is the address of the repository whose job signed, empty if the certificate has
    none.
    """

    payload: bytes
    payload_type: str
    identity: Identity
    repository: str


class Secrets(Protocol):
    """Keys and tokens; secrets are asked for only after the last training process is gone (T1)."""

    def names_key(self) -> bool:
        """Return whether there is any key to sign with; reads no secret, so call it at any time."""
        ...

    def names_file(self) -> bool:
        """Return whether there is a private key in PEM; reads no secret, so call it at any time."""
        ...

    def signing_key(self) -> bytes | None:
        """Return the private key in PEM, or None if nothing is to be sealed with a file."""
        ...

    def passphrase(self) -> bytes | None:
        """Return the pass phrase of the private key, or None."""
        ...

    def signer(self) -> Signer | None:
        """Return the signer of a key that is not a file, or None if none was named."""
        ...

    def secret_files(self) -> tuple[Path, ...]:
        """Return the files that contain a key, a PIN or a token, without opening them."""
        ...

    def check_signer(self, *, checkout: Path | None, allow_plain: bool) -> None:
        """Raise `SettingsError` for a key that cannot sign; reads no secret.

        A program below `checkout` is refused. `allow_plain` accepts a file without a pass phrase.
        """
        ...

    def token(self) -> str:
        """Return the token for comments, or the empty text."""
        ...

    def may_identify(self) -> bool:
        """Return whether the job may ask for an identity token; reads no secret."""
        ...

    def identity_request(self) -> IdentityRequest | None:
        """Return address and secret to ask for an identity token with, or None if not allowed."""
        ...


class Signer(Protocol):
    """A signing key, wherever it is; each failure is an `AttestationError`."""

    def public_key(self) -> bytes:
        """Return the public key as DER SubjectPublicKeyInfo."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature: DER for ECDSA P-256/SHA-256, 64 bytes for Ed25519.

        Ed25519 signs the message itself (RFC 8032), never a digest of it.
        """
        ...


class SealServices(Protocol):
    """The services that a seal without a key needs; each failure is an `AttestationError`."""

    def identity_token(self, request: IdentityRequest) -> str:
        """Return the job's identity token: a JWT, secret while it is valid."""
        ...

    def certificate(self, token: str, signing_request: bytes) -> bytes:
        """Return a certificate (DER) for the key in a certificate signing request (PEM)."""
        ...

    def entry(self, envelope: bytes, certificate: bytes) -> LogEntry:
        """Enter a DSSE envelope (JSON), with its key's certificate (DER), into the log."""
        ...

    def check_root(self, trusted_root: bytes | None) -> None:
        """Check that seals can be verified with this root; None as in `verified`."""
        ...

    def verified(
        self, bundle: bytes, identity: Identity, trusted_root: bytes | None
    ) -> IdentitySigned:
        """Verify a whole bundle offline; `trusted_root` None means the public services' root."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealing:
    """The bundle of the verdict's seal that was written, or in `why_not` why there is none.

    `identity` names the signer of a seal without a key.
    """

    bundle: Path | None = None
    identity: Identity | None = None
    why_not: str = ""
