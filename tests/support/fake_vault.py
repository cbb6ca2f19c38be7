"""A fake vault with a transit engine over real HTTP: tokens, namespaces, versions, wrong answers.

    with FakeVault() as vault:
        vault.add("gate", ec.generate_private_key(ec.SECP256R1()))
        vault.answer_next(status=503)

It follows the API of Vault and OpenBao: `keys/:name` and `sign/:name` by PUT or POST, with the
token as `X-Vault-Token` or as a bearer token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

TOKEN = "hvs.CANARY-of-the-vault"
Key = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
Json = dict[str, Any]


@dataclass(frozen=True)
class Planned:
    """A planned answer in place of the next regular one."""

    status: int
    body: bytes
    location: str


@dataclass
class _State:
    namespace: str
    keys: dict[str, list[Key]] = field(default_factory=dict)
    changes: Json = field(default_factory=dict)
    planned: deque[Planned] = field(default_factory=deque)
    asked: list[tuple[str, Json]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeVault:
    """A vault on a free port of this machine; its transit engine is mounted at `transit`."""

    def __init__(self, *, namespace: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._state = _State(namespace)
        handler = type("Handler", (_Handler,), {"state": self._state})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
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
        """The address, as in `VAULT_ADDR`."""
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of a client that may use the vault."""
        return {"VAULT_ADDR": self.url, "VAULT_TOKEN": TOKEN}

    @property
    def asked(self) -> list[tuple[str, Json]]:
        """The accepted requests, as pairs of method with path, and body."""
        return self._state.asked

    def add(self, name: str, *versions: Key) -> None:
        """Add a key with its versions, numbered from 1."""
        self._state.keys[name] = [*self._state.keys.get(name, []), *versions]

    def change(self, **data: object) -> None:
        """Replace these fields in the data of every answer."""
        self._state.changes = data

    def answer_next(self, *, status: int = 200, body: bytes = b"{}", location: str = "") -> None:
        """Send this in place of the next regular answer."""
        self._state.planned.append(Planned(status, body, location))


class _Handler(BaseHTTPRequestHandler):
    state: _State

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PUT(self) -> None:
        self.do_POST()

    def _answer(self, body: Json) -> None:
        with self.state.lock:
            planned = self.state.planned.popleft() if self.state.planned else None
            if planned is not None:
                self._send(planned.status, planned.body, planned.location)
                return
            status, answer = self._found(body)
        self._send(status, json.dumps(answer).encode())

    def _found(self, body: Json) -> tuple[int, Json]:
        token = self.headers.get("X-Vault-Token") or self.headers.get("Authorization") or ""
        namespace = self.headers.get("X-Vault-Namespace", "")
        if token.removeprefix("Bearer ") != TOKEN or namespace != self.state.namespace:
            return 403, {"errors": [f"permission denied for {token.removeprefix('Bearer ')}"]}
        self.state.asked.append((f"{self.command} {self.path}", body))
        parts = self.path.removeprefix("/v1/transit/").split("/")
        if len(parts) not in {2, 3} or parts[1] not in self.state.keys:
            return 404, {"errors": []}
        versions = self.state.keys[parts[1]]
        if parts[0] == "keys":
            return 200, {"data": {**_described(versions), **self.state.changes}}
        wanted = int(body.get("key_version") or len(versions))
        if wanted > len(versions):
            return 400, {"errors": ["requested version for signing is higher than the latest"]}
        signature = _signed(versions[wanted - 1], body)
        text = f"vault:v{wanted}:{signature}"
        return 200, {"data": {"signature": text, "key_version": wanted, **self.state.changes}}

    def _send(self, status: int, body: bytes, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing into the test's output."""


def _described(versions: list[Key]) -> Json:
    """Return a key as the vault describes it: PEM for ECDSA, bare base64 for Ed25519."""
    kind = "ed25519" if isinstance(versions[0], Ed25519PrivateKey) else "ecdsa-p256"
    publics = {str(number): {"public_key": _public(key)} for number, key in enumerate(versions, 1)}
    return {"type": kind, "latest_version": len(versions), "derived": False, "keys": publics}


def _public(key: Key) -> str:
    if isinstance(key, Ed25519PrivateKey):
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return base64.b64encode(raw).decode()
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def _signed(key: Key, body: Json) -> str:
    message = base64.b64decode(body["input"], validate=True)
    if isinstance(key, Ed25519PrivateKey):
        return base64.b64encode(key.sign(message)).decode()
    digest = message if body.get("prehashed") else hashlib.sha256(message).digest()
    der = key.sign(digest, ec.ECDSA(utils.Prehashed(SHA256())))
    if body.get("marshaling_algorithm", "asn1") == "asn1":
        return base64.b64encode(der).decode()
    r, s = utils.decode_dss_signature(der)
    raw = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
