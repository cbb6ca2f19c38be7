"""Whatever an installer runs, it reaches nothing: a hostile program in the place of Python and pip.

In the real one no code of a package runs. `tests/hostile/attempts_installing.py` tries that.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from git_workshop import Repository
from wheel_index import WheelIndex, sha256_of, wheel

from gate.action.wheel_installer import (
    INSTALLERS,
    Surroundings,
    WheelInstaller,
    index_files,
    passwords,
)
from gate.errors import RunError
from gate.evidence.lock_files import PinnedPackage
from gate.isolation.accounts import acquire_uid, release_uid
from gate.isolation.modes import Credentials, WriteGuard
from gate.isolation.process_table import owned_by
from gate.isolation.processes import LocalProcesses
from gate.isolation.stop_signals import StopSignals
from gate.system.console import QuietProgress

PYTHON = Path("/usr/bin/python3")
GUARDS = (WriteGuard.MOUNT_NAMESPACE, WriteGuard.LANDLOCK, WriteGuard.NONE)
LOGIN = "ci:CANARY-of-the-index"
A = "a" * 64
# tells what it found below the environment, the one folder that stays
HOSTILE = """#!/usr/bin/python3 -I
import json, os, pathlib, subprocess, sys, urllib.request
words = sys.argv[1:]
step = next(word for word in ("venv", "download", "install") if word in words)
top = pathlib.Path({top!r})
def read(path):
    try: return "CANARY" in pathlib.Path(path).read_text()
    except OSError: return False
def listed(path):
    try: return bool(os.listdir(path))
    except OSError: return False
def wrote(path):
    try: pathlib.Path(path).write_text("x")
    except OSError: return False
    return True
def reached():
    try: urllib.request.urlopen("http://127.0.0.1:{port}/ran", timeout=5)
    except OSError as error: return hasattr(error, "code")
    return True
secrets = [name for name in ("workspace/.git/config", "temp/token", "home/.netrc",
           "events/event.json", "home/.config/pip/pip.conf", "temp/pip.conf") if read(top / name)]
seen = {{
    "environment": dict(os.environ),
    "ids": [os.getuid(), os.getgid(), *os.getgroups()],
    "secrets": secrets,
    "listed": [name for name in ("workspace", "temp", "home", "events") if listed(top / name)],
    "wrote": [str(path) for path in (top / "place/x", top / "place/repro/pinned.txt",
              top / "gate/x") if wrote(path)],
    "network": reached(),
    "copied": sorted(str(path.relative_to(pathlib.Path.cwd() / "home"))
                     for path in (pathlib.Path.cwd() / "home").rglob("*")
                     if path.is_file() and read(path)),
}}
(top / "place/repro/python" / (step + ".json")).write_text(json.dumps(seen))
wrote(top / "open/x")
# a daemon, and a process of a session of its own
if not os.fork():
    os.setsid()
    if not os.fork(): os.execv("/bin/sleep", ["sleep", "300"])
    os._exit(0)
"""


class Scene:
    """A runner's folders, and an index that asks for a login."""

    def __init__(self, top: Path, index: WheelIndex) -> None:
        self.top, self.index = top, index
        for name in ("home", "temp", "events", "open", "place", "gate"):
            (top / name).mkdir()
        (top / "open").chmod(0o1777)
        project = Repository(top / "workspace")
        project.write("a", "b")
        project.commit()
        project.git("config", "http.extraheader", "CANARY-of-the-checkout")
        self.write("temp/token", "CANARY")
        self.write("temp/pip.conf", f"[global]\ntimeout = 20\n# {LOGIN}\n")
        self.write("events/event.json", '"CANARY"')
        user, _, word = LOGIN.partition(":")
        self.write("home/.netrc", f"machine 127.0.0.1 login {user} password {word}\n")
        self.write("home/.config/pip/pip.conf", f"[global]\nretries = 1\n# {LOGIN}\n")
        self.variables = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_EVENT_PATH": str(top / "events/event.json"),
            "GITHUB_WORKSPACE": str(top / "workspace"),
            "HOME": str(top / "home"),
            "RUNNER_TEMP": str(top / "temp"),
            "PIP_CONFIG_FILE": str(top / "temp/pip.conf"),
            "PIP_INDEX_URL": index.url(),
            "PIP_EXTRA_INDEX_URL": index.url(LOGIN),
            "INPUT_TOKEN": "CANARY",
            "PIP_NO_BINARY": ":all:",
        }

    def write(self, name: str, text: str) -> None:
        (self.top / name).parent.mkdir(exist_ok=True, parents=True)
        (self.top / name).write_text(text)

    def install(
        self, guard: WriteGuard, interpreter: Path, *packages: PinnedPackage
    ) -> dict[str, dict[str, Any]]:
        """What a hostile interpreter saw in each step."""
        around = Surroundings(
            variables=self.variables,
            workspace=self.top / "workspace",
            guarded=Credentials(uid=60900, gid=60900, guard=guard),
            interpreter=interpreter,
        )
        interrupts = StopSignals()
        installer = WheelInstaller(around, LocalProcesses(interrupts), interrupts, QuietProgress())
        installer.install(packages, self.top / "place/repro")
        told = (self.top / "place/repro/python").glob("*.json")
        return {path.stem: json.loads(path.read_text()) for path in told}


