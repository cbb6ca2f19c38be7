"""Install the gate beside the job's Python, and start it. `container/action.yml` runs this file.

    python3 -I start.py

The gate gets a separate environment (`/opt/repro-gate`). Its packages are wheels with checked
hashes, so that no package of the project decides what the gate imports. If the input `requirements`
names a hash-locked file, the training gets a separate environment too (`/opt/repro-gate-training`).
The base commit gets one more if its version of that file differs. The file may come from the change
under test, so this program never opens it. It passes the name to `gate.action.training_packages`, a
process of the gate that gets neither token nor key.
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
# The variables that pip needs to reach an index. All others are dropped, since some of them could
# make pip run a program.
FOR_PIP: Final = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"),
    *("PIP_PROXY", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
)
FILES_FOR_PIP: Final = (
    *("NETRC", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# What the process that installs the training's packages gets besides the variables above: where the
# step's files are, and what the event is.
FOR_INSTALLING: Final = ("PATH", "HOME", "XDG_CONFIG_HOME", "INPUT_MODE")
OF_THE_RUNNER: Final = ("GITHUB_", "RUNNER_")
INSTALL: Final = ("install", "--quiet", "--disable-pip-version-check", "--no-cache-dir")
# The file names every package, so `--no-deps` leaves nothing out. It is needed because pip 23 takes
# a dependency `name[extra]` for another package: once the index has a newer version, pip would want
# that version, which has no hash here.
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
    """Return pip's environment: an empty one, plus the variables needed to reach the index.

    Raises `StartError` if a variable leads into the workspace. pip runs as root here, and the
    commit under test would decide what it reads.
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
    """Raise `StartError` if a variable of pip names a file or folder in the workspace."""
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
    """Install the packages of one of the gate's own lock files with `python`'s pip.

    `variables` is pip's whole environment. Raises `StartError` with pip's last lines if it fails.
    """
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
        # pip's output quotes names from the index. Break the prefixes `::` and `##[`, or the runner
        # would obey them as workflow commands.
        lines = done.stdout.decode("utf-8", "replace").replace("::", ": :").replace("##[", "## [")
        shown = "\n".join(f"  {line[:300]}" for line in lines.splitlines()[-15:])
        raise StartError(f"{' '.join(words[1:5])} ended with {done.returncode}:\n{shown}")


def gate_environment(place: Path, action: Path, variables: Mapping[str, str]) -> Path:
    """Return the interpreter of the gate's own environment; create that first if it is missing."""
    folder = place / "repro-gate"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.is_file():
        _make(folder)
        install(python, action / "requirements" / "gate.txt", pip_variables(variables, folder))
        (packages,) = folder.glob("lib/python3.*/site-packages")
        # a .pth file puts the action's checkout on sys.path, so the gate's own code is not copied
        (packages / "action.pth").write_text(f"{action}\n", "utf-8")
        # last: an installation that was cut short has no such file, and is started over
        ready.touch()
    return python


def _make(folder: Path) -> None:
    """Create an environment with pip; raises `StartError` if that fails.

    Debian's Python lacks the `ensurepip` module unless `python3-venv` is installed.
    """
    try:
        venv.create(folder, clear=True, symlinks=True, with_pip=True)
    except (ImportError, OSError, subprocess.CalledProcessError) as error:
        raise StartError(
            f"cannot create an environment in {folder} ({type(error).__name__}): on Debian install "
            "python3-venv, and let the container run as root"
        ) from error


def install_for_training(python: Path, lock: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Let the gate install the training's packages, and return the variables that locate them.

    If the installing process fails, it may leave a file with the reason. The variable returned then
    names that file, and the gate reports it. Without such a file this process ends with the same
    exit code.
    """
    known = {
        name: value
        for name, value in variables.items()
        if name in FOR_INSTALLING
        or _reaches_index(name)
        or (name.startswith(OF_THE_RUNNER) and "TOKEN" not in name)
    }
    # it reads a file of the change under test, so it gets no token and no key (T1)
    words = (str(python), "-I", "-u", "-m", "gate.action.training_packages", lock, str(PLACE))
    ended = subprocess.run(words, env=known, stdin=subprocess.DEVNULL, check=False).returncode
    fault = PLACE / "repro-gate-start-fault.json"
    if ended != 0 and fault.is_file():
        return {"REPRO_GATE_START_FAULT": str(fault)}
    if ended != 0:
        raise SystemExit(ended if ended > 0 else ERROR)
    # Not on PATH: only the training may start programs that a change under test installs.
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
    """Replace this process by the gate; raises `StartError` if the gate cannot run here."""
    refuse_python(sys.version_info[:2])
    if os.geteuid() != 0:
        raise StartError(
            "the job's container does not run as root, so the training could read this step's "
            "token and key: remove `options: --user` (or runAsUser of the pod)"
        )
    python = gate_environment(PLACE, ACTION, variables)
    # Drop pip's variables, which may contain the login of an index: the gate asks no index. Keep
    # those that name files, because the gate hides files with logins from trainings.
    ours = {
        name: value
        for name, value in variables.items()
        if name in FILES_FOR_PIP or not name.startswith("PIP_")
    }
    requirements = variables.get("INPUT_REQUIREMENTS", "").strip()
    # The mode `judge` trains nothing and has the key, so it installs no packages of the change.
    if requirements and variables.get("INPUT_MODE", "").strip() != "judge":
        ours |= install_for_training(python, requirements, variables)
    os.execve(python, (str(python), "-I", "-u", "-m", "gate", "action"), ours)  # noqa: S606 - no shell is wanted


def main() -> None:
    """Start the gate; if that fails, annotate the job with the reason and end with exit code 3."""
    try:
        start(os.environ)
    except StartError as error:
        _say("error", "could not start", str(error))
        raise SystemExit(ERROR) from error


if __name__ == "__main__":
    main()
