"""The action under `uid`, for real: a training that tries, beside canaries of the runner."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from attestation_cases import PASSPHRASE, locked_key
from cryptography.hazmat.primitives.asymmetric import ec
from fake_vault import TOKEN, FakeVault
from own_isolation import isolated
from played_training import SCRIPT, Project
from runner_rules import commands

from gate.action.main import (
    Runner,
    github_comments,
    github_history,
    github_pull_request,
    github_status,
    run_action,
)
from gate.errors import ExitCode
from gate.isolation import accounts
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.pipelines.call_setup import build_adapters
from gate.system.clock import SystemClock
from gate.system.console import QuietProgress
from gate.system.files.files import LocalFiles

SYSTEM_PYTHON = "/usr/bin/python3"
CANARY = "CANARY-secret"
OWNER = 1001
FILES = LocalFiles()
# each line of output is one attempt and what came of it
TRIES = """
import os, pathlib, socket, tempfile
root = pathlib.Path(os.environ["HOME"]).parents[4]
shared = pathlib.Path(tempfile.gettempdir())
def attempt(name, function):
    try: print("tried", name, function())
    except OSError as error: print("tried", name, type(error).__name__)
for name in ("runner_temp/token", "file_commands/output", "workflow/event.json", "work/.git/config",
             "work/gha-creds-1.json", "work/out/evidence/strict-1.json",
             "work/out/work/head-snapshot/train.py"):
    attempt(name, lambda: (root / name).read_text()[:0] + "READ")
    attempt(name + " write", lambda: (root / name).write_text("forged"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", 9)))
attempt("environ", lambda: b"CANARY" in open(f"/proc/{os.getppid()}/environ", "rb").read())
left = pathlib.Path("/dev/shm", "left-by-" + root.name)
attempt("leftover of the run before", lambda: "found" if left.exists() else "none")
left.write_text("word for the next run")
print("::error::obeyed", flush=True)
"""


@dataclass
class Place:
    """A runner's folders as its container sees them, entered by every account."""

    root: Path
    project: Project
    said: list[str] = field(default_factory=list)
    more: dict[str, str] = field(default_factory=dict)
    head: str = ""

    def run(self) -> ExitCode:
        self.head = self.project.git("rev-parse", "HEAD")
        FILES.give_to(self.root, OWNER, OWNER)
        runner = Runner(
            variables=self.variables,
            files=FILES,
            adapters=self._adapters,
            comments=github_comments,
            status=github_status,
            history=github_history,
            find=github_pull_request,
            clock=SystemClock(),
            say=self.said.append,
        )
        return run_action(runner)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_NAME": "push",
            "GITHUB_EVENT_PATH": str(self.root / "workflow" / "event.json"),
            "GITHUB_OUTPUT": str(self.root / "file_commands" / "output"),
            "GITHUB_REPOSITORY": "o/model",
            "GITHUB_SHA": self.head,
            "GITHUB_WORKSPACE": str(self.project.path),
            "INPUT_OUT": "out",
            "INPUT_SIGNING_KEY": locked_key().decode(),
            "INPUT_SIGNING_KEY_PASSPHRASE": PASSPHRASE.decode(),
            "REPRO_GATE_PKCS11_PIN": CANARY,
            "VAULT_TOKEN": CANARY,
            "PATH": "/usr/bin:/bin",
            "RUNNER_TEMP": str(self.root / "runner_temp"),
            **self.more,
        }

    def _adapters(self, top: Path) -> Adapters:
        return isolated(build_adapters(FILES, top, QuietProgress(), StopSignals(), self.variables))

    def modes(self) -> dict[str, int]:
        """The permissions of all but what the gate writes."""
        paths = [path for path in self.root.rglob("*") if "out" not in path.parts]
        return {str(path): stat.S_IMODE(path.lstat().st_mode) for path in paths}


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"needs root, and {SYSTEM_PYTHON} for another account")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        project = Project(root / "work")
        project.write("train.py", TRIES + SCRIPT)
        project.write(
            "repro-gate.yml", "version: 1\ntrain: {command: python3 train.py, max_steps: 3}\n"
        )
        project.commit()
        project.git("config", "http.https://github.com/.extraheader", CANARY)
        project.write("gha-creds-1.json", CANARY)
        for name in ("runner_temp/token", "file_commands/output", "workflow/event.json"):
            (root / name).parent.mkdir()
            (root / name).write_text("" if "output" in name else json.dumps(CANARY))
        yield Place(root=root, project=project)


