"""Isolation `container`: the port `Processes` by containers of the training's own.

The gate stays where it is, in its own container or outside any, and asks the engine for another one
beside it. Nothing of the gate is in there but the folders of the run and the harness.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gate.errors import RunError
from gate.isolation.container_config import container_config
from gate.isolation.engine import Engine
from gate.isolation.modes import TrainingContainer
from gate.isolation.own_container import Mount, own_mounts, seen_by_engine
from gate.isolation.process_request import ProcessRequest
from gate.isolation.processes import GroupedProcesses, Running
from gate.isolation.running_container import RunningContainer
from gate.isolation.stop_signals import StopSignals
from gate.text.untrusted_text import safe_line


class ContainerProcesses(GroupedProcesses):
    """One container a process; `own_ids` are the names that the gate's own container may have."""

    def __init__(
        self, engine: Engine, own_ids: Sequence[str] = (), interrupts: StopSignals | None = None
    ) -> None:
        """`interrupts` must be the installed ones, if any are."""
        super().__init__(interrupts)
        self._engine = engine
        self._own_ids = own_ids
        self._mounts: tuple[Mount, ...] | None = None
        self._mounts_known = False

    def begin(self, request: ProcessRequest) -> RunningContainer:
        """Start a container; raises `RunError` when the engine cannot do what is asked."""
        config = container_config(request, _container(request), self._source)
        with ExitStack() as made:
            # made, listened to, then started: a short training could have printed everything before
            container = self._engine.create(config)
            made.callback(self._engine.remove, container)
            descriptor = made.enter_context(self._engine.attached(container))
            running = RunningContainer(self._engine, container, descriptor, made.pop_all().close)
        try:
            running.start()
        except BaseException:
            running.end(lambda _: None)
            raise
        return running

    def _source(self, path: Path) -> str:
        if not self._mounts_known:
            self._mounts = own_mounts(self._engine, self._own_ids)
            self._mounts_known = True
        return seen_by_engine(path, self._mounts)


class RoutedProcesses(GroupedProcesses):
    """Every request goes to where its isolation runs."""

    def __init__(
        self,
        here: GroupedProcesses,
        beside: GroupedProcesses,
        interrupts: StopSignals | None = None,
    ) -> None:
        """`here` starts processes of this machine, `beside` those that name a container."""
        super().__init__(interrupts)
        self._here = here
        self._beside = beside

    def begin(self, request: ProcessRequest) -> Running:
        """Start where the request wants to run."""
        return (self._beside if request.in_container else self._here).begin(request)


def _container(request: ProcessRequest) -> TrainingContainer:
    """Refuse what the engine would make good in its own way: it makes missing folders, as root."""
    if request.container is None or request.credentials is None or request.credentials.uid == 0:
        raise RunError(
            "isolation container needs an image, and an account that is not root",
            hint="This is a bug in repro-gate; report it with your repro-gate.yml.",
        )
    if not request.found(request.workdir).is_dir():
        raise RunError(
            f"the working directory {safe_line(str(request.workdir))} is not a folder",
            hint="Correct train.workdir in repro-gate.yml.",
        )
    return request.container
