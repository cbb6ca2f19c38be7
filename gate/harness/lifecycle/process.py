"""The hooks of this process: installed when torch is imported, each asks the current session."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.optim import Optimizer

from .. import cuda, operator_policy, trials
from ..determinism import overrides, precision, process_knobs
from ..determinism.overrides import Guard, OverrideEvent
from ..operator_policy import Operators
from ..output import Problems
from ..recording import (
    auxiliary_state,
    carried_state,
    first_inputs,
    module_search,
    training_hooks,
)
from ..settings import NO_LOADER_WORKERS, ONE_THREAD, HarnessSettings, process_id
from ..sources.reads import hook_dates, hook_reads
from ..sources.recorded import SOURCES, SourceRecord
from ..tracing import mode
from ..user_code import calling_frame
from .ending import TrainingStopped
from .session import HarnessSession, remember_functions, wait_until_let_go

GRADIENTS_OF_A_GRAPH = "the gradients of steps inside a CUDA graph are left out"

_settings: HarnessSettings | None = None
_session: HarnessSession | None = None


def begin(settings: HarnessSettings) -> None:
    """Set torch's switches, attest them and hook its training, right after its import."""
    global _settings, _session
    wait_until_let_go(settings.sign)
    _settings = settings
    _session = HarnessSession(settings, process_knobs.read_back(Problems()), late=cuda.in_use())
    process_knobs.apply(settings, _session.problems)
    # Only after switches and seed are set: what the harness sets itself is no override.
    with _session.problems.noting("watching the knobs"):
        overrides.install(overrides.guarded_settings(settings), _guard)
        overrides.hook_seeds(_on_seed, _working_step)
    with _session.problems.noting("watching for sources of nondeterminism"):
        precision.install()
        hook_reads()
        hook_dates()
        SOURCES.subscribe(_on_source)
    with _session.problems.noting("watching torch"):
        training_hooks.install(
            (_on_backward, _on_grad),
            _on_batch,
            (_before_step, _after_step),
            operator_policy.inspect_error,
        )
        module_search.remember()
        # Needed even without observation: a module that was called is known to be alive, which is
        # slow to find out otherwise.
        first_inputs.install(_on_input)
        register_module_buffer_registration_hook(_on_buffer)
        auxiliary_state.install(_on_scaler_step, _on_average)
        carried_state.install(_carried, _steps, _save_by)
        training_hooks.install_graph_hooks(_capture, _on_replay)
        # last, when every module with hooks is loaded
        remember_functions()
    with _session.problems.noting("watching operators"):
        operator_policy.install(settings, _operators)
    _try_setting(settings, _session.problems)
    if settings.trace_from:
        with _session.problems.noting("tracing operators"):
            mode.install(
                _session.output,
                _working_step,
                first=settings.trace_from,
                lines=settings.trace_lines,
            )
    _session.attest(just_set=True)


def _try_setting(settings: HarnessSettings, problems: Problems) -> None:
    """Change the one setting that a diagnostic run tries, if that setting is in torch."""
    with problems.noting("trying a setting"):
        if settings.trial == ONE_THREAD:
            torch.set_num_interop_threads(1)
        if settings.trial == NO_LOADER_WORKERS:
            trials.no_loader_workers(torch.utils.data.DataLoader)


def current() -> HarnessSession | None:
    """Return the session of this process, or None outside a gate run.

    A forked child finds its parent's session and starts one of its own, so that two processes never
    write to one file. It inherits torch's switches with the parent's memory.
    """
    global _session
    if _session is None or _settings is None or _session.pid == process_id():
        return _session
    # `before` and `late` are of the parent, before the harness set the switches that this child
    # inherits
    _session = HarnessSession(_settings, _session.before, late=_session.late)
    _session.attest()
    return _session


def finish_at_exit() -> None:
    """End the session at exit; a forked child that took no step has nothing to write."""
    if _session is not None:
        mode.finish()
        _session.end()


