"""The three services of a keyless seal: the runner's tokens, Fulcio's certificates, Rekor's log.

GitHub Actions, "OpenID Connect reference"; Fulcio's API version 2 (`signingCert`); Rekor's API
version 1 (`log/entries`) with entries of kind dsse 0.0.1.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Base64Bytes, BaseModel, Field, TypeAdapter

from gate.errors import SealServiceError
from gate.package.http import Answer, Service
from gate.package.identity import Identity, IdentityRequest, IdentitySigned, LogEntry
from gate.package.sigstore_verifier import check_trusted_root, verify_identity
from gate.settings.signing import SigningSettings
from gate.system.retry import GITHUB_POLICY, RetryPolicy

AUDIENCE: Final = "sigstore"
CREATED: Final = 201
CONFLICT: Final = 409
OK: Final = 200
MAX_TOKEN_CHARACTERS: Final = 16 * 1024
ENTRY_PATH = re.compile(r"/api/v1/log/entries/[0-9a-f]{64,80}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+\Z")
PERMISSION_HINT = "Give the job the permission `id-token: write`."
FULCIO_HINT = "Check signing.fulcio_url: it has to be a Fulcio that takes GitHub's tokens."
REKOR_HINT = "Check signing.rekor_url: it has to be a Rekor with version 1 of the API."
Hex32 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Token(BaseModel):
    value: str = Field(max_length=MAX_TOKEN_CHARACTERS)


class _Chain(BaseModel):
    certificates: list[str] = Field(min_length=1, max_length=10)


class _Signed(BaseModel):
    chain: _Chain


class _Certified(BaseModel):
    """The certificate with the promise of the log of certificates inside it."""

    with_promise: _Signed = Field(alias="signedCertificateEmbeddedSct")


class _Proof(BaseModel):
    checkpoint: str = Field(max_length=10_000)
    hashes: list[Hex32] = Field(max_length=64)
    log_index: Count = Field(alias="logIndex")
    root_hash: Hex32 = Field(alias="rootHash")
    tree_size: Count = Field(alias="treeSize")


class _Verification(BaseModel):
    proof: _Proof = Field(alias="inclusionProof")
    promise: Base64Bytes = Field(alias="signedEntryTimestamp")


class _Entry(BaseModel):
    """The part of Rekor's answer that a bundle needs."""

    body: Base64Bytes
    integrated_time: Count = Field(alias="integratedTime")
    log_id: Hex32 = Field(alias="logID")
    log_index: Count = Field(alias="logIndex")
    verification: _Verification


_TOKEN_ANSWER = TypeAdapter(_Token)
_CERTIFIED = TypeAdapter(_Certified)
_ENTRIES = TypeAdapter(Annotated[dict[str, _Entry], Field(min_length=1, max_length=1)])


class SigstoreServices:
    """`gate.ports.SealServices` over HTTP, at the addresses of the settings."""

    def __init__(self, settings: SigningSettings, policy: RetryPolicy = GITHUB_POLICY) -> None:
        self._fulcio_url = settings.fulcio_url
        self._rekor_url = settings.rekor_url
        self._policy = policy

    def identity_token(self, request: IdentityRequest) -> str:
        """Ask the runner's service for a token that is meant for Sigstore alone."""
        name = "the runner's service for identity tokens"
        with Service(name, request.url, self._policy, secret=request.token) as service:
            # the audience: a token for another service would not count here, nor this one there
            mark = "&" if "?" in request.url else "?"
            answer = service.ask("GET", f"{request.url}{mark}audience={AUDIENCE}")
            if answer.status != OK:
                raise service.refused(answer, PERMISSION_HINT)
            token = answer.read_as(_TOKEN_ANSWER, PERMISSION_HINT).value
        if not _TOKEN.match(token):
            raise SealServiceError(f"{name} gave no token", hint=PERMISSION_HINT)
        return token

    def certificate(self, token: str, signing_request: bytes) -> bytes:
        """Ask Fulcio for a certificate; the request's own signature proves the key."""
        body = {
            "credentials": {"oidcIdentityToken": token},
            "certificateSigningRequest": base64.b64encode(signing_request).decode("ascii"),
        }
        with Service("Fulcio", self._fulcio_url, self._policy) as service:
            url = f"{self._fulcio_url}/api/v2/signingCert"
            answer = service.ask("POST", url, body, hide=token)
            if answer.status not in {OK, CREATED}:
                raise service.refused(answer, FULCIO_HINT, hide=token)
        chain = answer.read_as(_CERTIFIED, FULCIO_HINT).with_promise.chain.certificates
        try:
            # the chain above it comes from the trusted root, never from the answer
            leaf = x509.load_pem_x509_certificate(chain[0].encode())
        except ValueError as error:
            raise SealServiceError(
                "Fulcio's certificate cannot be read", hint=FULCIO_HINT
            ) from error
        return leaf.public_bytes(Encoding.DER)

    def entry(self, envelope: bytes, certificate: bytes) -> LogEntry:
        """Enter an envelope into Rekor's log; an entry that is there already is taken."""
        pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
        content = {
            "envelope": envelope.decode("utf-8"),
            "verifiers": [base64.b64encode(pem).decode("ascii")],
        }
        body = {"apiVersion": "0.0.1", "kind": "dsse", "spec": {"proposedContent": content}}
        with Service("Rekor", self._rekor_url, self._policy) as service:
            answer = service.ask("POST", f"{self._rekor_url}/api/v1/log/entries", body)
            if answer.status == CONFLICT:
                # an answer got lost and the request was repeated: the first one was carried out
                answer = service.ask("GET", self._existing(service, answer))
            if answer.status not in {OK, CREATED}:
                raise service.refused(answer, REKOR_HINT)
        return _log_entry(answer)

    def check_root(self, trusted_root: bytes | None) -> None:
        """Read the root as `verified` will; `AttestationError` where that cannot be done."""
        check_trusted_root(trusted_root)

    def verified(
        self, bundle: bytes, identity: Identity, trusted_root: bytes | None
    ) -> IdentitySigned:
        """Check all of a bundle; nothing is asked of anybody."""
        return verify_identity(bundle, identity, trusted_root)

    def _existing(self, service: Service, answer: Answer) -> str:
        location = answer.headers.get("Location", "")
        path = location.removeprefix(service.origin)
        if not ENTRY_PATH.match(path):
            raise service.refused(answer, REKOR_HINT)
        return f"{self._rekor_url}{path}"


def _log_entry(answer: Answer) -> LogEntry:
    (entry,) = answer.read_as(_ENTRIES, REKOR_HINT).values()
    proof = entry.verification.proof
    return LogEntry(
        body=entry.body,
        log_id=bytes.fromhex(entry.log_id),
        log_index=entry.log_index,
        integrated_seconds=entry.integrated_time,
        signed_entry_timestamp=entry.verification.promise,
        proof_index=proof.log_index,
        tree_size=proof.tree_size,
        root_hash=bytes.fromhex(proof.root_hash),
        hashes=tuple(bytes.fromhex(each) for each in proof.hashes),
        checkpoint=proof.checkpoint,
    )
