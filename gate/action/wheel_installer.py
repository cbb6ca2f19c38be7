"""Installs the training's locked packages under a separate account: a change may add the lock.

There are two steps, which share nothing but files. The first asks the index. It has the network and
the index's logins, and runs nothing that it downloads: only wheels, by hash, without dependencies.
The second step has neither network nor logins. It unpacks the wheels where the trainings import
from.

The sandbox launcher starts both. If the kernel allows it, their view of the machine contains
neither the workspace nor the runner's folders. These are closed to other accounts in any case.
After each step every process of the account is ended, and its files in shared places are removed.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from gate.errors import RunError, SettingsError
from gate.evidence.lock_files import PinnedPackage
from gate.isolation.account_choice import unused_account
from gate.isolation.accounts import release_uid, remove_residue
from gate.isolation.modes import Credentials, WriteGuard
from gate.isolation.process_request import PrivateFolder, Processes, ProcessRequest, ReadOnlyMount
from gate.isolation.process_table import kill_account, owned_by
from gate.isolation.restricted_paths import restrict_access, secret_paths
from gate.isolation.stop_signals import StopSignals
from gate.system.console import Progress
from gate.system.files.files import LocalFiles
from gate.text.untrusted_text import last_lines, safe_line

# next to the accounts of trainings but different, so that no training can change its packages
INSTALLERS: Final = range(60980, 61001)
# How to reach an index. Other variables of pip could make it build or run something.
INDEX_VARIABLES: Final = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST"),
    *("PIP_PROXY", "PIP_RETRIES", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT"),
)
PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
# Variables that name a file with a login or a certificate. The download gets copies, because its
# account cannot open the files themselves.
FILE_VARIABLES: Final = (
    *("NETRC", "PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT"),
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"),
)
# files that pip finds in a home folder by itself
HOME_FILES: Final = (".netrc", ".config/pip/pip.conf", ".pip/pip.conf")
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
STEP_SECONDS: Final = 3600.0
OUTPUT_BYTES: Final = 1024 * 1024
SHOWN_LINES: Final = 15
# pip reads a wheel's description into memory regardless of its size. Child processes inherit the
# limit.
PIP_MEMORY_BYTES: Final = 8 * 1024**3
PIP: Final = (
    "import resource, runpy, sys; "
    f"resource.setrlimit(resource.RLIMIT_AS, ({PIP_MEMORY_BYTES},) * 2); "
    "sys.argv[0] = 'pip'; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)
QUIETLY: Final = ("--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-input")
# after pip's variables and files, so that these options win
BY_HASH: Final = ("--only-binary", ":all:", "--no-deps", "--require-hashes")
MASK: Final = "****"
# for each step: what failed, and what a user can do about it
FAULTS: Final = {
    "environment": (
        "cannot create an environment for the training's packages",
        "On Debian install python3-venv, and let the container run as root.",
    ),
    "download": (
        "the locked packages cannot be downloaded",
        (
            "Every package needs a wheel for this Python and machine, with its hash in the lock "
            "file: nothing is built from source. Build a missing wheel in a job without the pull "
            "request's code, put it on an index, and set PIP_EXTRA_INDEX_URL in the step's `env`."
        ),
    ),
    "unpack": (
        "the locked packages cannot be installed",
        "Install the same lock file on your machine: one of its wheels is damaged.",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The step's variables and workspace, and how well the sandbox works on this machine.

    `guarded` is an account whose guard was tested here; only its guard is used.
    """

    variables: Mapping[str, str]
    workspace: Path
    guarded: Credentials
    interpreter: Path = Path(sys.executable)

    @property
    def hidden(self) -> tuple[Path, ...]:
        """The workspace and the runner's folders, without those inside another one."""
        places = (self.workspace, *secret_paths(self.workspace, self.variables))
        real = sorted({Path(os.path.realpath(place)) for place in places if place.exists()})
        kept: list[Path] = []
        for path in real:
            if not any(path.is_relative_to(above) for above in kept):
                kept.append(path)
        return tuple(kept)


