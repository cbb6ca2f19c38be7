"""The commands for outside tools, typed as they are printed."""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from attestation_cases import (
    COMMIT,
    FILES,
    Sealed,
    gate_key,
    member,
    other_key,
    pack_to,
    sealed_in,
)

from gate.commands.verify import explain_by_key
from gate.errors import AttestationError
from gate.package.instructions import Artifact, TrustFile, openssl_lines, outside_sections
from gate.package.keys import PrivateKey, generate_private_key, trusted_key
from gate.package.seal_files import write_seals
from gate.package.seal_records import Expected, KeyAlgorithm, StatementKind, TrustedKeys
from gate.package.signing import Identity
from gate.text.json_text import canonical_json

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
NOW = "2026-01-31T12:00:00+00:00"
SIGNED = "Verified OK\n"
SEALS = (
    (StatementKind.VERDICT, "package.dsse.json"),
    (StatementKind.PROVENANCE, "package.provenance.dsse.json"),
    (StatementKind.MODEL, "package.model.sig"),
)


def _shell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh") or "sh"
    return subprocess.run(
        [shell, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )


def _trusted(*keys: PrivateKey) -> TrustedKeys:
    return TrustedKeys(keys=tuple(trusted_key(key.public_key(), added_at=NOW) for key in keys))


def _written(folder: Path, key: PrivateKey) -> Sealed:
    """A sealed package in a folder, with all its seals and a trust file of two keys."""
    sealed = sealed_in(folder, key=key)
    write_seals(sealed.seals, sealed.path, FILES)
    document = _trusted(key, other_key()).model_dump(mode="json")
    (folder / "trust.json").write_text(json.dumps(document))
    return sealed


def _explained(folder: Path, key: PrivateKey) -> str:
    known = ("trust.json", _trusted(key, other_key()))
    text = explain_by_key(folder / "package.tar", (), known, Expected(commit=COMMIT), FILES)
    return text.replace(f"{folder}/", "")


@pytest.mark.parametrize("algorithm", list(KeyAlgorithm))
def test_openssl_and_tar_alone_verify_every_seal(tmp_path: Path, algorithm: KeyAlgorithm) -> None:
    key = generate_private_key(algorithm)
    _written(tmp_path, key)
    before = sorted(tmp_path.iterdir())
    done = _shell(tmp_path, _explained(tmp_path, key).partition("\n# cosign")[0])
    signatures = 3 if algorithm is KeyAlgorithm.ECDSA_P256 else 2
    files = "checkpoint/state.safetensors: OK\nverdict.json: OK\n"
    assert done.stdout == SIGNED * signatures + "1\n" * 6 + files
    assert done.stderr == ""
    assert sorted(tmp_path.iterdir()) == before


def test_each_tool_has_its_part(tmp_path: Path) -> None:
    _written(tmp_path, gate_key())
    titles = [line for line in _explained(tmp_path, gate_key()).splitlines() if ": the " in line]
    assert [title.split(":")[0] for title in titles] == [
        "# openssl",
        "# tar and sha256sum",
        "# cosign",
        "# model-signing",
    ]
    assert max(map(len, titles)) <= 80


def test_an_ed25519_key_has_no_model_signature_and_it_is_said(tmp_path: Path) -> None:
    key = generate_private_key(KeyAlgorithm.ED25519)
    _written(tmp_path, key)
    text = _explained(tmp_path, key)
    assert "model_signing" not in text
    assert "# No model signature: OpenSSF Model Signing takes no Ed25519 key." in text


def test_a_seal_of_nobody_known_is_refused_before_anything_is_explained(tmp_path: Path) -> None:
    _written(tmp_path, gate_key())
    known = ("trust.json", _trusted(generate_private_key()))
    with pytest.raises(AttestationError, match="no trusted key made this signature"):
        explain_by_key(tmp_path / "package.tar", (), known, Expected(commit=COMMIT), FILES)


def test_another_commit_is_not_explained(tmp_path: Path) -> None:
    _written(tmp_path, gate_key())
    known = ("trust.json", _trusted(gate_key()))
    for commit in (COMMIT[:7], ""):
        with pytest.raises(AttestationError, match="this package is about commit"):
            explain_by_key(tmp_path / "package.tar", (), known, Expected(commit=commit), FILES)


def test_without_the_models_signature_nothing_is_explained(tmp_path: Path) -> None:
    _written(tmp_path, gate_key())
    (tmp_path / "package.model.sig").unlink()
    with pytest.raises(AttestationError, match="a model signature is missing"):
        _explained(tmp_path, gate_key())


@pytest.mark.parametrize("layout", [None, 2])
def test_the_key_is_taken_out_of_a_trust_file_of_any_layout(
    tmp_path: Path, layout: int | None
) -> None:
    _written(tmp_path, gate_key())
    keys = _trusted(gate_key(), other_key()).keys
    for order in (keys, keys[::-1]):
        entries = [key.model_dump(mode="json") for key in order]
        (tmp_path / "trust.json").write_text(json.dumps({"keys": entries}, indent=layout))
        for key, answer in ((keys[0], "Verified OK"), (keys[1], "Signature Verification Failure")):
            trust = TrustFile(path="trust.json", key_id=key.key_id)
            lines = openssl_lines(
                Artifact(package="package.tar", commit=COMMIT, seals=SEALS, trust=trust)
            )
            assert _shell(tmp_path, lines).stdout.splitlines()[0] == answer


def test_another_package_and_commit_are_noticed(tmp_path: Path) -> None:
    sealed = _written(tmp_path, gate_key())
    text = _explained(tmp_path, gate_key()).partition("\n# tar")[0]
    pack_to(sealed.path, member("other"))
    done = _shell(tmp_path, text.replace(COMMIT, "f" * 40))
    assert done.stdout == SIGNED * 3 + "1\n0\n0\n" * 2


def test_no_text_of_a_statement_passes_for_what_it_is_about(tmp_path: Path) -> None:
    """A branch may be called as a package's digest, and a training may set any variable."""
    package = tmp_path / "package.tar"
    package.write_bytes(b"forged")
    sha256 = hashlib.sha256(b"forged").hexdigest()
    lines = openssl_lines(Artifact(package="package.tar", commit=COMMIT, seals=SEALS))
    greps = [line for line in lines.splitlines() if line.startswith(("sha256=", "grep"))]
    wanted = [shlex.split(line)[2].replace("$sha256", sha256) for line in greps[1:]]
    texts = [sha256, COMMIT, *wanted, "".join(wanted)]
    statement = {"baseBranch": f"f/{sha256}", "after": texts, "baseCommit": COMMIT}
    for kind in ("verdict", "provenance"):
        (tmp_path / f"{kind}.json").write_bytes(canonical_json(statement))
    done = _shell(tmp_path, "\n".join(("w=.", *greps)))
    assert done.stdout == "0\n" * 6


@pytest.mark.parametrize("name", [name for _, name in SEALS])
def test_a_flipped_signature_is_noticed(tmp_path: Path, name: str) -> None:
    _written(tmp_path, gate_key())
    text = _explained(tmp_path, gate_key()).partition("\n# tar")[0]
    seal = tmp_path / name
    document = json.loads(seal.read_text())
    envelope = document.get("dsseEnvelope", document)
    sig = envelope["signatures"][0]["sig"]
    envelope["signatures"][0]["sig"] = sig[:20] + ("A" if sig[20] != "A" else "B") + sig[21:]
    seal.write_text(json.dumps(document, separators=(",", ":")))
    assert _shell(tmp_path, text).stdout.count(SIGNED) == 2


def test_hostile_names_stay_inside_their_quotes() -> None:
    text = openssl_lines(Artifact(package="a'; touch x #.tar", commit="$(id)\nid", seals=SEALS))
    assert """'{"digest":{"gitCommit":"$(id)?id"},"name":"commit"}' "$w/verdict.json\"""" in text
    assert """'a'"'"'; touch x #.tar'""" in text


def test_without_a_key_cosign_is_told_whom_to_trust() -> None:
    who = Identity(name="https://example.org/it's", issuer="https://issuer.example")
    seals = ((StatementKind.VERDICT, "package.sigstore.json"),)
    artifact = Artifact(package="p.tar", commit=COMMIT, seals=seals, identity=who)
    text = "".join(part.lines for part in outside_sections(artifact))
    assert "--certificate-identity 'https://example.org/it'\"'\"'s' \\\n" in text
    assert "--new-bundle-format --bundle package.sigstore.json p.tar\n" in text
    assert "key.pem" not in text
