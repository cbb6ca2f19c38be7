"""The same wrong input ends every verb in the same way: exit code, hint, no traceback, no waiting.

2: the call itself is wrong, its settings and its signing key included. 3: an input cannot be read,
or is no such document, so nothing was checked. 1 is left for what was checked and refused.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import Run
from each_row import each_row

SECONDS = 120
COMMIT = "0" * 40
SETTINGS = "version: 1\ntrain:\n  command: python train.py\n  max_steps: 3\n"
KINDS = ("missing", "folder", "fifo", "empty", "broken", "link")
TRUST = ("--trusted-keys", "keys/trusted-keys.json")

# each verb with the input `@`, and the kinds that are no fault of it, or no fault of reading
INPUTS: Mapping[str, tuple[tuple[str, ...], Mapping[str, int]]] = {
    "verify": (("verify", "@", *TRUST, "--commit", COMMIT), {}),
    "verify keys": (("verify", "p.tar", "--trusted-keys", "@", "--commit", COMMIT), {}),
    "verify seal": (
        ("verify", "p.tar", "--seal", "@", *TRUST, "--commit", COMMIT),
        {"empty": 1, "broken": 1},
    ),
    "reproduce": (("reproduce", "@", "--unsealed", "--out", "again"), {}),
    # an empty folder has no commit and no lock file, which the audit tells
    "audit": (("audit", "@"), {"folder": 1}),
    "audit package": (("audit", "--package", "@"), {}),
    "audit keys": (
        ("audit", "--package", "p.tar", "--trusted-keys", "@", "--commit", COMMIT),
        {},
    ),
    "diff": (("diff", "@", "@"), {}),
    "digest": (("digest", "@"), {}),
    "keys list": (("keys", "list", "--trusted-keys", "@"), {}),
    "keys add": (("keys", "add", "@", "--trusted-keys", "new.json"), {}),
    "keys retire": (("keys", "retire", "ab", "--trusted-keys", "@"), {}),
    "keys revoke": (("keys", "revoke", "ab", "--reason", "x", "--trusted-keys", "@"), {}),
    "judge": (("judge", "@", "--out", "judged"), {}),
    "diagnose": (("diagnose", "@"), {}),
    "accept": (("baseline", "accept", "--from", "@", "--reason", "x"), {}),
    "refresh": (("baseline", "refresh", "--from", "@", "--reason", "x", "-y"), {}),
    "calibrate": (("baseline", "calibrate", "--from", "@"), {}),
    "append": (("history", "append", "@", "--history", "history"), {}),
    # an empty folder holds no line
    "show": (("history", "show", "--history", "@"), {"folder": 0}),
    "report": (("history", "report", "--history", "@"), {"folder": 0}),
    "prune": (("history", "prune", "--history", "@", "--dry-run"), {"folder": 0}),
    "compact": (("history", "compact", "--history", "@"), {"folder": 0}),
    "slo": (("slo", "--history", "@"), {}),
    "config-hash": (("config-hash", "@"), {}),
    "config-hash two": (("config-hash", "--diff", "@", "@"), {}),
    "compare": (("compare", "--print", "@"), {}),
    "rollback": (("rollback", "--packages", "@", *TRUST), {}),
    "rollback keys": (("rollback", "--packages", "packages", "--trusted-keys", "@"), {}),
    "study": (("gate", "--study", "@"), {}),
    "settings": (("gate", "-c", "@"), dict.fromkeys(KINDS, 2)),
    "settings of a baseline": (("baseline", "show", "-c", "@"), dict.fromkeys(KINDS, 2)),
    "settings of slo": (("slo", "--history", "folder", "-c", "@"), dict.fromkeys(KINDS, 2)),
    # it is a row of its list
    "doctor": (("doctor", "-c", "@"), {}),
    "signing key": (
        ("gate", "--signing-key", "@", "--allow-plain-key"),
        dict.fromkeys(KINDS, 2),
    ),
}


@pytest.fixture
def place(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with one of each kind of input, and sound ones beside them; the current folder."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "repro-gate.yml").write_text(SETTINGS)
    (folder / "train.py").write_text("")
    git = ("git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run((*git, "init", "-q"), check=True)
    subprocess.run((*git, "add", "."), check=True)
    subprocess.run((*git, "commit", "-qm", "a"), check=True)
    for name in ("folder", "packages"):
        (folder / name).mkdir()
    os.mkfifo(folder / "fifo")
    (folder / "empty").write_bytes(b"")
    (folder / "broken").write_bytes(b'{"broken":')
    (folder / "link").symlink_to("/nowhere")
    (folder / "p.tar").write_bytes(b"x")
    (folder / "p.dsse.json").write_bytes(b"{}")
    assert run("keys", "generate", "--out", "keys", "--allow-plain").code == 0
    return folder


@contextmanager
def _without_waiting() -> Iterator[None]:
    """What waits for a writer of the pipe is interrupted, and fails."""

    def fail(number: int, frame: object) -> None:
        del number, frame
        message = f"no end within {SECONDS} s"
        raise AssertionError(message)

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@each_row("verb", INPUTS)
def test_a_wrong_input_is_told_with_the_same_exit_code_by_every_verb(
    verb: str, place: Path, run: Run
) -> None:
    assert place.is_dir()
    words, others = INPUTS[verb]
    for kind in KINDS:
        with _without_waiting():
            ended = run(*(kind if word == "@" else word for word in words))
        said = f"{kind}: {ended.code} {ended.err}"
        assert ended.code == others.get(kind, 3), said
        assert "Traceback" not in ended.err, said
        assert "repro-gate itself failed" not in ended.err, said
        # these two print a list, in which each row has what to do
        if ended.code and verb not in {"audit", "doctor"}:
            assert ended.err.count("error: ") == 1, said
            assert "\nhint: " in ended.err, said


def test_a_file_that_is_no_package_is_called_so_and_needs_no_seal(place: Path, run: Run) -> None:
    assert place.is_dir()
    for kind in ("empty", "broken"):
        assert run("verify", kind, *TRUST, "--commit", COMMIT).err == (
            f"error: {kind} is not a package of repro-gate\n"
            "hint: Name the package.tar that a gate call wrote.\n"
        )


@each_row(("kind", "told"), [("folder", "is a folder, not a"), ("fifo", "is a FIFO, not a")])
def test_verify_says_what_a_path_is_and_looks_for_no_seal_beside_it(
    kind: str, told: str, place: Path, run: Run
) -> None:
    assert place.is_dir()
    ended = run("verify", kind, *TRUST, "--commit", COMMIT)
    assert f"error: {kind} {told} regular file" in ended.err
    assert "no seal" not in ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_this_account_may_not_read_is_no_verdict(place: Path, run: Run) -> None:
    (place / "closed").write_bytes(b"x")
    (place / "closed").chmod(0)
    for verb in ("verify", "audit package", "digest", "keys list", "diagnose", "reproduce"):
        words, _ = INPUTS[verb]
        ended = run(*("closed" if word == "@" else word for word in words))
        assert (ended.code, "hint: " in ended.err) == (3, True), ended.err
