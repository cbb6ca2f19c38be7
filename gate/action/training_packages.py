"""Installs the training's locked packages before the gate starts; `container/start.py` runs it.

    python -I -m gate.action.training_packages requirements.lock /opt

This makes `/opt/repro-gate-training/python` from the file in the workspace. The base commit may
have another version of the file. Then `/opt/repro-gate-training-base/python` is made from that one,
so that the base commit trains with its own packages.

Either file may come from a pull request. So the confined reader parses it and returns only
packages, versions and hashes, which `gate.action.wheel_installer` installs. This process gets no
token and no key. It leaves a fault in a file, and the gate, which has a token, reports it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

from pydantic import Field

from gate.action.wheel_installer import Surroundings, WheelInstaller
from gate.errors import CancelledError, ExitCode, GateError, RunError, SettingsError
from gate.evidence.lock_files import MAX_REQUIREMENTS_BYTES, PinnedPackage
from gate.isolation.account_choice import choose_isolation
from gate.isolation.accounts import release_uid
from gate.isolation.answering_client import LocalAnsweringProcess
from gate.isolation.modes import Credentials, Isolation, IsolationMode, IsolationSettings
from gate.isolation.processes import LocalProcesses
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import MAX_TEXT, PinnedPackagesQuestion, Text
from gate.report.runner_files import notice_annotation
from gate.settings.event import MAX_EVENT_BYTES, read_context, read_inputs
from gate.system.console import JobLog
from gate.system.files.files import LocalFiles
from gate.system.files.port import Files
from gate.system.git.repository import GitRepository
from gate.text.document import Document
from gate.text.documents import read_document, write_document
from gate.training.isolating import end_account

FAULT_VARIABLE, FAULT_FILE = "REPRO_GATE_START_FAULT", "repro-gate-start-fault.json"
MAX_DETAILS: Final = 30
MAX_FAULT_BYTES: Final = 1024 * 1024
HEAD, BASE = "repro-gate-training", "repro-gate-training-base"
INPUT: Final = "input requirements"


def head_requirements(name: str, workspace: Path) -> bytes:
    """Return the file in the workspace without following links.

    Raises `SettingsError` and `StorageError`.
    """
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts:
        raise SettingsError(
            f"{INPUT}: {name[:80]!a} is not a path inside the workspace",
            hint="Name the lock file relative to the repository's root.",
        )
    files = LocalFiles()
    # root reads this file: a link in the checkout could make it read any file of the machine
    files.refuse_links(workspace / path, below=workspace)
    if not files.exists(workspace / path):
        raise SettingsError(
            f"{INPUT}: {name[:80]!a} is not in the workspace",
            hint="Name a committed lock file, and check the repository out before this step.",
        )
    return files.read_bytes(workspace / path, max_bytes=MAX_REQUIREMENTS_BYTES)


def base_requirements(name: str, variables: Mapping[str, str]) -> bytes:
    """Return the base commit's version of the file; empty if there is no base or no such file.

    Raises `GateError` for an unreadable event, and for a commit that the clone does not have.
    """
    path = variables.get("GITHUB_EVENT_PATH", "")
    event = LocalFiles().read_bytes(Path(path), max_bytes=MAX_EVENT_BYTES) if path else b"{}"
    context = read_context(variables, event, read_inputs(variables).mode)
    if context.trusted_base is None:
        return b""
    # from the commit and not from the workspace, which contains head
    repository = GitRepository(context.workspace)
    return repository.read_file(repository.resolve(context.trusted_base), name) or b""


class StartFault(Document):
    """A fault from before the start of the gate."""

    message: Text
    hint: Text = ""
    details: Annotated[tuple[Text, ...], Field(max_length=MAX_DETAILS)] = ()
    exit_code: int = Field(ge=1, le=4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one call needs for both files."""

    name: str
    place: Path
    variables: Mapping[str, str]
    workspace: Path
    interrupts: StopSignals
    log: JobLog
    isolation: Isolation

    @property
    def guarded(self) -> Credentials:
        """The account of the reader, whose guard the installers get too."""
        (account,) = self.isolation.own_accounts
        return account


