"""A fake of the services behind a keyless seal: the runner's token endpoint, Fulcio and Rekor.

A real HTTP server on this machine. Each service checks its requests, and refuses what the real one
refuses:

    with FakeSigstore() as sigstore:
        sigstore.fail_next("/api/v2/signingCert", Fault(status=503))
        SigstoreServices(sigstore.settings(), AT_ONCE)
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from sigstore_authority import YEAR, Authority, Key, new_key, public_der
from sigstore_log import Json, Log, RefusedEntryError, b64

from gate.package.signing import Identity, IdentityRequest
from gate.settings.delivery_sections import SigningSettings

ISSUER: Final = "https://token.actions.githubusercontent.com"
SERVER: Final = "https://github.com"
REPOSITORY: Final = "o/model"
WORKFLOW: Final = f"{REPOSITORY}/.github/workflows/gate.yml@refs/heads/main"
IDENTITY: Final = Identity(name=f"{SERVER}/{WORKFLOW}", issuer=ISSUER)
REQUEST_TOKEN: Final = "the-secret-that-asks-for-a-token"
TOKENS_PATH: Final = "/tokens"
CERTIFICATE_PATH: Final = "/api/v2/signingCert"
ENTRIES_PATH: Final = "/api/v1/log/entries"
P256: Final = "PKIX_ECDSA_P256_SHA_256"
Change = Callable[[Json], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A planned answer to one request, in place of the real one.

    With `first` the request is carried out before, as if only its answer were lost. The server
    waits `silent_seconds` before it answers.
    """

    status: int = 200
    body: bytes = b"{}"
    first: bool = False
    silent_seconds: float = 0.0


@dataclass
class _State:
    authority: Authority
    log: Log
    token_key: Key
    claims: Json
    changes: dict[str, Change] = field(default_factory=dict)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeSigstore:
    """All three services on one free port; tests may change `authority` and `log`."""

    def __init__(self) -> None:
        now = int(time.time())
        claims: Json = {
            "iss": ISSUER,
            "aud": "sigstore",
            "sub": f"repo:{REPOSITORY}:ref:refs/heads/main",
            "repository": REPOSITORY,
            "job_workflow_ref": WORKFLOW,
            "sha": "a" * 40,
            "iat": now,
            "exp": now + 300,
        }
        self._state = _State(Authority(), Log(), new_key(), claims)
        handler = type("Handler", (_Handler,), {"state": self._state})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The address of all three services."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def authority(self) -> Authority:
        """The certificate authority."""
        return self._state.authority

    @property
    def log(self) -> Log:
        """The transparency log."""
        return self._state.log

    @property
    def claims(self) -> Json:
        """The claims of the next identity token; tests may change them."""
        return self._state.claims

    @property
    def seen(self) -> list[str]:
        """The requests so far, as method and path."""
        return self._state.seen

    @property
    def tokens(self) -> list[str]:
        """The identity tokens that were issued so far."""
        return self._state.tokens

    def settings(self, **more: object) -> SigningSettings:
        """The signing settings with the addresses of these services."""
        return SigningSettings.model_validate(
            {"fulcio_url": self.url, "rekor_url": self.url, **more}
        )

    def variables(self) -> dict[str, str]:
        """The variables that the runner sets in a job with `id-token: write`."""
        return {
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}{TOKENS_PATH}?api-version=2.0",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": REQUEST_TOKEN,
            "GITHUB_SERVER_URL": SERVER,
        }

    def request(self) -> IdentityRequest:
        """The same facts as the gate's record."""
        url = self.variables()["ACTIONS_ID_TOKEN_REQUEST_URL"]
        return IdentityRequest(url=url, token=REQUEST_TOKEN, server_url=SERVER)

    def fail_next(self, path: str, *faults: Fault) -> None:
        """Answer the next requests for a path with these faults, one for each."""
        with self._state.lock:
            self._state.faults.setdefault(path, deque()).extend(faults)

    def change(self, path: str, change: Change) -> None:
        """Apply `change` to every regular answer for a path."""
        self._state.changes[path] = change

    def trusted_root(self) -> bytes:
        """The trusted-root document of these services."""
        start = _time(self.authority.now - YEAR)
        root = self.authority.root.public_bytes(Encoding.DER)
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [_instance("https://rekor.test", self.log.key, start)],
            "ctlogs": [_instance("https://ctlog.test", self.authority.log_key, start)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "sigstore.test", "commonName": "root"},
                    "uri": self.url,
                    "certChain": {"certificates": [{"rawBytes": b64(root)}]},
                    "validFor": {"start": start},
                }
            ],
            "timestampAuthorities": [],
        }
        return json.dumps(document).encode()


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _instance(url: str, key: Key, start: str) -> Json:
    return {
        "baseUrl": url,
        "hashAlgorithm": "SHA2_256",
        "publicKey": {
            "rawBytes": b64(public_der(key)),
            "keyDetails": P256,
            "validFor": {"start": start},
        },
        "logId": {"keyId": b64(hashlib.sha256(public_der(key)).digest())},
    }


