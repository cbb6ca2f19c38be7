"""Isolation `container`: the port `Processes` by containers of the training's own.

The gate stays where it is, in its own container or outside any, and asks the engine for another one
beside it. Nothing of the gate is in there but the folders of the run and the harness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gate.adapters.engine.container_config import container_config
from gate.adapters.engine.engine import Engine
from gate.adapters.engine.own_container import Mount, own_mounts, seen_by_engine
from gate.adapters.engine.running_container import RunningContainer
from gate.adapters.process.output_capture import RunOutput
from gate.adapters.process.stop_signals import StopSignals
from gate.codec.untrusted_text import safe_line
from gate.errors import RunError
from gate.ports import Processes
from gate.records.processes import ProcessRequest, ProcessResult
from gate.records.runs import TrainingContainer


class ContainerProcesses:
    """One container a process; `own_ids` are the names that the gate's own container may have."""

    def __init__(
        self, engine: Engine, own_ids: Sequence[str] = (), interrupts: StopSignals | None = None
    ) -> None:
        """`interrupts` must be the installed ones, if any are."""
        self._engine = engine
        self._own_ids = own_ids
        self._interrupts = interrupts or StopSignals()
        self._mounts: tuple[Mount, ...] | None = None
        self._mounts_known = False

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run to the end, to its time limit, or to an exception, then leave no container behind.

        `on_line` gets lines to show, as from a local process. Raises `RunError` when the engine
        cannot do what is asked.
        """
        container = _container(request)
        output = RunOutput(request.output_limit_bytes, on_line)
        config = container_config(request, container, self._source)
        with (
            self._interrupts.deferred(),
            self._made(config) as running,
            self._interrupts.last_resort(running.kill),
        ):
            try:
                running.start()
                with self._interrupts.allowed():
                    in_time = running.follow(output.take, request.timeout_seconds)
            finally:
                running.end(output.keep)
        return output.result(running, in_time=in_time, out_of_memory=running.out_of_memory)

    @contextmanager
    def _made(self, config: Mapping[str, Any]) -> Iterator[RunningContainer]:
        """A container that does not run yet, listened to; it is gone when the body ends."""
        # made, listened to, then started: a short training could have printed everything before
        container = self._engine.create(config)
        try:
            with self._engine.attached(container) as descriptor:
                yield RunningContainer(self._engine, container, descriptor)
        finally:
            self._engine.remove(container)

    def _source(self, path: Path) -> str:
        if not self._mounts_known:
            self._mounts = own_mounts(self._engine, self._own_ids)
            self._mounts_known = True
        return seen_by_engine(path, self._mounts)


class RoutedProcesses:
    """Every request goes to where its isolation runs."""

    def __init__(self, here: Processes, beside: Processes) -> None:
        """`here` starts processes of this machine, `beside` those that name a container."""
        self._here = here
        self._beside = beside

    def run(self, request: ProcessRequest, on_line: Callable[[bytes], None]) -> ProcessResult:
        """Run where the request wants to run."""
        chosen = self._beside if request.in_container else self._here
        return chosen.run(request, on_line)


def _container(request: ProcessRequest) -> TrainingContainer:
    """Refuse what the engine would make good in its own way: it makes missing folders, as root."""
    if request.container is None or request.credentials is None or request.credentials.uid == 0:
        raise RunError(
            "isolation container needs an image, and an account that is not root",
            hint="This is a bug in repro-gate; report it with your repro-gate.yml.",
        )
    if not request.workdir.is_dir():
        raise RunError(
            f"the working directory {safe_line(str(request.workdir))} is not a folder",
            hint="Correct train.workdir in repro-gate.yml.",
        )
    return request.container
