"""Sealing without a key: a key that lives for one signature, certified for the job that made it.

The order of Sigstore's own clients: identity token, certificate, signature, entry in the log. What
comes back is checked as a stranger would check it before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from gate.errors import AttestationError, SealServiceError
from gate.package.dsse import sign
from gate.package.envelope import write_envelope
from gate.package.identity import Identity, IdentityRequest
from gate.package.identity_bundle import write_identity_bundle
from gate.package.keys import KeyFile, PrivateKey, generate_private_key
from gate.package.seal_records import PAYLOAD_TYPE, Envelope, Signature
from gate.package.seal_services import SealServices
from gate.package.signing import decode_base64, printable, read_object

MAX_CLAIMS_BYTES = 64 * 1024
JWT_PARTS = 3
# The claim of GitHub's tokens that Fulcio puts into the certificate, behind the server's address.
WORKFLOW_CLAIM: Final = "job_workflow_ref"
RUNNER_HINT = "The token comes from the runner; run the job again."


@dataclass(frozen=True, kw_only=True, slots=True)
class IdentitySeal:
    """A bundle that was verified, and whom its certificate names."""

    bundle: bytes
    identity: Identity


def seal_by_identity(
    statement: bytes,
    request: IdentityRequest,
    services: SealServices,
    trusted_root: bytes | None,
) -> IdentitySeal:
    """Sign a statement as the job that runs this.

    Raises `AttestationError` when a service gives no answer or a wrong one; the key is forgotten
    either way.
    """
    token = services.identity_token(request)
    identity = token_identity(token, request.server_url)
    key = generate_private_key()
    certificate = services.certificate(token, _signing_request(key))
    _check_certified(certificate, key)
    # no key id: it would name a key that nobody ever sees again
    envelope = _without_key_ids(sign(statement, PAYLOAD_TYPE, KeyFile(key)))
    entry = services.entry(write_envelope(envelope), certificate)
    bundle = write_identity_bundle(envelope, certificate, entry)
    signed = services.verified(bundle, identity, trusted_root)
    if signed.payload != statement or signed.payload_type != PAYLOAD_TYPE:
        raise SealServiceError("the bundle holds another statement", hint=RUNNER_HINT)
    return IdentitySeal(bundle=bundle, identity=identity)


def token_identity(token: str, server_url: str) -> Identity:
    """Whom a certificate for this token has to name, by the token's own claims.

    Its signature is the certificate authority's to check. Raises `SealServiceError` for anything
    but a token of a GitHub Actions job; no message repeats it.
    """
    parts = token.split(".")
    if len(parts) != JWT_PARTS:
        raise SealServiceError("the identity token is no JWT", hint=RUNNER_HINT)
    try:
        # in a JWT the padding is left out (RFC 7515, 2)
        claims = read_object(
            decode_base64(parts[1] + "=" * (-len(parts[1]) % 4), "the identity token"),
            "the identity token",
            max_bytes=MAX_CLAIMS_BYTES,
            hint=RUNNER_HINT,
        )
    except AttestationError as error:
        raise SealServiceError("the identity token cannot be read", hint=RUNNER_HINT) from error
    workflow, issuer = claims.get(WORKFLOW_CLAIM), claims.get("iss")
    if not isinstance(workflow, str) or not isinstance(issuer, str) or not workflow or not issuer:
        raise SealServiceError(
            f"the identity token has no {WORKFLOW_CLAIM}",
            hint="Keyless seals are made in a job of GitHub Actions; elsewhere sign with a key.",
        )
    return Identity(name=f"{server_url}/{workflow}", issuer=issuer)


def _signing_request(key: PrivateKey) -> bytes:
    """A PKCS#10 request, signed by the key that it is about: the proof of possession."""
    # without a subject: what is certified is the token's identity
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, SHA256()).public_bytes(Encoding.PEM)


def _check_certified(certificate: bytes, key: PrivateKey) -> None:
    """Refuse another key's certificate, before what was signed is published with it."""
    try:
        certified = x509.load_der_x509_certificate(certificate).public_key()
    except ValueError as error:
        raise SealServiceError(
            f"Fulcio's certificate cannot be read: {printable(str(error))}", hint=RUNNER_HINT
        ) from error
    if certified != key.public_key():
        raise SealServiceError(
            "Fulcio's certificate is about another key",
            hint="Check signing.fulcio_url, and the proxy in between.",
        )


def _without_key_ids(envelope: Envelope) -> Envelope:
    return Envelope(
        payload=envelope.payload,
        payload_type=envelope.payload_type,
        signatures=tuple(Signature(key_id="", value=each.value) for each in envelope.signatures),
    )