def pinned_packages(call: Call, data: bytes, whose: str) -> tuple[PinnedPackage, ...]:
    """Return the packages that the confined reader finds in a file.

    Raises `DocumentError` with each line that the reader refuses.
    """
    files = LocalFiles()
    answering = partial(LocalAnsweringProcess, interrupts=call.interrupts)
    with (
        tempfile.TemporaryDirectory(prefix="repro-gate-lock-") as folder,
        FreshReader(files, answering, call.log, call.guarded) as reader,
    ):
        copy = Path(folder) / "requirements.txt"
        files.write_bytes(copy, data)
        reader.let_read(Path(folder))
        return reader.ask(PinnedPackagesQuestion(path=copy, shown=f"{call.name}{whose}"))


def install_packages(call: Call, data: bytes, folder: str, whose: str = "") -> None:
    """Read a file and install the packages that it pins; raise `GateError`."""
    around = Surroundings(variables=call.variables, workspace=call.workspace, guarded=call.guarded)
    installer = WheelInstaller(around, LocalProcesses(call.interrupts), call.interrupts, call.log)
    call.log.step(f"{call.name}{whose}: creating an environment for the training")
    installer.install(pinned_packages(call, data, whose), call.place / folder)


def install_base(call: Call, locked: bytes) -> None:
    """Install the base commit's packages if they differ; only report an obstacle.

    Without them, the gate attributes no difference to the packages.
    """
    try:
        data = base_requirements(call.name, call.variables)
        # equal lock files need only one environment, in which both commits train
        if data and data != locked:
            install_packages(call, data, BASE, " of the base commit")
    except GateError as fault:
        # half an environment must not look like the base commit's packages
        LocalFiles().remove_tree(call.place / BASE)
        notice = notice_annotation("without the base commit's packages", str(fault))
        sys.stdout.write(f"{notice}\n")


def install_both(name: str, place: Path, variables: Mapping[str, str]) -> None:
    """Install both environments, the base commit's first; raise `GateError`."""
    workspace = Path(variables.get("GITHUB_WORKSPACE", "."))
    files = LocalFiles()
    # removed first, so that a later fault leaves no environment of an earlier call
    for folder in (HEAD, BASE):
        files.remove_tree(place / folder)
    locked = head_requirements(name, workspace)
    interrupts = StopSignals()
    with interrupts.installed():
        isolation = choose_isolation(
            IsolationSettings(mode=IsolationMode.UID),
            LocalProcesses(interrupts),
            sys.executable,
            (),
        )
        try:
            call = Call(
                name=name,
                place=place,
                variables=variables,
                workspace=workspace,
                interrupts=interrupts,
                log=JobLog(sys.stdout),
                isolation=isolation,
            )
            # the base commit's first, while no wheel of the change is on the machine yet
            install_base(call, locked)
            install_packages(call, locked, HEAD)
        finally:
            # a signal during the clean-up must not leave processes of the account behind
            with interrupts.deferred():
                end_account(isolation)
                for account in isolation.own_accounts:
                    release_uid(account.uid)


def raise_start_fault(variables: Mapping[str, str], files: Files) -> None:
    """Raise the fault that prevented the installation, if there was one."""
    path = variables.get(FAULT_VARIABLE, "")
    if path:
        data = files.read_bytes(Path(path), max_bytes=MAX_FAULT_BYTES)
        fault = read_document(StartFault, data, "what the installation left")
        kind = SettingsError if fault.exit_code == ExitCode.USAGE else RunError
        raise kind(fault.message, hint=fault.hint, details=fault.details)


def main() -> None:
    """Install the packages, or leave the fault in a file and exit with its code."""
    name, place = sys.argv[1:]
    path = Path(place) / FAULT_FILE
    # an earlier call's fault must not be reported as this one's
    LocalFiles().remove_tree(path)
    try:
        install_both(name, Path(place), os.environ)
    except CancelledError as fault:
        raise SystemExit(int(fault.exit_code)) from None
    except GateError as fault:
        start_fault = StartFault(
            message=fault.message[:MAX_TEXT],
            hint=fault.hint[:MAX_TEXT],
            details=tuple(line[:MAX_TEXT] for line in fault.details[:MAX_DETAILS]),
            exit_code=int(fault.exit_code),
        )
        LocalFiles().write_bytes(path, write_document(start_fault))
        raise SystemExit(int(fault.exit_code)) from None


if __name__ == "__main__":
    main()