def _operators() -> Operators | None:
    session = current()
    return None if session is None else session.operators


def _on_backward(loss: torch.Tensor) -> None:
    session = current()
    if session is None:
        return
    if cuda.capturing():
        # nothing may be read during a capture; each replay reports the loss
        session.capture.note(loss)
        return
    with session.problems.noting("noting the loss"):
        session.recorder.note_backward(loss)
    session.after_backward(loss)


def _on_grad(loss: torch.Tensor) -> None:
    session = current()
    if session is not None and not cuda.capturing():
        with session.problems.noting("noting the loss"):
            session.recorder.note_grad(loss)


def _on_batch(batch: object, collated: bool) -> None:  # noqa: FBT001 - a hook's signature
    session = current()
    if session is not None and not cuda.capturing():
        with session.problems.noting("noting a batch"):
            session.recorder.note_batch(batch, collated=collated)


def _on_input(module: nn.Module, arguments: first_inputs.Arguments) -> None:
    session = current()
    if session is not None and not cuda.capturing():
        with session.problems.noting("noting an input of the model"):
            session.recorder.note_input(arguments)
            # after a step, a buffer's infinity may be a result of the training
            if not session.recorder.steps:
                session.constants.look(module)
            precision.PRECISION_SWITCHES.poll(precision.IN_FORWARD, calling_frame(1))


def _on_buffer(module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
    session = current()
    if session is not None and not cuda.capturing() and not torch.compiler.is_compiling():
        with session.problems.noting("noting a buffer"):
            session.constants.note_registered(module, name, buffer)


def _on_source(source: SourceRecord) -> None:
    session = current()
    if session is not None:
        session.note_source(source)


def _before_step(optimizer: Optimizer) -> None:
    session = current()
    if session is not None and not cuda.capturing():
        with session.problems.noting("looking at an optimizer"):
            session.before_step(optimizer)


def _after_step(optimizer: Optimizer) -> None:
    session = current()
    if session is None:
        return
    if cuda.capturing():
        # each replay reports the step
        session.capture.note(optimizer)
        return
    try:
        with session.problems.noting("observing a step"):
            session.after_step(optimizer)
    # `noting` lets it pass, since a SystemExit is no `Exception`
    except TrainingStopped:
        mode.finish()
        raise


def _capture() -> training_hooks.Capture | None:
    session = current()
    return None if session is None else session.capture


def _on_replay(passed: training_hooks.Passed) -> None:
    session = current()
    if session is None:
        return
    if isinstance(passed, torch.Tensor):
        with session.problems.noting("noting the loss"):
            session.recorder.note_backward(passed)
    else:
        # the graph keeps its gradients to itself, so the step is recorded without them
        session.problems.leave_out(GRADIENTS_OF_A_GRAPH)
        with session.problems.noting("observing a step"):
            session.after_step(passed)


def _on_scaler_step(scaler: GradScaler, optimizer: Optimizer, step: auxiliary_state.Step) -> Any:
    session = current()
    if session is None or cuda.capturing():
        return step()
    return session.scaler_step(scaler, optimizer, step)


def _on_average(average: nn.Module) -> None:
    session = current()
    if session is not None:
        session.auxiliary_state.note_average(average)


def _carried() -> carried_state.CarriedState | None:
    session = current()
    return None if session is None or cuda.capturing() else session.carried


def _steps() -> int:
    session = current()
    return 0 if session is None else session.recorder.steps


def _save_by() -> carried_state.Save | None:
    session = current()
    if session is None or session.killed_save is None:
        return None
    return session.killed_save.save


def _guard() -> Guard | None:
    session = current()
    return None if session is None else session.guard


def _on_seed(event: OverrideEvent) -> None:
    session = current()
    if session is not None:
        session.note_override(event)


def _working_step() -> int:
    session = current()
    return 1 if session is None else session.working_step()
