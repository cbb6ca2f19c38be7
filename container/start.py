"""Put the gate beside the job's Python, and start it: what `container/action.yml` runs.

    python3 -I start.py

The gate goes into an environment of its own (`/opt/repro-gate`), hash-checked, as wheels, so that
nothing which the project installed decides what the gate imports. Where the input `requirements`
names a hash-locked file, the training gets an environment of its own as well
(`/opt/repro-gate-training`, and one of the base commit where that has another version of the file).
The file may come with the change under test, so this program does not open it: it hands its name to
`gate.action.training_packages`, a process of the gate's that gets neither token nor key.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

ACTION: Final = Path(__file__).resolve().parent.parent
PLACE: Final = Path("/opt")
PYTHONS: Final = ((3, 11), (3, 14))
# what pip needs to reach the index; what else its variables say could have it run something
FOR_PIP: Final = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"),
    *("PIP_PROXY", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
)
FILES_FOR_PIP: Final = (
    *("NETRC", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# what the process that installs the training's packages is given beside these: where the step's
# files are, and what the event is
FOR_INSTALLING: Final = ("PATH", "HOME", "XDG_CONFIG_HOME", "INPUT_MODE")
OF_THE_RUNNER: Final = ("GITHUB_", "RUNNER_")
INSTALL: Final = ("install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
# The file names every package, so nothing is left to resolve. pip 23 takes `name[extra]` of a
# dependency for another package, which has no hash once the index has a newer version of it.
LOCKED: Final = ("--only-binary", ":all:", "--no-deps", "--require-hashes", "-r")
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


def pip_variables(variables: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment of pip: built from nothing, with what reaches the index.

    Raises `StartError` where a variable leads into the workspace: the commit under test would
    decide there what pip does, which is root here.
    """
    refuse_workspace(variables)
    netrc = Path(variables.get("HOME") or "/nonexistent") / ".netrc"
    return {
        **({"NETRC": str(netrc)} if netrc.is_file() else {}),
        **{name: variables[name] for name in variables if _reaches_index(name)},
        "PATH": os.defpath,
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
    }


def _reaches_index(name: str) -> bool:
    return name in FOR_PIP or name in FILES_FOR_PIP or name.upper() in PROXIES


def refuse_workspace(variables: Mapping[str, str]) -> None:
    """Raise `StartError` where a variable of pip's names something in the workspace."""
    workspace = os.path.realpath(variables.get("GITHUB_WORKSPACE") or ".")
    for name in (*FOR_PIP, *FILES_FOR_PIP):
        for word in variables.get(name, "").split():
            place = word.removeprefix("file://")
            path = Path(os.path.realpath(Path(workspace, place)))
            named = "://" not in place and ("/" in place or path.exists())
            if named and path.is_relative_to(workspace):
                raise StartError(
                    f"{name} leads into the workspace, where the commit under test decides what "
                    "pip reads: put that file or folder into the image, or below RUNNER_TEMP"
                )


def install(python: Path, requirements: Path, variables: Mapping[str, str]) -> None:
    """Install a locked file of the gate's own into an environment."""
    words = (str(python), "-I", "-m", "pip", *INSTALL, *LOCKED, str(requirements))
    done = subprocess.run(
        words,
        env=dict(variables),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode != 0:
        # an index may have any name in it: none of it may be a command
        lines = done.stdout.decode("utf-8", "replace").replace("::", ": :").replace("##[", "## [")
        shown = "\n".join(f"  {line[:300]}" for line in lines.splitlines()[-15:])
        raise StartError(f"{' '.join(words[1:5])} ended with {done.returncode}:\n{shown}")


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
            f"cannot create an environment in {folder} ({type(error).__name__}): on Debian install "
            "python3-venv, and let the container run as root"
        ) from error


def install_for_training(python: Path, lock: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Have the gate install the training's packages; the variables that tell it where they are.

    Where that one fails it leaves a file that says why, for the gate to report; without such a file
    this process ends as it did.
    """
    known = {
        name: value
        for name, value in variables.items()
        if name in FOR_INSTALLING
        or _reaches_index(name)
        or (name.startswith(OF_THE_RUNNER) and "TOKEN" not in name)
    }
    words = (str(python), "-I", "-u", "-m", "gate.action.training_packages", lock, str(PLACE))
    ended = subprocess.run(words, env=known, stdin=subprocess.DEVNULL, check=False).returncode
    fault = PLACE / "repro-gate-start-fault.json"
    if ended != 0 and fault.is_file():
        return {"REPRO_GATE_START_FAULT": str(fault)}
    if ended != 0:
        raise SystemExit(ended if ended > 0 else ERROR)
    # not on PATH: what a change under test installs is for its training alone to start
    places = {
        "REPRO_GATE_PROGRAMS": PLACE / "repro-gate-training/python/bin",
        "REPRO_GATE_BASE_PROGRAMS": PLACE / "repro-gate-training-base/python/bin",
    }
    return {variable: str(place) for variable, place in places.items() if place.is_dir()}


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
    # no login of an index: the gate asks none, and closes the files of logins to trainings
    ours = {
        name: value
        for name, value in variables.items()
        if name in FILES_FOR_PIP or not name.startswith("PIP_")
    }
    requirements = variables.get("INPUT_REQUIREMENTS", "").strip()
    # who judges trains nothing, and holds the key
    if requirements and variables.get("INPUT_MODE", "").strip() != "judge":
        ours |= install_for_training(python, requirements, variables)
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
