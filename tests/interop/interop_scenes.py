"""Sealed packages on disk: for each kind of key a good one, and one for each fault."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from attestation_cases import COMMIT, CREATED_AT, FILES, members_of, pack_to, sealed_in, verdict_of

from gate.package.archive import read_archive
from gate.package.keys import PrivateKey, generate_private_key, public_pem, trusted_key
from gate.package.seal_files import write_seals
from gate.package.seal_records import KeyAlgorithm, PackageMember, TrustedKeys
from gate.package.trust_file import write_trusted_keys

KEYS: dict[KeyAlgorithm | None, str] = {
    KeyAlgorithm.ECDSA_P256: "P-256",
    KeyAlgorithm.ED25519: "Ed25519",
    None: "certificate",
}
SAVED = {"model/weights.bin": bytes(range(200)), "model/tokens/vocabulary.txt": b"a\nb\n"}


class Fault(StrEnum):
    """What is wrong with a scene; the first is the good one."""

    NONE = "good"
    PAYLOAD = "flipped payload"
    SIGNATURE = "flipped signature"
    KEY = "wrong key"
    BLOB = "other blob"
    MODEL = "other model"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """A folder with `package.tar`, its seals, a trust file, and the public key by itself.

    Without an `algorithm` the seals have certificates.
    """

    folder: Path
    algorithm: KeyAlgorithm | None
    fault: Fault

    @property
    def key(self) -> Path:
        """The public key to verify with, as PEM."""
        return self.folder / "key.pem"

    @property
    def package(self) -> Path:
        """The package."""
        return self.folder / "package.tar"

    @property
    def model(self) -> Path:
        """The folder that the model's signature covers, unpacked."""
        return self.folder / "unpacked" / "model"

    @property
    def commit(self) -> str:
        """The commit that the package is about."""
        return COMMIT


def scenes(folder: Path, algorithm: KeyAlgorithm) -> dict[Fault, Scene]:
    """One scene for each fault, all about the same package and the same key."""
    key = generate_private_key(algorithm)
    return {fault: _scene(folder / fault.value, algorithm, key, fault) for fault in Fault}


def _scene(folder: Path, algorithm: KeyAlgorithm, key: PrivateKey, fault: Fault) -> Scene:
    folder.mkdir(parents=True)
    scene = Scene(folder=folder, algorithm=algorithm, fault=fault)
    sealed = sealed_in(folder, key=key, more=SAVED)
    write_seals(sealed.seals, sealed.path, FILES)
    unpack(scene, SAVED)
    trusted = generate_private_key(algorithm) if fault is Fault.KEY else key
    scene.key.write_bytes(public_pem(trusted.public_key()))
    entry = trusted_key(trusted.public_key(), added_at=CREATED_AT)
    (folder / "trusted-keys.json").write_bytes(write_trusted_keys(TrustedKeys(keys=(entry,))))
    finish(scene)
    return scene


def finish(scene: Scene) -> None:
    """Put the fault into a scene that is good so far, a wrong key apart."""
    fault = scene.fault
    if fault in {Fault.PAYLOAD, Fault.SIGNATURE}:
        for path in (*scene.folder.glob("package.*.json"), *scene.folder.glob("*.sig")):
            _flip(path, "payload" if fault is Fault.PAYLOAD else "sig")
    if fault is Fault.BLOB:
        _repack(scene, verdict_cause="another verdict", saved=SAVED)
    if fault is Fault.MODEL:
        other = {**SAVED, "model/weights.bin": bytes(reversed(range(200)))}
        _repack(scene, verdict_cause="equal", saved=other)
        unpack(scene, other)


def unpack(scene: Scene, saved: dict[str, bytes]) -> None:
    """Put the model's files where a reader would unpack them."""
    for name, content in saved.items():
        path = scene.folder / "unpacked" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _repack(scene: Scene, *, verdict_cause: str, saved: dict[str, bytes]) -> None:
    """A well-formed package under the same name, which is not the one that was sealed."""
    before = scene.package.read_bytes()
    members = [
        *members_of(verdict_of(cause=verdict_cause)),
        *(PackageMember(name=name, content=content) for name, content in saved.items()),
    ]
    pack_to(scene.package, *members)
    with scene.package.open("rb") as stream:
        read_archive(stream, size_bytes=scene.package.stat().st_size, keep=frozenset())
    assert scene.package.read_bytes() != before


def _flip(path: Path, field: str) -> None:
    """One bit of what is signed, or of the signature; the file stays well-formed."""
    document = json.loads(path.read_bytes())
    envelope = document.get("dsseEnvelope", document)
    place = envelope if field == "payload" else envelope["signatures"][0]
    data = bytearray(base64.b64decode(place[field]))
    # a digit of a digest, or the middle of the signature
    position = data.rindex(b'"sha256":"') + 12 if field == "payload" else len(data) // 2
    data[position] ^= 1
    place[field] = base64.b64encode(data).decode("ascii")
    path.write_text(json.dumps(document, separators=(",", ":")))
