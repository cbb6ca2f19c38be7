"""The job's container: `container/start.py` installs a lock that a change brings, then gates it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from abilities import gate_python
from aftermath import faults
from arena import ELSEWHERE, INDEX_LOGIN, ROOT, Arena
from attempt import Attempt
from wheel_index import WheelIndex, sdist, sha256_of, wheel

from gate.action.wheel_installer import INSTALLERS
from gate.isolation.accounts import acquire_uid, release_uid
from gate.isolation.modes import IsolationMode

LOCK = "requirements.lock"
TEMPORARY = Path("/tmp")  # noqa: S108 - looked into
# what the gate's own interpreter would be; the packages of this test run serve it
PYTHON = """#!{python} -I
import runpy, sys
sys.path[:0] = {folders!r}
words = sys.argv[1:]
start = words.index("-m") + 1
sys.argv = words[start:]
runpy.run_module(words[start], run_name="__main__", alter_sys=True)
"""
START = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
spec = spec_from_file_location("container_start", sys.argv[1])
module = module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
module.PLACE = Path(sys.argv[2])
module.main()
"""
# Runs where a package is built, and wherever one that is installed is imported. A training may run
# it; anybody else leaves a mark, and takes what is there to be taken.
RUNS = """
import os, pathlib, subprocess, sys, urllib.request
uid = os.getuid()
if not 61001 <= uid < 61184:
    word = repr({{name: text for name, text in os.environ.items() if "CANARY" in text}})
    for place in ({place!r}, {place!r} + "/repro-gate-training/python", {opened!r}, "/tmp"):
        try: pathlib.Path(place, f"ran-{mark}-{{uid}}").write_text(word)
        except OSError: pass
    try: urllib.request.urlopen("http://127.0.0.1:{port}/ran", timeout=5).close()
    except OSError: pass
    if not os.fork():
        os.setsid()
        os.execv("/bin/sh", ["sh", "-c", "exec >/dev/null 2>&1; sleep 200; : {mark}"])
"""


@dataclass
class InstallArena(Arena):
    """`place` is where the environments go; the index has a wheel, a source archive, or both."""

    place: Path = Path("/nonexistent")
    index: WheelIndex = field(default_factory=lambda: WheelIndex({}))

    def offer(self, attempt: Attempt) -> None:
        """Fill the index and a folder beside it, and write the lock into the commit."""
        code = RUNS.format(
            place=str(self.place),
            opened=str(self.elsewhere),
            mark=self.root.name,
            port=self.index.port,
        )
        source = sdist("evil", "1.0", code + "\nfrom setuptools import setup\nsetup()\n")
        files = {"evil-1.0.tar.gz": source}
        members = {
            path.format(place=self.place): text.format(code=code, root=self.root)
            for path, text in attempt.wheel.items()
        }
        links = {name: target.format(root=self.root) for name, target in attempt.links.items()}
        built = wheel("evil", "1.0", members, links)
        if members or links:
            files["evil-1.0-py3-none-any.whl"] = built
        self.index.files = files
        offered = self.elsewhere / "offered"
        (offered / "evil").mkdir(parents=True)
        (offered / "evil" / "setup.py").write_text(code)
        (offered / "more.txt").write_text(
            f"{offered}/evil-1.0.tar.gz --hash=sha256:{sha256_of(source)}\n"
        )
        for name, data in files.items():
            (offered / name).write_bytes(data)
        self.lock = attempt.lock.format(
            sdist=f"--hash=sha256:{sha256_of(source)}",
            wheel=f"--hash=sha256:{sha256_of(built)}",
            folder=offered,
            index=self.index.url(INDEX_LOGIN),
        )

    def _command(self, limits: Mapping[str, int]) -> list[str]:
        del limits
        python = self.place / "repro-gate/bin/python"
        python.parent.mkdir(parents=True)
        folders = [str(ROOT), sysconfig.get_paths()["purelib"]]
        python.write_text(PYTHON.format(python=gate_python(), folders=folders))
        python.chmod(0o755)
        (self.place / "repro-gate/ready").touch()
        script = ROOT / "container/start.py"
        return [str(gate_python()), "-I", "-c", START, str(script), str(self.place)]

    def _variables(self, api_url: str) -> dict[str, str]:
        return {
            **super()._variables(api_url),
            "INPUT_REQUIREMENTS": LOCK,
            "PIP_INDEX_URL": self.index.url(INDEX_LOGIN),
        }


@contextmanager
def _offering(attempt: Attempt) -> Iterator[InstallArena]:
    """A place before an attempt, with an index that has its packages."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryDirectory(dir=ELSEWHERE) as elsewhere,
        tempfile.TemporaryDirectory(dir=ELSEWHERE, ignore_cleanup_errors=True) as place,
        WheelIndex({}, INDEX_LOGIN) as index,
    ):
        root = Path(folder)
        for path, mode in ((root, 0o755), (Path(elsewhere), 0o1777), (Path(place), 0o755)):
            path.chmod(mode)
        made = InstallArena(
            root=root,
            mode=IsolationMode.UID,
            elsewhere=Path(elsewhere),
            place=Path(place),
            index=index,
        )
        made.offer(attempt)
        yield made


def runs_with_pip_alone(attempt: Attempt) -> bool:
    """Whether the lock runs code where pip itself is given it, with the options against that."""
    with _offering(attempt) as place:
        lock = place.root / LOCK
        lock.write_text(place.lock)
        words = (
            "download",
            "--only-binary",
            ":all:",
            "--require-hashes",
            "--dest",
            str(place.root),
        )
        subprocess.run(
            (str(gate_python()), "-I", "-m", "pip", *words, "--requirement", str(lock)),
            env={"PATH": os.defpath, "PIP_INDEX_URL": place.index.url(INDEX_LOGIN)},
            capture_output=True,
            check=False,
        )
        told = list(_ran(place))
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if place.root.name.encode() in (folder / "cmdline").read_bytes():
                    os.kill(int(folder.name), signal.SIGKILL)
        return any("ran as account 0" in fault for fault in told)


def try_install(attempt: Attempt) -> list[str]:
    """All that is wrong after the attempt."""
    with _offering(attempt) as place:
        place.prepare(attempt)
        place.go({})
        return [*faults(place, attempt, attempt.tells), *_ran(place)]


def _ran(place: InstallArena) -> Iterator[str]:
    """Marks of code that ran for another than a training, and what it left."""
    mark = place.root.name
    marks = [path for top in (place.place, place.elsewhere) for path in top.rglob(f"ran-{mark}-*")]
    for path in (*marks, *TEMPORARY.glob(f"ran-{mark}-*")):
        yield f"code of the package ran as account {path.name.rpartition('-')[2]}"
    if any("/ran" in path for path in place.index.asked):
        yield "code of the package reached the network"
    with ExitStack() as ends:
        uids = set(_installers(ends))
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                status = (folder / "status").read_text()
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            owner = re.search(r"^Uid:\s(\d+)", status, re.MULTILINE)
            if (owner and int(owner[1]) in uids) or mark.encode() in words:
                yield f"process {folder.name} of the installation lives on: {words[:80]!a}"


def _installers(ends: ExitStack) -> Iterator[int]:
    """The accounts that no call has now, held: nobody starts anything under them meanwhile."""
    for uid in INSTALLERS:
        if acquire_uid(uid):
            ends.callback(release_uid, uid)
            yield uid