class _RefusedError(Exception):
    """The request is refused with a status of 400 or above."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


class _Handler(BaseHTTPRequestHandler):
    state: _State
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Tokens, and entries that are there already."""
        self._handle(b"")

    def do_POST(self) -> None:
        """Certificates and new entries."""
        self._handle(self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""

    def _handle(self, body: bytes) -> None:
        parts = urlsplit(self.path)
        with self.state.lock:
            self.state.seen.append(f"{self.command} {parts.path}")
            waiting = self.state.faults.get(parts.path)
            fault = waiting.popleft() if waiting else None
        if fault is not None:
            if fault.first:
                self._truth(body)
            time.sleep(fault.silent_seconds)
            self._send(fault.status, fault.body)
            return
        status, answer, headers = self._truth(body)
        self._send(status, json.dumps(answer).encode(), headers)

    def _truth(self, body: bytes) -> tuple[int, object, dict[str, str]]:
        parts = urlsplit(self.path)
        try:
            if (self.command, parts.path) == ("GET", TOKENS_PATH):
                answer, status = self._token(parse_qs(parts.query)), 200
            elif (self.command, parts.path) == ("POST", CERTIFICATE_PATH):
                answer, status = self._certificate(json.loads(body)), 200
            elif (self.command, parts.path) == ("POST", ENTRIES_PATH):
                answer, status = self._entry(json.loads(body)), 201
            elif self.command == "GET" and parts.path.startswith(f"{ENTRIES_PATH}/"):
                uuid = parts.path.rpartition("/")[2]
                answer, status = {uuid: self.state.log.answers[uuid]}, 200
            else:
                raise _RefusedError(404, "no such path")  # noqa: TRY301 - one place for refusals
        except _RefusedError as refused:
            return (
                refused.status,
                {"code": refused.status, "message": str(refused)},
                refused.headers,
            )
        change = self.state.changes.get(parts.path)
        return status, change(answer) if change else answer, {}

    def _token(self, query: dict[str, list[str]]) -> Json:
        if self.headers.get("Authorization") != f"Bearer {REQUEST_TOKEN}":
            raise _RefusedError(401, "who are you?")
        if query != {"api-version": ["2.0"], "audience": ["sigstore"]}:
            raise _RefusedError(400, "the query is wrong")
        token = jwt.encode(self.state.claims, self.state.token_key, algorithm="ES256")
        self.state.tokens.append(token)
        return {"count": 1, "value": token}

    def _certificate(self, asked: Json) -> Json:
        if set(asked) != {"credentials", "certificateSigningRequest"}:
            raise _RefusedError(400, "the request has other fields")
        credentials, encoded = asked["credentials"], asked["certificateSigningRequest"]
        token = credentials["oidcIdentityToken"] if isinstance(credentials, dict) else ""
        try:
            claims = jwt.decode(
                token,
                self.state.token_key.public_key(),
                algorithms=["ES256"],
                audience="sigstore",
                issuer=ISSUER,
            )
            request = x509.load_pem_x509_csr(base64.b64decode(str(encoded)))
        except (jwt.InvalidTokenError, ValueError) as error:
            # the real Fulcio repeats the token in its error too, so the gate must not show it
            raise _RefusedError(400, f"There was an error processing {token}") from error
        key = request.public_key()
        if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise _RefusedError(400, "The signature supplied in the request could not be verified")
        facts = {
            "1": claims["iss"],
            "8": claims["iss"],
            "9": f"{SERVER}/{claims['job_workflow_ref']}",
            "12": f"{SERVER}/{claims['repository']}",
            "13": claims["sha"],
        }
        name = f"{SERVER}/{claims['job_workflow_ref']}"
        leaf = self.state.authority.certify(key, name, facts)
        chain = [leaf, self.state.authority.root]
        pem = [each.public_bytes(Encoding.PEM).decode() for each in chain]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": pem}}}

    def _entry(self, proposed: object) -> Json:
        with self.state.lock:
            try:
                uuid, answer = self.state.log.submit(proposed)
            except RefusedEntryError as refused:
                if not refused.uuid:
                    raise _RefusedError(400, str(refused)) from refused
                where = {"Location": f"{ENTRIES_PATH}/{refused.uuid}"}
                raise _RefusedError(409, str(refused), where) from refused
        return {uuid: answer}

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        # a client that has read enough disconnects
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
