"""`--signing-key WHERE`: a pass sealed elsewhere, and what is refused before any training."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Ended, Run, record
from cryptography.hazmat.primitives.asymmetric import ec
from fake_vault import TOKEN, FakeVault
from played_training import SCRIPT, Project

from gate.package.keys import generate_private_key, private_pem
from gate.package.seal_records import KeyAlgorithm

PIN = "CANARY-of-the-token"
# it looks for what it must not have, and for a signer that was asked to sign too early
CURIOUS = """
import os, pathlib
print("environment", sorted(os.environ.items()))
asked = pathlib.Path({asked!r})
told = asked.read_text().split() if asked.exists() else []
assert "sign" not in told, "asked to sign before the training was over"
"""
PROGRAM = """#!{python} -I
import sys, pathlib
sys.path += {folders!r}
from gate.package.keys import KeyFile, load_private_key
pathlib.Path({asked!r}).open("a").write(sys.argv[1] + "\\n")
signer = KeyFile(load_private_key(pathlib.Path({pem!r}).read_bytes(), None, allow_plain=True))
message = sys.stdin.buffer.read()
answer = signer.public_key() if sys.argv[1] == "public-key" else signer.sign(message)
sys.stdout.buffer.write(answer)
"""


FAILS_TO_SIGN = "sys.exit(1) if sys.argv[1] == 'sign' else None\nanswer ="


@pytest.fixture
def signer(tmp_path: Path) -> str:
    """`exec:` with a program that holds an Ed25519 key, and notes that it was asked."""
    pem, program = tmp_path / "key.pem", tmp_path / "sign it"
    key = generate_private_key(KeyAlgorithm.ED25519)
    pem.write_bytes(private_pem(key, None, allow_plain=True))
    told = {"python": sys.executable, "folders": sys.path, "pem": str(pem)}
    program.write_text(PROGRAM.format(**told, asked=str(tmp_path / "asked")))
    program.chmod(0o755)
    return f"exec:{shlex.quote(str(program))}"


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeVault]:
    with FakeVault() as server:
        server.add("gate", ec.generate_private_key(ec.SECP256R1()))
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def passing(project: Project, run: Run) -> Project:
    """A project whose gate passes."""
    record(project, run)
    project.commit()
    return project


def verified(project: Project, run: Run, out: Path) -> Ended:
    commit = project.git("rev-parse", "HEAD")
    trust = project.path / ".repro-gate/trusted-keys.json"
    return run("verify", out / "package.tar", "--trusted-keys", trust, "--commit", commit)


def test_a_pass_is_sealed_by_a_program_and_its_key_is_trusted_by_asking_it(
    passing: Project, run: Run, signer: str, tmp_path: Path
) -> None:
    added = run("keys", "add", signer, "--comment", "of the team")
    assert (added.code, added.err) == (0, "")
    assert "  Ed25519    active  20" in run("keys", "list").out
    passing.commit()
    (tmp_path / "asked").unlink()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", signer, "-q")
    assert ended.code == 0, ended.err
    asked = (tmp_path / "asked").read_text().splitlines()
    # the first before anything is trained, by a process that ends
    assert (asked[:2], {*asked[2:]}) == (["public-key", "public-key"], {"sign"})
    assert verified(passing, run, tmp_path / "out").out.startswith("verified: reproduced")


def test_a_pass_is_sealed_by_a_key_in_a_vault(
    passing: Project, run: Run, vault: FakeVault, tmp_path: Path
) -> None:
    assert run("keys", "add", "vault:transit/gate#1").code == 0
    passing.commit()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", "vault:transit/gate", "-q")
    assert ended.code == 0, ended.err
    assert verified(passing, run, tmp_path / "out").code == 0
    assert vault.asked[-1][0] == "POST /v1/transit/sign/gate"
    told = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert TOKEN.encode() not in told + (ended.out + ended.err).encode()


@pytest.mark.usefixtures("vault")
def test_the_training_sees_no_secret_and_no_signer_signs_before_it_is_over(
    project: Project, run: Run, signer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_GATE_PKCS11_PIN", PIN)
    project.write("train.py", CURIOUS.format(asked=str(tmp_path / "asked")) + SCRIPT)
    project.commit()
    record(project, run)
    project.commit()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", signer, "-q")
    assert ended.code == 0, ended.err + ended.out
    said = [path.read_text() for path in (tmp_path / "out" / "evidence").rglob("output.txt")]
    assert len(said) == 4
    for text in said:
        assert "environment" in text
        assert not [each for each in (TOKEN, PIN, "a pass phrase of some length") if each in text]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("", "the signer is named by an empty text"),
        (".", "the signing key . is not a readable file"),
        # nobody writes into it: it is not waited for, and would be refused after the training
        ("pipe.pem", "the signing key pipe.pem is not a readable file"),
        ("missing.pem", "there is no signing key missing.pem"),
        ("awskms:///alias/gate", "awskms: is not a kind of signer"),
        ("exec:no-such-program", "exec:no-such-program: no such program"),
        ("exec:./sign", "exec: ./sign is a relative path"),
        ("vault:transit/gate", "vault: VAULT_ADDR is not set"),
        ("vault:gate", "vault:gate does not name a key"),
        ("pkcs11:object=a?module-path=/nowhere.so", "pkcs11: there is no library /nowhere.so"),
        ("pkcs11:object=a?module-path=/x&pin-value=CANARY", "would show the PIN"),
    ],
)
def test_a_key_that_cannot_sign_is_refused_before_anything_is_trained(
    project: Project, run: Run, tmp_path: Path, where: str, message: str
) -> None:
    project.commit()
    os.mkfifo(project.path / "pipe.pem")
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "manifest.json").write_text("never read")
    for words in (("gate",), ("judge", tmp_path / "evidence")):
        ended = run(*words, "--out", tmp_path / "out", "--signing-key", where)
        assert (ended.code, "CANARY" in ended.err) == (2, False)
        assert message in ended.err.splitlines()[0]
        assert "hint: " in ended.err
        assert not (tmp_path / "out").exists()


def test_a_file_without_a_pass_phrase_is_refused_before_anything_is_trained(
    project: Project, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit()
    (tmp_path / "key.pem").write_text("never read")
    monkeypatch.delenv("REPRO_GATE_PASSPHRASE")
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", tmp_path / "key.pem")
    assert (ended.code, ended.err.splitlines()) == (
        2,
        [
            "error: no pass phrase was given for the signing key",
            "hint: Set REPRO_GATE_PASSPHRASE, or accept a plain key with --allow-plain-key.",
        ],
    )


@pytest.mark.parametrize(
    ("label", "told"),
    [
        ("PUBLIC KEY", "is a public key, which signs nothing"),
        ("CERTIFICATE", "is a certificate, which signs nothing"),
        ("RSA PRIVATE KEY", "is neither an ECDSA key on P-256 nor an Ed25519 key"),
        ("PRIVATE KEY", "is not encrypted"),
        ("EC PRIVATE KEY", "is not encrypted"),
    ],
)
def test_a_file_that_its_first_line_gives_away_is_refused_before_anything_is_trained(
    project: Project, run: Run, tmp_path: Path, label: str, told: str
) -> None:
    project.commit()
    key = tmp_path / "key.pem"
    key.write_text(f"-----BEGIN {label}-----\nCANARY\n-----END {label}-----\n")
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", key)
    assert ended.code == 2
    assert ended.err.splitlines()[0] == f"error: the signing key {key} {told}"
    assert not (tmp_path / "out").exists()
    if label == "PRIVATE KEY":
        allowed = run("gate", "--out", tmp_path / "out", "--signing-key", key, "--allow-plain-key")
        assert "is not encrypted" not in allowed.err


def test_an_encrypted_key_without_its_pass_phrase_is_refused_before_anything_is_trained(
    project: Project, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.commit()
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    monkeypatch.delenv("REPRO_GATE_PASSPHRASE")
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", key, "--allow-plain-key")
    assert (ended.code, ended.err.splitlines()) == (
        2,
        [
            f"error: the signing key {key} is encrypted, and no pass phrase was given",
            "hint: Set REPRO_GATE_PASSPHRASE to its pass phrase.",
        ],
    )
    assert not (tmp_path / "out").exists()


def test_a_signer_that_fails_after_the_training_loses_no_verdict(
    passing: Project, run: Run, signer: str, tmp_path: Path
) -> None:
    program = tmp_path / "sign it"
    # in the middle of the training the service takes its key away
    program.write_text(program.read_text().replace("answer =", FAILS_TO_SIGN))
    passing.commit()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", signer)
    assert ended.code == 3
    assert "ended with exit code 1" in ended.err
    assert "the runs themselves were judged: reproduced" in ended.err
    assert (tmp_path / "out" / "verdict.json").exists()


def test_a_program_that_gives_no_key_is_refused_before_anything_is_trained(
    project: Project, run: Run, tmp_path: Path
) -> None:
    project.commit()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", "exec:/bin/false")
    assert ended.code == 2
    assert "error: exec:/bin/false ended with exit code 1" in ended.err
    assert "strict" not in ended.err
    assert not (tmp_path / "out" / "evidence").exists()


def test_a_vault_that_gives_no_key_is_refused_before_anything_is_trained(
    project: Project, run: Run, vault: FakeVault, tmp_path: Path
) -> None:
    project.commit()
    ended = run("gate", "--out", tmp_path / "out", "--signing-key", "vault:transit/other")
    assert ended.code == 2
    assert "Check mount and key, and VAULT_NAMESPACE." in ended.err
    assert "strict" not in ended.err
    assert [asked for asked, _ in vault.asked if not asked.startswith("GET")] == []


def test_a_vault_that_is_down_stops_no_training_and_fails_the_seal_of_a_pass_alone(
    passing: Project, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with FakeVault() as server:
        gone = server.variables
    for name, value in gone.items():
        monkeypatch.setenv(name, value)
    out = tmp_path / "out"
    ended = run("gate", "--out", out, "--signing-key", "vault:transit/gate")
    told = f"warning: Vault at {gone['VAULT_ADDR']} cannot be reached, so the signing key is not"
    assert told in ended.err
    assert (ended.code, "the runs themselves were judged: reproduced" in ended.err) == (3, True)
    assert not (out / "package.dsse.json").exists()
    # what does not pass needs no key, and keeps its diagnosis
    passing.play(losses=["2.5", "2.25", "9.0"])
    passing.commit()
    ended = run("gate", "--out", out, "--signing-key", "vault:transit/gate")
    assert told in ended.err
    assert (ended.code, json.loads((out / "verdict.json").read_text())["outcome"]) == (
        1,
        "code-drift",
    )


@pytest.mark.parametrize(("words", "status"), [(("retire",), "retired"), (("revoke",), "revoked")])
def test_a_key_elsewhere_that_no_longer_counts_is_refused_before_anything_is_trained(
    project: Project, run: Run, vault: FakeVault, words: tuple[str, ...], status: str
) -> None:
    assert run("keys", "add", "vault:transit/gate#1").code == 0
    (key,) = json.loads((project.path / ".repro-gate/trusted-keys.json").read_text())["keys"]
    more = () if status == "retired" else ("--reason", "lost")
    assert run("keys", *words, key["key_id"][:16], *more).code == 0
    project.commit()
    ended = run("gate", "--signing-key", "vault:transit/gate#1")
    assert ended.code == 2
    assert f" is {status} in .repro-gate/trusted-keys.json: no seal by it is valid" in ended.err
    assert "strict" not in ended.err
    assert "POST /v1/transit/sign/gate" not in [asked for asked, _ in vault.asked]


def test_the_keys_verbs_take_the_trust_file_of_the_settings(
    project: Project, run: Run, signer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.settings("signing: {trusted_keys: keys/team.json}\n")
    assert run("keys", "add", signer).out.endswith(" added to keys/team.json\n")
    folder = project.path / "below"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert "  Ed25519    active" in run("keys", "list").out
    ended = run("keys", "list", "--trusted-keys", "other.json")
    assert "there is no trust file other.json" in ended.err
