"""The services for a seal without a key: the runner's tokens, Fulcio's certificates, Rekor's log.

Sources: GitHub Actions, "OpenID Connect reference"; Fulcio's API version 2 (`signingCert`); Rekor's
API version 1 (`log/entries`) with entries of kind dsse 0.0.1.

Proxies and certificates come from the usual environment variables, as requests reads them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Self, TypeVar
from urllib.parse import urlsplit

import requests
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from pydantic import Base64Bytes, BaseModel, Field, TypeAdapter, ValidationError
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from gate.errors import KeyServiceDownError, SealServiceError
from gate.package.signing import Identity, IdentityRequest, IdentitySigned, LogEntry
from gate.package.sigstore_verifier import check_trusted_root, verify_identity
from gate.settings.delivery_sections import SigningSettings
from gate.system.github.api import message_of
from gate.system.http import GITHUB_POLICY, BodyLimits, RetryPolicy, bounded_pieces

TRIES: Final = 3
# an entry with its statement, or a chain of certificates, has a few kB
MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 64 * 1024
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost"})
AGAIN: Final = "Re-run the job; the gate judges its evidence again."
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceAnswer:
    """An answer that arrived completely; `source` is what messages call the service."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    source: str

    def read_as(self, kind: TypeAdapter[_T], hint: str) -> _T:
        """Parse the content as the promised form; raises `SealServiceError` for any other form."""
        try:
            return kind.validate_json(self.content)
        except ValidationError as error:
            raise SealServiceError(
                f"the answer of {self.source} is not what was asked for", hint=hint
            ) from error


class _Bearer(requests.auth.AuthBase):
    """Adds the token to each request, if there is one; an explicit login also disables .netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class Service:
    """A connection to one service; a context manager that closes its connections.

    `secret` is sent as the bearer token and is never in a message; `headers` are sent too.
    `authority` is a file with the certificates to trust instead of the system's. Every failure is a
    `SealServiceError`.
    """

    def __init__(
        self,
        name: str,
        url: str,
        policy: RetryPolicy,
        *,
        secret: str = "",
        headers: Mapping[str, str] | None = None,
        authority: str = "",
    ) -> None:
        parts = urlsplit(url)
        # Without TLS everybody on the way could read the token.
        if parts.scheme != "https" and parts.hostname not in LOOPBACK:
            raise SealServiceError(
                f"the address of {name} does not begin with https://",
                hint="Check what the settings and the runner say.",
            )
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self._name = f"{name} at {self.origin}"
        self._policy = policy
        self._secret = secret
        self._session = requests.Session()
        # Only for plain http on this machine: a proxy elsewhere would get the token unencrypted.
        self._session.trust_env = parts.scheme == "https"
        self._session.auth = _Bearer(secret)
        self._session.headers.update({"Accept": "application/json", "User-Agent": "repro-gate"})
        self._session.headers.update(headers or {})
        # None lets requests look at the environment first, and then at its own list.
        self._authority = authority or None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def ask(self, method: str, url: str, body: object = None, *, hide: str = "") -> ServiceAnswer:
        """Send a request and return the answer; the caller judges every status below 500.

        `hide` is a secret in the body, kept out of messages. A request is sent up to `TRIES` times.
        Repeating is safe, because every request here may be carried out twice.
        """
        tries = 0
        while True:
            tries += 1
            try:
                answer = self._once(method, url, body)
            except (requests.RequestException, HTTPError) as error:
                fault = self._unreached(error)
            else:
                if answer.status not in _TRANSIENT:
                    return answer
                busy = self.refused(answer, AGAIN, hide=hide)
                fault = KeyServiceDownError(busy.message, hint=busy.hint, details=busy.details)
            if tries == TRIES:
                raise fault
            self._policy.sleep(self._policy.backoff(tries))

    def refused(self, answer: ServiceAnswer, hint: str, *, hide: str = "") -> SealServiceError:
        """Return the error for a refusal: the status, and what the service says about it."""
        # Without a secret there is nothing to hide, and no message contains a line end.
        words = message_of(answer.content, hide or self._secret or "\n")
        return SealServiceError(
            f"{self._name} answered {answer.status}",
            hint=hint,
            details=(words,) if words else (),
        )

    def _once(self, method: str, url: str, body: object) -> ServiceAnswer:
        with self._session.request(
            method,
            url,
            json=body,
            timeout=self._policy.timeout_seconds,
            verify=self._authority,
            # A redirect would send the token to an address that the settings do not name.
            allow_redirects=False,
            stream=True,
        ) as response:
            return ServiceAnswer(
                status=response.status_code,
                headers=response.headers,
                content=self._content(response.raw),
                source=self._name,
            )

    def _content(self, response: BaseHTTPResponse) -> bytes:
        """Read the body up to a size and within a total time, even if it arrives byte by byte."""
        limits = BodyLimits(
            piece_bytes=PIECE_BYTES,
            max_bytes=MAX_ANSWER_BYTES,
            seconds=self._policy.answer_seconds,
            monotonic=self._policy.monotonic,
            too_large=lambda: SealServiceError(
                f"the answer of {self._name} is larger than {MAX_ANSWER_BYTES // 1024**2} MiB",
                hint="Check the address in the settings, and the proxy in between.",
            ),
            too_slow=lambda: KeyServiceDownError(
                f"{self._name} did not answer within {self._policy.answer_seconds:g} s", hint=AGAIN
            ),
        )
        return b"".join(bounded_pieces(response, limits))

    def _unreached(self, error: Exception) -> SealServiceError:
        kind: type[SealServiceError] = KeyServiceDownError
        if isinstance(error, requests.Timeout):
            why = f"did not answer within {self._policy.timeout_seconds:g} s"
        elif isinstance(error, requests.exceptions.SSLError):
            # The service did answer, so waiting and trying again would not help.
            kind = SealServiceError
            why = "has a certificate that is not trusted here"
        elif isinstance(error, requests.ConnectionError):
            why = "cannot be reached"
        else:
            why = "closed the connection too early"
        return kind(
            f"{self._name} {why}",
            hint="Run the job again; if this persists, check the network and the address.",
        )


_TRANSIENT: Final = frozenset({requests.codes.too_many_requests, *range(500, 600)})


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
    """The certificate, with the promise of the certificate transparency log inside it (SCT)."""

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
    """The parts of Rekor's answer that a bundle needs."""

    body: Base64Bytes
    integrated_time: Count = Field(alias="integratedTime")
    log_id: Hex32 = Field(alias="logID")
    log_index: Count = Field(alias="logIndex")
    verification: _Verification


