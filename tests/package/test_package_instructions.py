"""The text for people, tried out with the outside tools that it names."""

from __future__ import annotations

import io
import shutil
import subprocess
from itertools import takewhile
from pathlib import Path

import pytest
from attestation_cases import (
    COMMIT,
    FILES,
    Sealed,
    gate_key,
    locked_key,
    member,
    sealed_in,
    verdict_of,
)

from gate.package.instructions import package_readme
from gate.package.keys import generate_private_key, key_id, public_pem
from gate.package.packing import pack
from gate.package.seal_files import write_seals
from gate.package.seal_records import KeyAlgorithm
from gate.settings.event import SigningMethod

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl command here")
needs_tar = pytest.mark.skipif(not shutil.which("tar"), reason="no tar command here")
GNU_TAR = (
    "tar --format=ustar --mode=644 --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - "
    "a/b.txt c.bin SHA256SUMS"
)


def _shell(folder: Path, text: str) -> subprocess.CompletedProcess[bytes]:
    shell = shutil.which("sh") or "sh"
    return subprocess.run([shell, "-c", text], cwd=folder, capture_output=True, check=False)


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return sealed_in(tmp_path)


@needs_openssl
def test_openssl_reads_the_encrypted_key_and_agrees_on_its_id(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(locked_key())
    done = _shell(
        tmp_path,
        "openssl pkey -in key.pem -passin 'pass:correct horse battery' -pubout -outform DER"
        " | openssl dgst -sha256 -r",
    )
    assert done.stdout.split()[0].decode() == key_id(gate_key().public_key())


@needs_tar
def test_tar_lists_the_package(sealed: Sealed, tmp_path: Path) -> None:
    done = _shell(tmp_path, f"tar tf {sealed.path.name}")
    assert done.stdout.split() == [b"checkpoint/state.safetensors", b"verdict.json", b"SHA256SUMS"]
    assert done.stderr == b""


@needs_tar
def test_sums_hold_after_unpacking(sealed: Sealed, tmp_path: Path) -> None:
    done = _shell(tmp_path, f"tar xf {sealed.path.name} && sha256sum -c SHA256SUMS")
    assert done.stdout == b"checkpoint/state.safetensors: OK\nverdict.json: OK\n"


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
    assert "`package.provenance.dsse.json` (SLSA provenance)" in text
    assert "in `package.model.sig` (OpenSSF Model Signing)" in text
    assert "    repro-gate gate --commit `id`?\n" in text


@needs_openssl
@needs_tar
@pytest.mark.parametrize("algorithm", list(KeyAlgorithm))
def test_what_the_readme_says_works_with_either_key(
    tmp_path: Path, algorithm: KeyAlgorithm
) -> None:
    key = generate_private_key(algorithm)
    sealed = sealed_in(tmp_path, key=key)
    write_seals(sealed.seals, sealed.path, FILES)
    (tmp_path / "gate-public-key.pem").write_bytes(public_pem(key.public_key()))
    text = package_readme(verdict_of(), member_names=[], reproduce_command="x")
    _, _, commands = text.partition("a place that you trust:\n\n")
    done = _shell(tmp_path, "\n".join(_code_block(commands)))
    lines = done.stdout.decode().splitlines()
    assert lines[:8] == ["Verified OK"] * 2 + ["1"] * 6
    assert lines[8:] == ["checkpoint/state.safetensors: OK", "verdict.json: OK"]
    assert done.stderr == b""


def _code_block(text: str) -> list[str]:
    return [line.removeprefix("    ") for line in takewhile(str.strip, text.splitlines())]


def test_readme_of_a_keyless_seal_names_no_key() -> None:
    text = package_readme(
        verdict_of(), member_names=[], reproduce_command="x", sign=SigningMethod.SIGSTORE
    )
    assert "    repro-gate verify package.tar --certificate-oidc-issuer https://" in text
    assert "`package.provenance.sigstore.json`" in text
    assert "openssl" not in text
    assert "trusted-keys" not in text


def test_readme_is_the_same_for_the_same_verdict() -> None:
    names = ["b", "a"]
    first = package_readme(verdict_of(), member_names=names, reproduce_command="x")
    assert first == package_readme(verdict_of(), member_names=names[::-1], reproduce_command="x")
