"""`keys list`, `add`, `retire`, `revoke`: what a person types, sees and commits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attestation_cases import gate_key, other_key
from command_line import Ended, Run
from each_row import each_row

from gate.package.keys import PrivateKey, generate_private_key, key_id, private_pem, public_pem

TRUST = Path(".repro-gate/trusted-keys.json")
ID = key_id(gate_key().public_key())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, the current one, with a public key in it."""
    monkeypatch.chdir(tmp_path)
    written(gate_key(), "public.pem")
    return tmp_path


def written(key: PrivateKey, name: str) -> Path:
    path = Path(name)
    path.write_bytes(public_pem(key.public_key()))
    return path


def told(ended: Ended) -> str:
    assert ended.code != 0
    return ended.err.splitlines()[0]


def test_a_key_is_added_listed_retired_and_revoked(run: Run) -> None:
    added = run("keys", "add", "public.pem", "--comment", "release team")
    assert (added.code, added.out) == (0, f"key {ID} added to {TRUST}\n")
    heading, row = run("keys", "list").out.splitlines()
    assert heading.split() == ["id", "algorithm", "state", "since", "(UTC)", "comment"]
    assert row.startswith(f"{ID[:16]}  P-256      active  20")
    assert row.endswith("  release team")
    assert f"key {ID} retired: a seal made after 20" in run("keys", "retire", ID[:6]).out
    assert "  retired  20" in run("keys", "list").out
    ended = run("keys", "revoke", ID, "--at", "2026-01-31T13:00:00+01:00", "--reason", "stolen")
    assert ended.out == f"key {ID} revoked: no seal of it verifies any more\n"
    assert "  revoked  2026-01-31 12:00  release team; stolen\n" in run("keys", "list").out
    (key,) = json.loads(run("keys", "list", "--json").out)["keys"]
    assert (key["key_id"], key["status"], key["reason"]) == (ID, "revoked", "stolen")
    assert key["revoked_at"] == "2026-01-31T12:00:00+00:00"


def test_a_retirement_is_two_lines_of_a_diff(run: Run) -> None:
    run("keys", "add", "public.pem")
    run("keys", "add", written(other_key(), "other.pem"))
    before = TRUST.read_text().splitlines()
    run("keys", "retire", ID)
    after = TRUST.read_text().splitlines()
    changed = [line.strip().partition(":")[0] for line in after if line not in before]
    assert changed == ['"retired_at"', '"status"']
    assert len(before) == len(after)
    assert [path.name for path in TRUST.parent.iterdir()] == [TRUST.name]


def test_no_call_goes_back(run: Run) -> None:
    run("keys", "add", "public.pem")
    assert told(run("keys", "add", "public.pem")) == (
        f"error: key {ID[:16]} is already listed, as active"
    )
    run("keys", "revoke", ID)
    revoked = TRUST.read_bytes()
    for words in (("add", "public.pem"), ("retire", ID), ("revoke", ID)):
        ended = run("keys", *words)
        assert (ended.code, "already" in told(ended)) == (2, True)
    assert TRUST.read_bytes() == revoked


def test_a_private_key_is_refused_with_the_command_for_its_public_half(run: Run) -> None:
    pem = private_pem(gate_key(), None, allow_plain=True)
    Path("private.pem").write_bytes(pem)
    ended = run("keys", "add", "private.pem")
    assert "holds a private key, which has no place in a trust file" in told(ended)
    assert "openssl pkey -in KEY -pubout" in ended.err
    assert pem.decode().splitlines()[1] not in ended.out + ended.err
    assert not TRUST.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("add", "public.pem", "--comment", "a\x1b[2J"), "--comment holds a control character"),
        (("add", "public.pem", "--comment", "a" * 201), "--comment has 201 characters"),
        (("revoke", "ab", "--reason", "a\nb"), "--reason holds a control character"),
        (("revoke", "ab", "--at", "yesterday"), "--at 'yesterday' is not a time"),
        (("revoke", "ab", "--at", "2026-01-31"), "--at '2026-01-31' has no offset"),
        (("revoke", "ab", "--at", "9999-01-01T00:00:00Z"), "is in the future"),
        (("revoke", "ab", "--at", "0001-01-01T00:00:00+14:00"), "is not a time"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_leaves_no_file(
    run: Run, words: tuple[str, ...], message: str
) -> None:
    ended = run("keys", *words)
    assert ended.code == 2
    assert message in told(ended)
    assert not TRUST.exists()


@each_row("words", [("list",), ("retire", "ab"), ("revoke", "ab")])
def test_without_a_trust_file_there_is_nothing_to_read(words: tuple[str, ...], run: Run) -> None:
    ended = run("keys", *words)
    assert ended.code == 3
    assert "there is no trust file .repro-gate/trusted-keys.json" in told(ended)
    assert not TRUST.exists()


def test_json_obeys_no_comment_either(run: Run) -> None:
    run("keys", "add", "public.pem", "--comment", "here")
    TRUST.write_text(TRUST.read_text().replace("here", "\u009b31m\u202e"))
    shown = run("keys", "list", "--json").out
    assert shown.isascii()
    assert json.loads(shown)["keys"][0]["comment"] == "\u009b31m\u202e"


def test_writers_at_one_time_lose_nothing() -> None:
    keys = [generate_private_key() for _ in range(3)]
    words = (sys.executable, "-m", "gate", "keys", "add")
    calls = [
        subprocess.Popen((*words, written(key, f"{number}.pem")), env={**os.environ})
        for number, key in enumerate(keys)
    ]
    assert [call.wait() for call in calls] == [0, 0, 0]
    found = [key["key_id"] for key in json.loads(TRUST.read_text())["keys"]]
    assert found == sorted(key_id(key.public_key()) for key in keys)


def test_an_ed25519_key_is_generated_on_request_added_and_listed(run: Run) -> None:
    made = run("keys", "generate", "--out", "keys", "--algorithm", "ed25519", "--allow-plain")
    assert made.code == 0, made.err
    assert run("keys", "add", "keys/gate-public-key.pem").code == 0
    (key,) = json.loads(run("keys", "list", "--json").out)["keys"]
    assert (key["key_details"], key["key_id"] in made.out) == ("PKIX_ED25519", True)
    assert "  Ed25519    active  20" in run("keys", "list").out
    ended = run("keys", "generate", "--out", "more", "--algorithm", "rsa")
    assert (ended.code, "'rsa'" in ended.err) == (2, True)


def test_a_key_without_a_pass_phrase_is_refused_with_both_ways_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REPRO_GATE_PASSPHRASE", raising=False)
    ended = run("keys", "generate", "--out", tmp_path / "keys")
    told = "hint: Set REPRO_GATE_PASSPHRASE to the pass phrase, or ask for a plain key with --allow"
    assert (ended.code, told in ended.err) == (2, True)
    assert not (tmp_path / "keys").exists()


def test_a_pass_phrase_that_is_too_short_is_wrong_usage(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPRO_GATE_PASSPHRASE", "short")
    ended = run("keys", "generate", "--out", tmp_path / "keys")
    assert told(ended) == "error: the pass phrase is shorter than 16 bytes"
    assert ended.code == 2
    assert not (tmp_path / "keys").exists()


def test_a_signer_without_a_usable_key_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    program = tmp_path / "signer"
    program.write_text("#!/bin/sh\necho no key\n")
    program.chmod(0o755)
    ended = run("keys", "add", f"exec:{program}")
    assert (ended.code, TRUST.exists()) == (2, False), ended.err
