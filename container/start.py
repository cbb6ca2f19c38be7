"""Put the gate beside the job's Python, and start it: what `container/action.yml` runs.

    python3 -I start.py

The gate goes into an environment of its own (`/opt/repro-gate`), hash-checked, as wheels, so that
nothing which the project installed decides what the gate imports. Where the input `requirements`
names a hash-locked file, the training gets an environment of its own as well
(`/opt/repro-gate-training`). That file may come with the change under test, and a wheel can write
anywhere that its installer can: so it is installed under an account that owns nothing else, from
an environment of variables that holds no token. Where a pull request changes that file, the base
commit's version is installed too (`/opt/repro-gate-training-base`), under another such account:
the base commit is then trained with its own packages.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

ACTION: Final = Path(__file__).resolve().parent.parent
PLACE: Final = Path("/opt")
PYTHONS: Final = ((3, 11), (3, 14))
# beside the accounts that the gate trains under, so that no training can change what it imports
INSTALLER: Final = 61000
# another one, so that no wheel of the change under test can write into the base commit's packages
BASE_INSTALLER: Final = 60999
MAX_REQUIREMENTS_BYTES: Final = 4 * 1024 * 1024
# what pip needs to reach the index; nothing else of the step's variables is handed on
FOR_PIP: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
INSTALL: Final = ("install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
LOCKED: Final = ("--only-binary", ":all:", "--require-hashes", "-r")
ERROR: Final = 3


class StartError(Exception):
    """The gate cannot be started in this container; the text says what to do."""


def refuse_python(version: tuple[int, int]) -> None:
    """Raise `StartError` for a Python that the gate does not support."""
    lowest, beyond = PYTHONS
    if not lowest <= version < beyond:
        raise StartError(
            f"python3 of this container is {version[0]}.{version[1]}; the gate needs 3.11 to 3.13"
        )


def locked_file(workspace: Path, name: str) -> bytes:
    """The content of the requirements, no link followed; raises `StartError` otherwise."""
    parts = Path(name).parts
    if not parts or name.startswith("/") or ".." in parts:
        raise StartError(f"input requirements: {name[:80]!r} is no path inside the workspace")
    for depth in range(1, len(parts) + 1):
        if workspace.joinpath(*parts[:depth]).is_symlink():
            raise StartError(f"input requirements: {name[:80]!r} leads through a link")
    try:
        descriptor = os.open(workspace / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise StartError(f"input requirements: {name[:80]!r} is no regular file")
            data = opened.read(MAX_REQUIREMENTS_BYTES + 1)
    except OSError as error:
        raise StartError(f"input requirements: {name[:80]!r}: {error.strerror}") from error
    if len(data) > MAX_REQUIREMENTS_BYTES:
        raise StartError(f"input requirements: {name[:80]!r} is above 4 MiB")
    return data


def pip_variables(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment of pip: built from nothing, proxies and pip's own settings handed on."""
    wanted = {
        name: value
        for name, value in variables.items()
        if name.upper() in FOR_PIP or name.startswith("PIP_")
    }
    return {**wanted, "PATH": os.defpath, "HOME": str(home), "LC_ALL": "C.UTF-8"}


def install(
    python: Path, requirements: Path, variables: Mapping[str, str], account: int | None = None
) -> None:
    """Install a locked file into an environment; `account` is who does it, None for the caller."""
    _run((str(python), "-m", "pip", *INSTALL, *LOCKED, str(requirements)), variables, account)


def _run(words: tuple[str, ...], variables: Mapping[str, str], account: int | None) -> None:
    done = subprocess.run(
        words,
        env=dict(variables),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        user=account,
        group=account,
        extra_groups=None if account is None else (),
    )
    if done.returncode != 0:
        # the names in it may come with the change under test: none of it may be a command
        lines = done.stdout.decode("utf-8", "replace").replace("::", ": :").replace("##[", "## [")
        shown = "\n".join(f"  {line[:300]}" for line in lines.splitlines()[-15:])
        raise StartError(f"{' '.join(words[1:4])} ended with {done.returncode}:\n{shown}")


