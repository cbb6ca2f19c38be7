"""Keyless seals in the hands of Sigstore's JavaScript clients: `make bundle-check`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attestation_cases import CONTEXT, members_of, pack_to, verdict_of
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from fake_sigstore import IDENTITY, FakeSigstore
from github_client import AT_ONCE
from sigstore_authority import new_key
from sigstore_log import b64

from gate.package.keyless import seal_by_identity
from gate.package.seal import statement_facts
from gate.package.signing import Identity
from gate.package.sigstore_services import SigstoreServices
from gate.package.statement import write_statement

MODULES = os.environ.get("SIGSTORE_JS", "")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not MODULES, reason="`make bundle-check` gets Sigstore's JavaScript clients from npm"
)


@dataclass
class Bundle:
    """A bundle on disk beside the root that it rests on."""

    folder: Path

    def verified(self, identity: Identity = IDENTITY) -> tuple[int, str]:
        """Exit code, and what the clients say."""
        names = (self.folder / "b.json", self.folder / "root.json", identity.name, identity.issuer)
        words = ["node", str(ROOT / "scripts/verify_bundle.mjs"), str(ROOT / MODULES)]
        words += map(str, names)
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
        return ended.returncode, ended.stdout + ended.stderr

    def entry(self) -> Any:  # noqa: ANN401 - a document that is about to be damaged
        document = json.loads((self.folder / "b.json").read_text())
        return document, document["verificationMaterial"]["tlogEntries"][0]

    def write(self, document: object) -> None:
        (self.folder / "b.json").write_text(json.dumps(document))


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Bundle]:
    with FakeSigstore() as sigstore:
        package = pack_to(tmp_path / "package.tar", *members_of(verdict_of()))
        made = seal_by_identity(
            write_statement(statement_facts(verdict_of(), package, CONTEXT)),
            sigstore.request(),
            SigstoreServices(sigstore.settings(), AT_ONCE),
            sigstore.trusted_root(),
        )
        (tmp_path / "b.json").write_bytes(made.bundle)
        (tmp_path / "root.json").write_bytes(sigstore.trusted_root())
        yield Bundle(tmp_path)


def test_they_verify_it_and_name_the_same_identity(bundle: Bundle) -> None:
    code, told = bundle.verified()
    assert code == 0, told
    assert json.loads(told) == {"identity": IDENTITY.name, "issuer": IDENTITY.issuer}


def test_they_refuse_another_identity(bundle: Bundle) -> None:
    code, told = bundle.verified(Identity(name=f"{IDENTITY.name}x", issuer=IDENTITY.issuer))
    assert (code, "certificate identity error" in told) == (1, True)


def test_they_refuse_another_root(bundle: Bundle) -> None:
    with FakeSigstore() as other:
        (bundle.folder / "root.json").write_bytes(other.trusted_root())
    assert bundle.verified()[0] == 1


# size and root they take from the signed head, and so read neither beside it
@pytest.mark.parametrize("damage", ["hashes", "logIndex", "checkpoint"])
def test_they_refuse_a_damaged_proof(bundle: Bundle, damage: str) -> None:
    document, entry = bundle.entry()
    proof = entry["inclusionProof"]
    head = proof["checkpoint"]["envelope"].replace("\n6\n", "\n7\n")
    changed = {"hashes": ["A" * 43 + "="] * 2, "logIndex": "0", "checkpoint": {"envelope": head}}
    proof[damage] = changed[damage]
    bundle.write(document)
    code, told = bundle.verified()
    assert (code, "INCLUSION_PROOF_ERROR" in told) == (1, True), told


def test_they_refuse_a_damaged_statement(bundle: Bundle) -> None:
    document, _ = bundle.entry()
    envelope = document["dsseEnvelope"]
    envelope["payload"] = "e30=" + envelope["payload"][4:]
    bundle.write(document)
    assert bundle.verified()[0] == 1


def test_they_refuse_a_signature_of_another_key(bundle: Bundle) -> None:
    document, _ = bundle.entry()
    (signature,) = document["dsseEnvelope"]["signatures"]
    signature["sig"] = b64(new_key().sign(b"x", ec.ECDSA(SHA256())))
    bundle.write(document)
    assert bundle.verified()[0] == 1
