"""What a seal without a key needs from others."""

from __future__ import annotations

from typing import Protocol

from gate.package.identity import Identity, IdentityRequest, IdentitySigned, LogEntry


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
