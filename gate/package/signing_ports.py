"""Who signs, and what may be read only after the last training."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from gate.package.identity import IdentityRequest


class Secrets(Protocol):
    """Keys and tokens: asked for only after the last training process is gone."""

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
