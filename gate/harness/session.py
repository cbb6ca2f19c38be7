"""One process of the training: what it attests, records and leaves at its end."""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from . import (
    attestation,
    companions,
    cuda,
    environment,
    memory,
    operators,
    start,
    switches,
    torch_hooks,
    watching,
)
from .gradients import write_gradients
from .guard import Guard
from .intact import remember_parts, replaced_parts
from .observer import Observer
from .operators import Operators
from .output import Output, Problems, current_rank
from .ranks import training_rank
from .recorder import Recorder
from .safetensors_file import write_safetensors
from .schedule import Schedule
from .settings import GuestSettings
from .state import capture
from .tamper_log import Event, TamperLog

_settings: GuestSettings | None = None
_session: Session | None = None


class TrainingStopped(SystemExit):
    """Raised into the script after the last step that the gate asked for.

    A `SystemExit`, so that `except Exception` lets it pass while `finally` blocks, context
    managers and exit handlers run as at any other end of the program.
    """

    def __init__(self) -> None:
        super().__init__(0)


class Session:
    """The guest of one process; a forked child gets one of its own."""

    def __init__(self, settings: GuestSettings, before: switches.Readings, *, late: bool) -> None:
        """`before` holds what torch had before the guest set anything.

        `late` says that CUDA had been started by then.
        """
        self.settings = settings
        self.before = before
        self.late = late
        self.pid = os.getpid()
        self.problems = Problems()
        self.output = Output(settings.out, current_rank(), self.pid)
        self.schedule = Schedule(settings.overhead_budget, settings.max_steps, settings.strides)
        observer = Observer(self.schedule, self.problems) if settings.observe else None
        self.recorder = Recorder(self.output, self.problems, observer)
        self.companions = companions.Companions()
        self._inside_scaler = False
        self.operators = Operators(settings, self.output, self.problems, self.working_step)
        self.first_step_seconds: float | None = None
        self.tamper_log = TamperLog(self.output)
        self.guard = Guard(
            watching.watched_settings(settings),
            mode=settings.tamper,
            tell=self.note_tampering,
            step=self.working_step,
        )
        self._finished = False
        self._stopped = False

    def working_step(self) -> int:
        """The optimizer step that is being worked on, from 1."""
        return self.recorder.steps + 1

    def note_tampering(self, event: Event) -> None:
        """Put what the training did to a knob on record."""
        with self.problems.noting("writing the tamper log"):
            self.tamper_log.add(event)

    def attest(self, *, just_set: bool = False) -> None:
        """Write which settings torch really has in this process.

        Only what has `just_set` them must find them as asked: later the script may have seeded
        again, which is its right, and what it turned back the guard tells.
        """
        readings = switches.read_back(self.problems)
        if just_set:
            for sentence in switches.not_as_asked(self.settings, readings):
                self.problems.note(sentence)
        document = {
            "pid": self.pid,
            "rank": self.output.rank,
            "late": self.late,
            "before": self.before,
            "applied": readings,
            **attestation.about_this_process(self.problems),
            "problems": self.problems.sentences,
        }
        self.output.document_or_complaint("process", document)

    def before_step(self, optimizer: Optimizer) -> None:
        """Look at what the step will work on."""
        if not self._stopped:
            if not self.recorder.optimizers:
                self._before_first_step()
            self.recorder.before(optimizer)

    def scaler_step(self, scaler: GradScaler, optimizer: Optimizer, step: companions.Step) -> Any:
        """Let a `GradScaler` make its step; one that it skips is recorded as a step too."""
        self.companions.note_scaler(scaler)
        before = self.recorder.steps_of(optimizer)
        self._inside_scaler = True
        try:
            result = step()
        finally:
            self._inside_scaler = False
        if self.recorder.steps_of(optimizer) == before:
            self.after_step(optimizer, skipped=True)
        return result

    def after_step(self, optimizer: Optimizer, *, skipped: bool | None = None) -> None:
        """Record a step; raise `TrainingStopped` at the last one, and at any that follows it."""
        if self._inside_scaler:
            skipped = companions.skipped_inside(optimizer)
        if not self._stopped:
            if not self.recorder.optimizers:
                self._before_first_step()
            if self.first_step_seconds is None:
                self._at_first_step(optimizer)
            with self.problems.noting("watching the knobs"):
                self.guard.poll()
            self.recorder.observe(optimizer, skipped=skipped)
            self.operators.after_step()
            if self.recorder.steps < self.settings.max_steps:
                return
            self._stopped = True
            self.finish("max_steps")
        raise TrainingStopped

    def _before_first_step(self) -> None:
        """Settle what could not be known when torch was imported."""
        if self.output.rank != training_rank():
            # A worker that the script itself started has been told its rank only now.
            self.output.rank = training_rank()
            self.attest()
        if multiprocessing.parent_process() is not None:
            # Such a worker may end without exit handlers, but never without finalizers.
            multiprocessing.util.Finalize(None, finish_at_exit, exitpriority=-1)

    def _at_first_step(self, optimizer: Optimizer) -> None:
        """The first step is just done: how long the start took, and its gradients if asked for."""
        with self.problems.noting("timing the start"):
            cuda.wait()
            self.first_step_seconds = time.perf_counter() - start.started_at
        if self.settings.noise:
            with self.problems.noting("writing the gradients"):
                write_gradients(optimizer, self.output, self.problems)

    def finish(self, stopped_by: str) -> None:
        """Write state and summary, once, if there was a step."""
        if self._finished or not self.recorder.steps:
            return
        self._finished = True
        self.operators.write()
        with self.problems.noting("watching the knobs"):
            self.guard.poll()
        with self.problems.noting("writing the state"):
            self._write_state()
        with self.problems.noting("writing the summary"):
            self._write_summary(stopped_by)

    def _write_summary(self, stopped_by: str) -> None:
        summary = {
            "steps": self.recorder.steps,
            "stopped_by": stopped_by,
            "environment": environment.parts(self.problems),
            "peak_memory_bytes": memory.peak_bytes(),
            "device_memory_bytes": cuda.peak_bytes(),
            "strides": self.schedule.strides,
            "observe_seconds": self.recorder.observe_seconds,
            "first_step_seconds": self.first_step_seconds,
            "tampered": self.tamper_log.total,
            "problems": self._problems_at_the_end(),
        }
        self.output.document_or_complaint("summary", summary)

    def _write_state(self) -> None:
        recorder = self.recorder
        tensors = capture(recorder.modules, recorder.optimizers, self.problems)
        tensors |= self.companions.capture(self.problems)
        path = self.output.path("state", ".safetensors")
        write_safetensors(path, tensors, self.problems.note)

    def _problems_at_the_end(self) -> list[str]:
        for sentence in replaced_parts():
            self.problems.note(sentence)
        return self.problems.sentences