def test_a_training_that_tries_reaches_nothing(place: Place) -> None:
    before = place.modes()
    assert place.run() == ExitCode.FAIL, place.said
    out = place.project.path / "out"
    assert json.loads((out / "verdict.json").read_text())["outcome"] == "no-baseline"
    for label in ("strict-1", "default-1", "strict-2", "default-2"):
        text = (out / "evidence" / label / "output.txt").read_text()
        tried = [line.split(maxsplit=1)[1] for line in text.splitlines() if "tried" in line]
        assert tried.pop() == "leftover of the run before none"
        assert len(tried) == 16
        # of runs that may go beside each other none sees a process of another account
        others = {line for line in tried if not line.endswith(" PermissionError")}
        assert others <= {"environ FileNotFoundError"}
    assert place.modes() == before


def test_nothing_of_it_stays_and_all_belongs_to_the_owner(place: Place) -> None:
    place.run()
    assert not Path("/dev/shm", f"left-by-{place.root.name}").exists()  # noqa: S108 - as above
    assert accounts._held == {}
    out = place.project.path / "out"
    assert {path.lstat().st_uid for path in (out, *out.rglob("*"))} == {OWNER}
    assert not (out / "work").exists()
    assert commands("\n".join(line for line in place.said if CANARY in line)) == []
    written = [path.read_bytes() for path in out.rglob("*") if path.is_file()]
    secrets = (CANARY.encode(), PASSPHRASE, locked_key().splitlines()[1])
    shown = (*written, *map(str.encode, place.said))
    assert not any(secret in data for data in shown for secret in secrets)


def test_a_credential_of_the_checkout_is_warned_about(place: Place) -> None:
    place.run()
    (warning,) = [line for line in place.said if "credential-left" in line]
    assert warning.startswith("::warning title=repro-gate%3A credential-left::")
    assert "http.https" in warning
    assert "persist-credentials: false" in warning


def test_files_with_a_key_or_a_token_are_closed_though_everybody_may_read_them(
    place: Place,
) -> None:
    secrets = [place.root / "secrets" / name for name in ("key.pem", "vault-token")]
    secrets[0].parent.mkdir(mode=0o755)
    contents = (locked_key().decode(), TOKEN)
    for path, content in zip(secrets, contents, strict=True):
        path.write_text(content)
        path.chmod(0o644)
    tries = "import pathlib\n" + "".join(
        f"try: print('tried', len(pathlib.Path({str(path)!r}).read_text()))\n"
        "except OSError as error: print('tried', type(error).__name__)\n"
        for path in secrets
    )
    place.project.write("train.py", tries + SCRIPT)
    place.project.commit()
    key_length, token_length = (str(len(content)) for content in contents)
    with FakeVault() as vault:
        vault.add("gate", ec.generate_private_key(ec.SECP256R1()))
        ways = (
            ({"INPUT_SIGNER": str(secrets[0])}, ["PermissionError", token_length]),
            (
                {
                    "INPUT_SIGNER": "vault:transit/gate",
                    "VAULT_ADDR": vault.url,
                    "VAULT_TOKEN": "",
                    "VAULT_TOKEN_FILE": str(secrets[1]),
                },
                [key_length, "PermissionError"],
            ),
        )
        for more, expected in ways:
            place.more = {"INPUT_SIGNING_KEY": "", **more}
            assert place.run() == ExitCode.FAIL, place.said
            text = (place.project.path / "out/evidence/strict-1/output.txt").read_text()
            tried = [line.split()[1] for line in text.splitlines() if line.startswith("tried")]
            assert tried == expected
            assert {path.stat().st_mode & 0o777 for path in secrets} == {0o644}


def test_a_fault_leaves_nothing_of_roots_behind(place: Place) -> None:
    place.project.play(exit=1)
    before = place.modes()
    assert place.run() == ExitCode.ERROR
    out = place.project.path / "out"
    assert {path.lstat().st_uid for path in (out, *out.rglob("*"))} == {OWNER}
    assert place.modes() == before


def test_an_output_folder_that_the_commit_made_a_link_is_refused(place: Place) -> None:
    (place.project.path / "out").symlink_to(place.root / "runner_temp")
    assert place.run() == ExitCode.ERROR
    assert sorted(path.name for path in (place.root / "runner_temp").iterdir()) == ["token"]
    assert any("leads through" in line and "a link" in line for line in place.said)