class WheelInstaller:
    """Installs packages for one call, one environment after the other."""

    def __init__(
        self,
        around: Surroundings,
        processes: Processes,
        interrupts: StopSignals,
        progress: Progress,
    ) -> None:
        """Start nothing yet."""
        self._around = around
        self._processes = processes
        self._interrupts = interrupts
        self._progress = progress
        self._files = LocalFiles()

    def install(self, packages: tuple[PinnedPackage, ...], folder: Path) -> Path:
        """Make an environment below `folder`, which is emptied first; return its programs' folder.

        Root owns the files and starts none of them. Raises `RunError` with pip's message, and
        `SettingsError` if a variable leads into the workspace.
        """
        logins = index_files(self._around.variables, self._around.workspace)
        account = unused_account(INSTALLERS)
        if account is None:
            raise RunError(
                "every account for installing packages is in use on this machine",
                hint="Wait for the other gates to end, or stop their leftover processes.",
            )
        guarded = self._around.guarded
        account = replace(account, guard=guarded.guard, shared=guarded.shared)
        steps = _Steps(self._around, self._processes, self._files, account, folder)
        try:
            with restrict_access(self._around.hidden, folder, self._interrupts):
                steps.prepare(packages)
                steps.make_environment()
                if packages:
                    many = "package" if len(packages) == 1 else "packages"
                    self._progress.step(f"downloading {len(packages)} locked {many}, wheels only")
                    steps.download(logins)
                    self._progress.step("installing them offline, in the sandbox")
                    steps.unpack()
                steps.tidy()
        finally:
            with self._interrupts.deferred():
                end_account_of_installer(account)
                release_uid(account.uid)
        return steps.programs


class _Steps:
    """The folders of one environment, and the processes that fill it."""

    def __init__(
        self,
        around: Surroundings,
        processes: Processes,
        files: LocalFiles,
        account: Credentials,
        folder: Path,
    ) -> None:
        self._around = around
        self._processes = processes
        self._files = files
        self._account = account
        self._folder = folder
        self._environment = folder / "python"
        self._work = folder / "work"
        self._list = folder / "pinned.txt"
        self._nothing = folder / "nothing"
        self.programs = self._environment / "bin"

    def prepare(self, packages: tuple[PinnedPackage, ...]) -> None:
        """Make root's folder with two subfolders of the account; the list of packages is root's."""
        self._files.fresh_folder(self._folder)
        for mine in (self._environment, self._work):
            self._files.fresh_folder(mine)
        for name in ("home", "temporary", "wheels"):
            self._files.fresh_folder(self._work / name, mode=0o700)
        self._files.fresh_folder(self._nothing / "folder")
        self._files.write_bytes(self._nothing / "file", b"")
        # written from checked fields and not copied from the change's file, which may contain
        # options
        self._files.write_bytes(
            self._list, "".join(f"{package.line}\n" for package in packages).encode("ascii")
        )
        for mine in (self._environment, self._work):
            self._files.give_to(mine, self._account.uid, self._account.gid)

    def make_environment(self) -> None:
        """Make an empty environment with the pip that this Python includes."""
        python = str(self._around.interpreter)
        self._run(
            "environment", (python, "-I", "-m", "venv", str(self._environment)), self._offline()
        )

    def download(self, logins: Mapping[str, bytes]) -> None:
        """Download every wheel by its hash; the only step with network and logins."""
        home = self._work / "home"
        given = self._around.variables
        variables = {**self._offline(), "HOME": str(home), **index_variables(given)}
        del variables["PIP_CONFIG_FILE"]
        # keep variables that name a folder of certificates, which is no secret and cannot be copied
        variables |= {name: given[name] for name in FILE_VARIABLES if given.get(name)}
        for name, data in logins.items():
            copy = home / (name if name in HOME_FILES else name.lower())
            self._files.write_bytes(copy, data, mode=0o600)
            if name in FILE_VARIABLES:
                variables[name] = str(copy)
        self._files.give_to(home, self._account.uid, self._account.gid)
        to = ("--dest", str(self._work / "wheels"), "--requirement", str(self._list))
        self._run("download", self._pip((), "download", *BY_HASH, *to), variables, network=True)
        self._files.remove_tree(home)

    def unpack(self) -> None:
        """Install from the downloaded wheels alone, whose hashes are checked again.

        The pip is the gate's own, so no wheel can replace the running code.
        """
        python = ("--python", str(self.programs / "python"))
        from_here = ("--no-index", "--find-links", str(self._work / "wheels"))
        self._run(
            "unpack",
            self._pip(python, "install", *BY_HASH, *from_here, "--requirement", str(self._list)),
            self._offline(),
        )

    def tidy(self) -> None:
        """Keep the environment, now owned by root, and the list of its packages.

        Otherwise the next installer could own it: the change's could alter the base commit's
        packages.
        """
        self._files.give_to(self._environment, 0, 0)
        for folder in (self._work, self._nothing):
            self._files.remove_tree(folder)

    def _pip(self, options: tuple[str, ...], *words: str) -> tuple[str, ...]:
        verb, *rest = words
        return (str(self._around.interpreter), "-I", "-c", PIP, *options, verb, *QUIETLY, *rest)

    def _offline(self) -> dict[str, str]:
        """Return environment variables built from nothing."""
        return {
            "PATH": os.defpath,
            "HOME": str(self._work),
            "TMPDIR": str(self._work / "temporary"),
            "LC_ALL": "C.UTF-8",
            # no configuration file of the machine may change what pip does
            "PIP_CONFIG_FILE": os.devnull,
        }

    def _run(
        self,
        step: str,
        argv: tuple[str, ...],
        variables: dict[str, str],
        *,
        network: bool = False,
    ) -> None:
        alone = self._account.guard is WriteGuard.MOUNT_NAMESPACE and not network
        request = ProcessRequest(
            argv=argv,
            env=variables,
            workdir=self._work,
            timeout_seconds=STEP_SECONDS,
            output_limit_bytes=OUTPUT_BYTES,
            credentials=self._account,
            network=network,
            writable=(self._environment, self._work),
            mounts=tuple(self._masks()),
            # with a private place it sees no process of another account, and no network
            place=PrivateFolder(source=self._work, target=self._work) if alone else None,
        )
        try:
            result = self._processes.run(request, lambda _: None)
        finally:
            end_account_of_installer(self._account)
        if result.exit_code != 0 or result.timed_out:
            why = "timed out" if result.timed_out else f"exit code {result.exit_code}"
            raise _fault(step, why, result.output, self._around.variables)

    def _masks(self) -> Iterator[ReadOnlyMount]:
        """Yield empty mounts in place of the hidden folders, if a mount namespace is available."""
        if self._account.guard is not WriteGuard.MOUNT_NAMESPACE:
            return
        needed = (self._folder, *map(Path, (sys.prefix, sys.base_prefix)), self._around.interpreter)
        for path in self._around.hidden:
            # skip a folder that the step needs: it stays closed by its permissions, and a training
            # could not start there either
            if any(place.is_relative_to(path) for place in needed):
                continue
            kind = "folder" if stat.S_ISDIR(path.stat().st_mode) else "file"
            yield ReadOnlyMount(source=self._nothing / kind, target=path)


