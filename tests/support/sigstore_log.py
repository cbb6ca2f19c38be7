"""A transparency log like Rekor's: a real Merkle tree, signed promises and signed heads.

RFC 6962, 2.1, says how the tree is hashed; a head is a signed note (C2SP).
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from sigstore_authority import Key, new_key, public_der

ORIGIN = "rekor.test - 1"
SHARD_START = 1000
Json = dict[str, object]


class RefusedEntryError(Exception):
    """The log refuses an entry: with 400, or with 409 if `uuid` names the same entry."""

    def __init__(self, message: str, uuid: str = "") -> None:
        super().__init__(message)
        self.uuid = uuid


def canonical(value: object) -> bytes:
    """Return canonical JSON, as far as log entries need it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def b64(data: bytes) -> str:
    """Return standard base64."""
    return base64.b64encode(data).decode()


def _leaf(body: bytes) -> bytes:
    return hashlib.sha256(b"\0" + body).digest()


def _split(count: int) -> int:
    """Return the largest power of two below a count."""
    return 1 << (count - 1).bit_length() - 1


def tree_root(leaves: list[bytes]) -> bytes:
    """Return the tree's root hash over leaf hashes."""
    if len(leaves) == 1:
        return leaves[0]
    at = _split(len(leaves))
    return hashlib.sha256(b"\1" + tree_root(leaves[:at]) + tree_root(leaves[at:])).digest()


def tree_path(index: int, leaves: list[bytes]) -> list[bytes]:
    """Return the sibling hashes on the path from a leaf to the root."""
    if len(leaves) == 1:
        return []
    at = _split(len(leaves))
    if index < at:
        return [*tree_path(index, leaves[:at]), tree_root(leaves[at:])]
    return [*tree_path(index - at, leaves[at:]), tree_root(leaves[:at])]


@dataclass
class Log:
    """The log, with five entries of others; `promises_with` signs promises with another key."""

    key: Key = field(default_factory=new_key)
    promises_with: Key | None = None
    heads_with: Key | None = None
    bodies: list[bytes] = field(default_factory=lambda: [b"%d" % number for number in range(5)])
    answers: dict[str, Json] = field(default_factory=dict)

    @property
    def log_id(self) -> bytes:
        """The SHA-256 of the log's public key."""
        return hashlib.sha256(public_der(self.key)).digest()

    def submit(self, proposed: object) -> tuple[str, Json]:
        """Check a proposed entry as Rekor does and add it; return its UUID and the answer."""
        body = canonical(_entry(proposed))
        uuid = "0" * 16 + _leaf(body).hex()
        if body in self.bodies:
            message = "an equivalent entry already exists in the transparency log"
            raise RefusedEntryError(message, uuid)
        self.bodies.append(body)
        self.answers[uuid] = self._answer(body)
        return uuid, self.answers[uuid]

    def _answer(self, body: bytes) -> Json:
        leaves = [_leaf(each) for each in self.bodies]
        index = len(leaves) - 1
        promised = {
            "body": b64(body),
            "integratedTime": int(time.time()),
            "logID": self.log_id.hex(),
            "logIndex": SHARD_START + index,
        }
        signer = self.promises_with or self.key
        return {
            **promised,
            "verification": {
                "signedEntryTimestamp": b64(signer.sign(canonical(promised), ec.ECDSA(SHA256()))),
                "inclusionProof": {
                    "logIndex": index,
                    "treeSize": len(leaves),
                    "rootHash": tree_root(leaves).hex(),
                    "hashes": [each.hex() for each in tree_path(index, leaves)],
                    "checkpoint": self._checkpoint(leaves),
                },
            },
        }

    def _checkpoint(self, leaves: list[bytes]) -> str:
        note = f"{ORIGIN}\n{len(leaves)}\n{b64(tree_root(leaves))}\n"
        signature = (self.heads_with or self.key).sign(note.encode(), ec.ECDSA(SHA256()))
        return f"{note}\n\u2014 rekor.test {b64(self.log_id[:4] + signature)}\n"


def _entry(proposed: object) -> Json:
    """Return the entry that Rekor makes from an envelope and the certificate of its key."""
    try:
        assert isinstance(proposed, dict)
        assert set(proposed) == {"apiVersion", "kind", "spec"}
        assert (proposed["apiVersion"], proposed["kind"]) == ("0.0.1", "dsse")
        content = proposed["spec"]["proposedContent"]
        assert set(content) == {"envelope", "verifiers"}
        text, (verifier,) = content["envelope"], content["verifiers"]
        envelope = json.loads(text)
        (signature,) = envelope["signatures"]
        payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
        certificate = x509.load_pem_x509_certificate(base64.b64decode(verifier))
        key = certificate.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
        key.verify(base64.b64decode(signature["sig"]), signed, ec.ECDSA(SHA256()))
    except (AssertionError, KeyError, ValueError, TypeError, InvalidSignature) as error:
        message = f"the entry is not a signed envelope: {type(error).__name__}"
        raise RefusedEntryError(message) from error
    spec = {
        "envelopeHash": _digest(text.encode()),
        "payloadHash": _digest(payload),
        "signatures": [{"signature": signature["sig"], "verifier": verifier}],
    }
    return {"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}


def _digest(data: bytes) -> Json:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}