def begin(settings: GuestSettings) -> None:
    """Torch has just been imported: set its switches, attest them, watch its training."""
    global _settings, _session
    _settings = settings
    _session = Session(settings, switches.read_back(Problems()), late=cuda.in_use())
    switches.apply(settings, _session.problems)
    with _session.problems.noting("watching the knobs"):
        watching.install(watching.watched_settings(settings), _guard)
        watching.watch_seeds(_on_seed, _working_step)
    with _session.problems.noting("watching torch"):
        torch_hooks.install(_on_backward, _on_batch, (_before_step, _after_step), operators.look_at)
        companions.install(_on_scaler_step, _on_average)
        remember_parts()
    with _session.problems.noting("watching operators"):
        operators.install(settings, _operators)
    _session.attest(just_set=True)


def current() -> Session | None:
    """The session of this process, or None outside a gate run.

    A forked child finds its parent's session here; it starts its own, so that the two never write
    into one file. It inherits torch's switches with the parent's memory.
    """
    global _session
    if _session is None or _settings is None or _session.pid == os.getpid():
        return _session
    _session = Session(_settings, _session.before, late=_session.late)
    if cuda.in_bad_fork():
        _session.problems.note("this process was forked after CUDA had been initialised")
    _session.attest()
    return _session


def finish_at_exit() -> None:
    """The script has ended by itself (or was stopped, and then there is nothing left to do)."""
    event_files = sys.modules.get(f"{__package__}.event_files")
    if event_files is not None:
        event_files.flush_all()
    if _session is not None and _session.pid == os.getpid():
        _session.finish("script")
        # handlers of the script's may have used operators after the last step
        _session.operators.write()
        if not _session.recorder.optimizers and replaced_parts():
            # No step, so no summary: the attestation is the only place left to tell it.
            for sentence in replaced_parts():
                _session.problems.note(sentence)
            _session.attest()


def _operators() -> Operators | None:
    session = current()
    return None if session is None else session.operators


def _on_backward(loss: torch.Tensor) -> None:
    session = current()
    if session is not None:
        with session.problems.noting("noting the loss"):
            session.recorder.note_backward(loss)


def _on_batch(batch: object) -> None:
    session = current()
    if session is not None:
        session.recorder.note_batch(batch)


def _before_step(optimizer: Optimizer) -> None:
    session = current()
    if session is not None:
        with session.problems.noting("looking at an optimizer"):
            session.before_step(optimizer)


def _after_step(optimizer: Optimizer) -> None:
    session = current()
    if session is not None:
        with session.problems.noting("observing a step"):
            session.after_step(optimizer)


def _on_scaler_step(scaler: GradScaler, optimizer: Optimizer, step: companions.Step) -> Any:
    session = current()
    return step() if session is None else session.scaler_step(scaler, optimizer, step)


def _on_average(average: nn.Module) -> None:
    session = current()
    if session is not None:
        session.companions.note_average(average)


def _guard() -> Guard | None:
    session = current()
    return None if session is None else session.guard


def _on_seed(event: Event) -> None:
    session = current()
    if session is not None:
        session.note_tampering(event)


def _working_step() -> int:
    session = current()
    return 1 if session is None else session.working_step()
