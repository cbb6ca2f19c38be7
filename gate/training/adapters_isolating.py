"""How a call isolates its trainings: the choice, the processes that follow it, the clean-up."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gate.errors import RunError
from gate.isolation.account_choice import choose_isolation, unused_account
from gate.isolation.accounts import release_uid
from gate.isolation.answering_client import AnsweringProcess
from gate.isolation.beside import accounts_beside
from gate.isolation.containers import ContainerProcesses, RoutedProcesses
from gate.isolation.engine import Engine
from gate.isolation.gpu_files import gpu_file_groups, make_device_files
from gate.isolation.isolation import IsolationMode
from gate.isolation.modes import Credentials, Isolation
from gate.isolation.own_container import this_process
from gate.isolation.process_processes import LocalProcesses
from gate.isolation.process_request import ProcessRequest
from gate.isolation.process_table import kill_account
from gate.isolation.residue import remove_residue
from gate.isolation.stop_signals import StopSignals
from gate.settings.gate_settings import Device, GateSettings
from gate.training.isolating import ContainerChooser, no_container


class Isolating:
    """`run` marks the containers of this call; `processes` starts what any isolation asks for."""

    def __init__(
        self, engine: Engine, interrupts: StopSignals, interpreter: str, socket: str = ""
    ) -> None:
        """`interpreter` is the Python that trains where no container does; nothing is tried yet.

        `socket` is the path of the engine's, or empty.
        """
        beside = ContainerProcesses(engine, this_process(), interrupts)
        # the label by which a post step finds these containers again, and no other call's
        self.run = secrets.token_hex(8)
        self.processes = RoutedProcesses(LocalProcesses(interrupts), beside, interrupts)
        self._interrupts = interrupts
        self._engine = engine
        self._socket = socket
        self.device_groups: tuple[int, ...] = ()
        self._interpreter = interpreter
        self._accounts: list[int] = []
        self._chooser = ContainerChooser(engine=engine, processes=beside, run=self.run)

    def choose(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        """The isolation that the settings ask for, tried; `auto` takes the strongest there is.

        No other gate of this machine has its account before `release`. Raises `RunError` when what
        was asked for cannot be had.
        """
        found = self._found(settings, folders)
        self._accounts += [account.uid for account in found.own_accounts]
        self.device_groups = found.device_groups
        return found

    def _found(self, settings: GateSettings, folders: Sequence[Path]) -> Isolation:
        asked = settings.isolation
        why_no_container = no_container(asked, self._engine)
        if not why_no_container:
            return self._chooser.choose(settings, folders)
        groups: tuple[int, ...] = ()
        if settings.train.device is not Device.CPU:
            make_device_files()
            groups = gpu_file_groups(socket=self._socket)
        found = choose_isolation(asked, self.processes, self._interpreter, folders, groups)
        if asked.mode is not IsolationMode.AUTO or asked.image is None:
            return found
        return replace(found, reason=f"{found.reason}; not in isolation.image: {why_no_container}")

    def answering(self, request: ProcessRequest) -> AnsweringProcess:
        """Start a process of this machine that answers questions."""
        return AnsweringProcess(request, self._interrupts)

    def for_reading(self, isolation: Isolation) -> Isolation:
        """What reads beside trainings that are isolated so: another account, held until `release`.

        Without an account of their own it is the gate's as well. It is to be cleaned up as a
        training's is. Raises `RunError` when every account is in
        use.
        """
        account = isolation.credentials
        # one that is not root can start nothing under another, which is told at the first question
        if account is None or os.geteuid() != 0:
            return isolation
        found = unused_account()
        if found is None:
            raise RunError(
                "every account for trainings is in use on this machine",
                hint="Wait for the other gates to end, or look for leftover training processes.",
            )
        self._accounts.append(found.uid)
        reading = replace(account, uid=found.uid, gid=found.gid, groups=())
        return replace(isolation, credentials=reading, container=None)

    def beside(self, isolation: Isolation, number: int) -> tuple[Credentials | None, ...]:
        """So many accounts for runs beside one of this isolation, or fewer, held until `release`.

        None where the training has the gate's own. Raises `RunError` that says why no run can go
        beside another.
        """
        found = accounts_beside(isolation, self.processes, self._interpreter, number)
        if not isolation.in_container:
            self._accounts += [account.uid for account in found if account is not None]
        return found

    def clean_up(self, isolation: Isolation) -> None:
        """End all that a training may have left running: its containers, or its account's."""
        for mark in isolation.marked_containers:
            self._engine.remove_run(mark)
        if not isolation.in_container:
            end_account(isolation)

    def release(self) -> None:
        """Let other gates have the accounts; only when nothing of the trainings is left."""
        while self._accounts:
            release_uid(self._accounts.pop())


def end_account(isolation: Isolation) -> None:
    """End every process of the training's account, then remove what it left outside its folders.

    Without an account of its own there is neither to tell from the gate's.
    """
    for account in isolation.own_accounts:
        kill_account(account)
        remove_residue(account)