_TOKEN_ANSWER = TypeAdapter(_Token)
_CERTIFIED = TypeAdapter(_Certified)
_ENTRIES = TypeAdapter(Annotated[dict[str, _Entry], Field(min_length=1, max_length=1)])


class SigstoreServices:
    """The `SealServices` over HTTP, at the addresses in the settings."""

    def __init__(self, settings: SigningSettings, policy: RetryPolicy = GITHUB_POLICY) -> None:
        self._fulcio_url = settings.fulcio_url
        self._rekor_url = settings.rekor_url
        self._policy = policy

    def identity_token(self, request: IdentityRequest) -> str:
        """Ask the runner's service for an identity token with Sigstore as its only audience."""
        name = "the runner's service for identity tokens"
        with Service(name, request.url, self._policy, secret=request.token) as service:
            # The audience limits the token: other services refuse it, and Sigstore refuses theirs.
            mark = "&" if "?" in request.url else "?"
            answer = service.ask("GET", f"{request.url}{mark}audience={AUDIENCE}")
            if answer.status != OK:
                raise service.refused(answer, PERMISSION_HINT)
            token = answer.read_as(_TOKEN_ANSWER, PERMISSION_HINT).value
        if not _TOKEN.match(token):
            raise SealServiceError(f"{name} gave no token", hint=PERMISSION_HINT)
        return token

    def certificate(self, token: str, signing_request: bytes) -> bytes:
        """Ask Fulcio for a certificate; the request's signature proves possession of the key."""
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
            # Only the leaf is used. The chain above it comes from the trusted root, never from the
            # answer.
            leaf = x509.load_pem_x509_certificate(chain[0].encode())
        except ValueError as error:
            raise SealServiceError(
                "Fulcio's certificate cannot be read", hint=FULCIO_HINT
            ) from error
        return leaf.public_bytes(Encoding.DER)

    def entry(self, envelope: bytes, certificate: bytes) -> LogEntry:
        """Enter an envelope into Rekor's log and return the entry, also one that exists already."""
        pem = x509.load_der_x509_certificate(certificate).public_bytes(Encoding.PEM)
        content = {
            "envelope": envelope.decode("utf-8"),
            "verifiers": [base64.b64encode(pem).decode("ascii")],
        }
        body = {"apiVersion": "0.0.1", "kind": "dsse", "spec": {"proposedContent": content}}
        with Service("Rekor", self._rekor_url, self._policy) as service:
            answer = service.ask("POST", f"{self._rekor_url}/api/v1/log/entries", body)
            if answer.status == CONFLICT:
                # A repeated request after a lost answer: the first one had been carried out.
                answer = service.ask("GET", self._existing(service, answer))
            if answer.status not in {OK, CREATED}:
                raise service.refused(answer, REKOR_HINT)
        return _log_entry(answer)

    def check_root(self, trusted_root: bytes | None) -> None:
        """Read the root as `verified` will; raises `AttestationError` if it cannot be used."""
        check_trusted_root(trusted_root)

    def verified(
        self, bundle: bytes, identity: Identity, trusted_root: bytes | None
    ) -> IdentitySigned:
        """Verify a whole bundle offline."""
        return verify_identity(bundle, identity, trusted_root)

    def _existing(self, service: Service, answer: ServiceAnswer) -> str:
        location = answer.headers.get("Location", "")
        # Rekor names the entry in `Location`. Only its path is used, so the request stays at the
        # settings' address.
        path = location.removeprefix(service.origin)
        if not ENTRY_PATH.match(path):
            raise service.refused(answer, REKOR_HINT)
        return f"{self._rekor_url}{path}"


def _log_entry(answer: ServiceAnswer) -> LogEntry:
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
        hashes=tuple(bytes.fromhex(hash_) for hash_ in proof.hashes),
        checkpoint=proof.checkpoint,
    )