@pytest.fixture
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        WheelIndex({}, LOGIN) as index,
    ):
        Path(folder).chmod(0o755)
        yield Scene(Path(folder), index)


def pinned(name: str, data: bytes) -> PinnedPackage:
    return PinnedPackage(name=name, version="1.0", hashes=(f"sha256:{sha256_of(data)}",))


@pytest.mark.parametrize("guard", GUARDS)
def test_whatever_runs_reaches_no_secret_and_leaves_nothing(
    scene: Scene, guard: WriteGuard
) -> None:
    hostile = scene.top / "python"
    hostile.write_text(HOSTILE.format(top=str(scene.top), port=scene.index.port))
    hostile.chmod(0o755)
    before = {path: path.stat().st_mode for path in scene.top.iterdir()}
    try:
        seen = scene.install(guard, hostile, pinned("a", b""))
    except RunError as fault:
        pytest.skip(f"{guard.value} cannot be had here: {fault.message}")
    assert sorted(seen) == ["download", "install", "venv"]
    for step, found in seen.items():
        assert found["secrets"] == found["listed"] == [], step
        assert set(found["ids"]) <= {*INSTALLERS}, step
        assert found["wrote"] == [], step
        assert "INPUT_TOKEN" not in found["environment"], step
        assert "PIP_NO_BINARY" not in found["environment"], step
    for step in ("venv", "install"):
        assert "CANARY" not in json.dumps(seen[step]), step
        assert not seen[step]["network"], step
        assert not seen[step]["copied"], step
        assert set(seen[step]["environment"]) <= {
            *("PATH", "HOME", "TMPDIR", "LC_ALL", "LC_CTYPE", "PIP_CONFIG_FILE")
        }
    assert seen["download"]["network"]
    assert seen["download"]["copied"] == [".config/pip/pip.conf", ".netrc", "pip_config_file"]
    # permissions alone keep nobody from a folder that is open to all
    assert (scene.top / "open/x").exists() == (guard is WriteGuard.NONE)
    (account,) = {found["ids"][0] for found in seen.values()}
    # nobody else's, or another call's by now
    assert not acquire_uid(account) or not owned_by(account)
    release_uid(account)
    assert {path: path.stat().st_mode for path in before} == before
    assert not list((scene.top / "place").rglob("*CANARY*"))
    assert not (scene.top / "place/repro/work").exists()


@pytest.mark.parametrize("place", ["variable", ".netrc"])
def test_an_index_with_a_login_is_asked_with_it(scene: Scene, place: str) -> None:
    """The real pip; the variable holds a login, or the file in the home does."""
    data = wheel("auditlib", "1.0", {"auditlib/__init__.py": ""})
    scene.index.files = {"auditlib-1.0-py3-none-any.whl": data}
    kept = ".netrc" if place == "variable" else "PIP_EXTRA_INDEX_URL"
    if place == "variable":
        (scene.top / "home" / kept).unlink()
        scene.variables["PIP_INDEX_URL"] = scene.variables.pop("PIP_EXTRA_INDEX_URL")
    else:
        del scene.variables[kept]
    scene.install(WriteGuard.NONE, PYTHON, pinned("auditlib", data))
    assert "/files/auditlib-1.0-py3-none-any.whl" in scene.index.asked
    made = scene.top / "place/repro/python"
    assert list(made.glob("lib/python3.*/site-packages/auditlib/__init__.py"))
    for path in (scene.top / "place").rglob("*"):
        assert path.is_symlink() or not path.is_file() or b"CANARY" not in path.read_bytes()


def test_a_package_without_a_wheel_is_told_with_what_to_do(scene: Scene) -> None:
    with pytest.raises(RunError, match="the locked packages cannot be downloaded") as caught:
        scene.install(WriteGuard.NONE, PYTHON, pinned("auditlib", b""))
    assert "nothing is built from source" in caught.value.hint
    assert "auditlib" in "".join(caught.value.details)
    assert "CANARY" not in str(caught.value)


def test_a_lock_without_packages_makes_an_empty_environment(scene: Scene) -> None:
    scene.install(WriteGuard.NONE, PYTHON)
    assert (scene.top / "place/repro/python/bin/python3").exists()
    assert scene.index.asked == []


def test_a_home_in_the_workspace_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/.netrc").write_text("machine x")
    (tmp_path / "home/.netrc").symlink_to(tmp_path / "workspace/.netrc")
    for home in ("workspace", "home"):
        given = {"HOME": str(tmp_path / home)}
        assert index_files(given, tmp_path / "workspace") == {}


def test_passwords_of_addresses_are_known_in_both_spellings() -> None:
    given = {"PIP_INDEX_URL": "https://u:p%40ss@x/", "https_proxy": "http://tok@p:1", "A": "b:c@d"}
    assert set(passwords(given)) == {"p%40ss", "p@ss", "tok"}