def gate_environment(place: Path, action: Path, variables: Mapping[str, str]) -> Path:
    """The interpreter of the gate's own environment, made when it is not there yet."""
    folder = place / "repro-gate"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        _make(folder)
        install(python, action / "requirements" / "gate.txt", pip_variables(variables, folder))
        (packages,) = folder.glob("lib/python3.*/site-packages")
        (packages / "action.pth").write_text(f"{action}\n", "utf-8")
        ready.touch()
    return python


def _make(folder: Path) -> None:
    """An environment with pip; Debian's Python has the module only with `python3-venv`."""
    try:
        venv.create(folder, clear=True, symlinks=True, with_pip=True)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        raise StartError(
            f"no environment can be made in {folder} ({type(error).__name__}): on Debian install "
            "python3-venv, and let the container run as root"
        ) from error


def training_environment(
    folder: Path, locked: bytes, variables: Mapping[str, str], account: int = INSTALLER
) -> Path:
    """The programs of an environment with the locked packages, owned by nobody who trains."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    os.chown(folder, account, account)
    requirements = folder / "requirements.txt"
    requirements.write_bytes(locked)
    requirements.chmod(0o644)
    own = pip_variables(variables, folder)
    _run((sys.executable, "-I", "-m", "venv", str(folder / "python")), own, account)
    programs = folder / "python" / "bin"
    install(programs / "python", requirements, own, account)
    return programs


def base_programs(
    python: Path, name: str, locked: bytes, variables: Mapping[str, str]
) -> Path | None:
    """The programs of the base commit's own packages, None where it has the same or none at all.

    What keeps them from being had is told and no fault: the gate then excuses nothing by them.
    """
    asked = subprocess.run(
        (str(python), "-I", "-m", "gate.action.base_requirements", name),
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    try:
        if asked.returncode == 0 and asked.stdout and asked.stdout != locked:
            folder = PLACE / "repro-gate-training-base"
            return training_environment(folder, asked.stdout, variables, BASE_INSTALLER)
        why = asked.stderr.decode("utf-8", "replace").strip()[:500]
    except StartError as error:
        why = str(error)
    if why:
        _say("notice", "without the base commit's packages", why)
    return None


def _say(level: str, title: str, message: str) -> None:
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    sys.stdout.write(f"::{level} title=repro-gate {title}::{escaped}\n")
    sys.stdout.flush()


def start(variables: Mapping[str, str]) -> NoReturn:
    """Replace this process by the gate; raises `StartError` when that cannot be."""
    refuse_python(sys.version_info[:2])
    if os.geteuid() != 0:
        raise StartError(
            "the job's container does not run as root, so the training could read this step's "
            "token and key: remove `options: --user` (or runAsUser of the pod)"
        )
    python = gate_environment(PLACE, ACTION, variables)
    ours = dict(variables)
    name = variables.get("INPUT_REQUIREMENTS", "").strip()
    if name:
        locked = locked_file(Path(variables.get("GITHUB_WORKSPACE", ".")), name)
        # the base commit's first: no wheel of the change is anywhere yet
        base = base_programs(python, name, locked, variables)
        if base is not None:
            ours["REPRO_GATE_BASE_PROGRAMS"] = str(base)
        programs = training_environment(PLACE / "repro-gate-training", locked, variables)
        # not on PATH: what a change under test installs is for its training alone to start
        ours["REPRO_GATE_PROGRAMS"] = str(programs)
    os.execve(python, (str(python), "-I", "-u", "-m", "gate", "action"), ours)  # noqa: S606 - no shell is wanted


def main() -> None:
    """Start the gate, or say why not and end with the exit code of an error."""
    try:
        start(os.environ)
    except StartError as error:
        _say("error", "could not start", str(error))
        raise SystemExit(ERROR) from error


if __name__ == "__main__":
    main()