def index_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the step's variables that say how an index is reached."""
    return {
        name: value
        for name, value in variables.items()
        if name in INDEX_VARIABLES or name.upper() in PROXY_VARIABLES
    }


def index_files(variables: Mapping[str, str], workspace: Path) -> dict[str, bytes]:
    """Return the files with logins and certificates for the download, by variable or path.

    Raises `SettingsError` if a variable of pip leads into the workspace: the author of the commit
    would decide there what pip does.
    """
    files = LocalFiles()
    for name in (*INDEX_VARIABLES, *FILE_VARIABLES):
        for word in variables.get(name, "").split():
            if _leads_into(word, workspace):
                raise SettingsError(
                    f"{name} leads into the workspace, where the commit decides what pip reads",
                    hint="Put that file or folder into the image, or below RUNNER_TEMP.",
                )
    wheels: dict[str, bytes] = {}
    named = {name: Path(variables[name]) for name in FILE_VARIABLES if variables.get(name)}
    home = Path(variables.get("HOME") or "/nonexistent")
    config = Path(variables.get("XDG_CONFIG_HOME") or home / ".config")
    own = {
        ".netrc": home / ".netrc",
        ".config/pip/pip.conf": config / "pip/pip.conf",
        ".pip/pip.conf": home / ".pip/pip.conf",
    }
    for name, path in (*own.items(), *named.items()):
        # resolve a link to its target, unless a commit may have made the link
        if path.is_file() and not _inside(path, workspace):
            wheels[name] = files.read_bytes(path.resolve(), max_bytes=MAX_FILE_BYTES)
    return wheels


def _leads_into(word: str, workspace: Path) -> bool:
    """Decide whether a word of a variable is a path into the workspace."""
    place = word.removeprefix("file://")
    if "://" in place:
        return False
    path = workspace / place
    return ("/" in place or path.exists()) and _inside(path, workspace)


def _inside(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def end_account_of_installer(account: Credentials) -> None:
    """End every process of the account and remove its files; raise `RunError` if one lives on."""
    kill_account(account)
    left = owned_by(account.uid)
    if left:
        raise RunError(
            f"processes of the installing account could not be killed: {sorted(left)[:10]}",
            hint="Nothing was trained: they could change its packages. Restart the machine.",
        )
    remove_residue(account)


def _fault(step: str, why: str, output: bytes, variables: Mapping[str, str]) -> RunError:
    message, hint = FAULTS[step]
    text = output
    for secret in passwords(variables):
        text = text.replace(secret.encode(), MASK.encode())
    return RunError(
        f"{message}: {why}",
        hint=hint,
        details=tuple(safe_line(line) for line in last_lines(text, SHOWN_LINES)),
    )


def passwords(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return what must not be quoted: the logins in addresses of indexes and proxies."""
    seen_passwords: list[str] = []
    for name, value in variables.items():
        if name in INDEX_VARIABLES or name.upper() in PROXY_VARIABLES:
            for word in value.split():
                login = urlsplit(word).netloc.rpartition("@")[0]
                _, _, password = login.partition(":")
                seen_passwords += [password or login, unquote(password or login)]
    # longest first, because one may be a part of another
    return tuple(sorted(filter(None, set(seen_passwords)), key=len, reverse=True))
