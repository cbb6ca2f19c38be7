"""The text for people, tried out with the outside tools that it names."""

from __future__ import annotations

import io
import json
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
    verdict_of,
)

from gate.attestation.keys import key_id, private_pem, public_pem, trusted_key
from gate.attestation.packing.instructions import TrustFile, openssl_commands, package_readme
from gate.attestation.packing.package import pack
from gate.attestation.seal import write_seals
from gate.records.request import SigningMethod

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
needs_tar = pytest.mark.skipif(not shutil.which("tar"), reason="no tar command here")
NOW = "2026-01-31T12:00:00+00:00"
GNU_TAR = (
    "tar --format=ustar --mode=644 --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - "
    "a/b.txt c.bin SHA256SUMS"
)


def _shell(folder: Path, text: str) -> subprocess.CompletedProcess[bytes]:
    shell = shutil.which("sh") or "sh"
    return subprocess.run([shell, "-c", text], cwd=folder, capture_output=True, check=False)


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    sealed = sealed_in(tmp_path)
    write_seals((sealed.seals[0], sealed.seals[1]), sealed.path, FILES)
    (tmp_path / "gate-public-key.pem").write_bytes(public_pem(gate_key().public_key()))
    return sealed


@needs_openssl
def test_openssl_alone_verifies_the_seal(sealed: Sealed, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    done = _shell(tmp_path, openssl_commands(sealed.path.name, commit=COMMIT))
    assert done.stdout == b"Verified OK\n1\n1\n"
    assert done.stderr == b""
    assert sorted(tmp_path.iterdir()) == before


@needs_openssl
@pytest.mark.parametrize("layout", [None, 2])
def test_the_key_is_taken_out_of_a_trust_file_of_any_layout(
    sealed: Sealed, tmp_path: Path, layout: int | None
) -> None:
    (tmp_path / "gate-public-key.pem").unlink()
    keys = [trusted_key(key.public_key(), added_at=NOW) for key in (gate_key(), other_key())]
    for order in (keys, keys[::-1]):
        entries = [key.model_dump(mode="json") for key in order]
        (tmp_path / "trust.json").write_text(json.dumps({"keys": entries}, indent=layout))
        for key, answer in ((keys[0], b"Verified OK"), (keys[1], b"Verification failure")):
            trust = TrustFile(path="trust.json", key_id=key.key_id)
            done = _shell(tmp_path, openssl_commands(sealed.path.name, commit=COMMIT, trust=trust))
            assert done.stdout.splitlines()[0] == answer, done.stderr


@needs_openssl
def test_openssl_refuses_another_key(sealed: Sealed, tmp_path: Path) -> None:
    (tmp_path / "gate-public-key.pem").write_bytes(public_pem(other_key().public_key()))
    done = _shell(tmp_path, openssl_commands(sealed.path.name, commit=COMMIT))
    assert b"Verification failure\n" in done.stdout


@needs_openssl
def test_commands_notice_another_package_and_commit(sealed: Sealed, tmp_path: Path) -> None:
    pack_to(sealed.path, member("other"))
    done = _shell(tmp_path, openssl_commands(sealed.path.name, commit="f" * 40))
    assert done.stdout == b"Verified OK\n0\n0\n"


@needs_openssl
def test_openssl_reads_the_encrypted_key_and_agrees_on_its_id(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(private_pem(gate_key(), b"correct horse battery"))
    done = _shell(
        tmp_path,
        "openssl pkey -in key.pem -passin 'pass:correct horse battery' -pubout -outform DER"
        " | openssl dgst -sha256 -r",
    )
    assert done.stdout.split()[0].decode() == key_id(gate_key().public_key())


@needs_tar
def test_tar_lists_the_package(sealed: Sealed, tmp_path: Path) -> None:
    done = _shell(tmp_path, f"tar tf {sealed.path.name}")
    assert done.stdout.split() == [b"state/checkpoint.bin", b"verdict.json", b"SHA256SUMS"]
    assert done.stderr == b""


@needs_tar
def test_sums_hold_after_unpacking(sealed: Sealed, tmp_path: Path) -> None:
    done = _shell(tmp_path, f"tar xf {sealed.path.name} && sha256sum -c SHA256SUMS")
    assert done.stdout == b"state/checkpoint.bin: OK\nverdict.json: OK\n"


@needs_tar
def test_gnu_tar_writes_the_same_bytes(tmp_path: Path) -> None:
    if b"GNU tar" not in _shell(tmp_path, "tar --version").stdout:
        pytest.skip("this tar is not GNU tar")
    target = io.BytesIO()
    members = (member("a/b.txt", b"hello"), member("c.bin", bytes(3000)))
    pack(members, path=Path("package.tar"), target=target, files=FILES)
    (tmp_path / "package.tar").write_bytes(target.getvalue())
    done = _shell(tmp_path, f"tar xf package.tar && {GNU_TAR}")
    assert done.stdout == target.getvalue()


def test_hostile_name_stays_inside_its_quotes() -> None:
    text = openssl_commands("a'; touch x #.tar", commit="$(id)\nid")
    assert "grep -c '$(id)?id' \"$w/statement.json\"" in text
    assert """'a'"'"'; touch x #.tar'""" in text


def test_readme_tells_what_it_is_and_how_to_check_it() -> None:
    text = package_readme(
        verdict_of(),
        member_names=["verdict.json", "state/model.bin"],
        reproduce_command="repro-gate gate --commit `id`\n",
    )
    assert f"commit `{COMMIT}`, judged by repro-gate on 2026-01-31" in text
    assert "**reproduced**" in text
    assert "- `SHA256SUMS`: SHA-256 of every other file" in text
    assert "- `README.md`: this page\n" in text
    assert "- `state/model.bin`\n" in text
    assert (
        f"    repro-gate verify package.tar --trusted-keys trusted-keys.json --commit {COMMIT}"
        in (text)
    )
    assert "    openssl dgst -sha256 -verify gate-public-key.pem" in text
    assert "    repro-gate gate --commit `id`?\n" in text


def test_readme_of_a_keyless_seal_names_no_key() -> None:
    text = package_readme(
        verdict_of(), member_names=[], reproduce_command="x", sign=SigningMethod.SIGSTORE
    )
    assert "    repro-gate verify package.tar --certificate-oidc-issuer https://" in text
    assert "openssl" not in text
    assert "trusted-keys" not in text


def test_readme_is_the_same_for_the_same_verdict() -> None:
    names = ["b", "a"]
    first = package_readme(verdict_of(), member_names=names, reproduce_command="x")
    assert first == package_readme(verdict_of(), member_names=names[::-1], reproduce_command="x")
