"""The harness session of one training process: what it attests, records and writes at the end.

The gate may start a run ahead of its turn and let it wait in `wait_until_let_go`. Up to that
point the process has done what every run of the script does, in the script's own order. Only
processes that have torch import this module, before the harness does anything there.

The checks for replaced functions are no defence against malice: hostile code can replace the
checks too. They catch accidents. A test helper that patches everything in sight, or a script that
silences what it takes for a debugger, must not look like a training without steps.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from .. import cuda
from ..determinism import overrides, precision, process_knobs
from ..determinism.overrides import Guard, OverrideEvent, OverrideLog
from ..operator_policy import Operators
from ..output import Output, Problems
from ..plain_tensors import write_safetensors
from ..recording import auxiliary_state, time_and_memory
from ..recording.carried_state import CarriedState
from ..recording.gradients import HandUpdates
from ..recording.observer import Schedule
from ..recording.recorder import Recorder
from ..recording.replicas import Replicas
from ..recording.state import ConstantBuffers, capture, parameter_names, write_gradients
from ..recording.training_hooks import Capture
from ..settings import (
    HarnessSettings,
    current_rank,
    monotonic,
    perf_counter,
    process_id,
    started_at,
)
from ..sources import configuration, outside
from ..sources.concurrency import tell_unwaited
from ..sources.draw_lines import draw_lines
from ..sources.recorded import ADDRESS, IN_CODE, SPLIT, SourceRecord
from ..sources.splits import tell_addresses, tell_splits
from . import attestation, ending, environment_survey, preemption
from .attestation import training_rank
from .border import Border
from .ending import TrainingStopped, flush_all, tell_end
from .killed_save import SaveKiller

POLL_SECONDS = 0.005


class Waiting:
    """Seconds from the harness's start until torch was imported, and seconds waited after that."""

    ready_seconds = 0.0
    waited_seconds = 0.0


def wait_until_let_go(sign: str) -> None:
    """Block until the file `sign` exists.

    Return at once when `sign` is empty, and on every call after the first. Raises `SystemExit`
    when the parent process is gone, so that a killed gate leaves no waiting process behind.
    """
    if Waiting.ready_seconds:
        return
    parent = os.getppid()
    Waiting.ready_seconds = perf_counter() - started_at
    if not sign or os.path.exists(sign):  # noqa: PTH110 - no other module is needed here
        return
    _import_what_optimizers_need()
    Waiting.ready_seconds = perf_counter() - started_at
    # Linux gives an orphan to another process: a changed parent means that the gate's is gone
    while not os.path.exists(sign):  # noqa: PTH110 - as above
        if os.getppid() != parent:
            raise SystemExit(1)
        time.sleep(POLL_SECONDS)
    waited = perf_counter() - started_at - Waiting.ready_seconds
    Waiting.waited_seconds = waited


def _import_what_optimizers_need() -> None:
    """Import modules that the first optimizer of a process needs, which takes about a second.

    Importing them draws nothing from any generator. An error in them is ignored here, since it
    occurs again, with a traceback, when the script itself needs the module.
    """
    try:  # noqa: SIM105 - contextlib would be imported for it
        import torch._dynamo  # noqa: F401
    except Exception:
        pass


# prefix of the harness's modules, under the name by which the training's process knows the package
_OURS = str(__package__).removesuffix("lifecycle")

_remembered: dict[str, object] = {}


def remember_functions() -> None:
    """Remember the harness's functions and methods as they are now, as the genuine ones."""
    _remembered.update(_functions())


def replaced_functions() -> list[str]:
    """Return one sentence for each harness function that the script has replaced."""
    now = dict(_functions())
    return [
        f"the script replaced the harness's {name}"
        for name, function in _remembered.items()
        if now.get(name) is not function
    ]


def _functions() -> Iterator[tuple[str, object]]:
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(_OURS):
            continue
        short = module_name.rpartition(".")[2]
        for name, value in list(vars(module).items()):
            # skip what the module only imported; torch also replaces parts of itself at run time
            if not str(getattr(value, "__module__", "")).startswith(_OURS):
                continue
            if isinstance(value, FunctionType):
                yield f"{short}.{name}", value
            elif isinstance(value, type):
                yield from _methods(f"{short}.{name}", value)


def _methods(owner: str, kind: type) -> Iterator[tuple[str, object]]:
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield f"{owner}.{name}", value


Kept = TypeVar("Kept")
# The script is ended after this many backward passes without any optimizer step. No first step
# takes as many, even one that accumulates gradients over hundreds of passes or runs an inner loop.
BACKWARDS = 2000
BACKWARDS_OF_A_STEP = 100
# a script's own inner loop, before its optimizer steps, is shorter than this
UPDATES_BY_HAND = 20
UPDATES_OF_A_STEP = 3
MAX_TEXT = 200


class HarnessSession:
    """The harness in one process; each forked child that trains has a session of its own."""

    def __init__(
        self, settings: HarnessSettings, before: process_knobs.Readings, *, late: bool
    ) -> None:
        """Set up recording; nothing is hooked yet.

        `before` holds torch's settings as they were before the harness changed any. `late` is true
        if CUDA had already been initialised by then.
        """
        self.settings = settings
        self.before = before
        self.late = late
        self.pid = process_id()
        self.problems = Problems()
        self.output = Output(settings.out, current_rank(), self.pid)
        self.schedule = Schedule(
            settings.overhead_budget, settings.max_steps, settings.free_seconds
        )
        self.recorder = Recorder(
            self.output, self.problems, self.schedule, observe=settings.observe
        )
        self.capture = Capture()
        self.auxiliary_state = auxiliary_state.AuxiliaryState()
        self.carried = CarriedState(self.recorder.generators, settings.tree)
        self._inside_scaler = False
        self.operators = Operators(settings, self.output, self.problems, self.working_step)
        self.first_step_seconds: float | None = None
        self.first_step_clock_seconds: float | None = None
        self.override_log = OverrideLog(self.output)
        self.guard = Guard(
            overrides.guarded_settings(settings),
            mode=settings.on_override,
            report=self.note_override,
            step=self.working_step,
        )
        self._applied: process_knobs.Readings = {}
        self._parameter_names: dict[str, str] = {}
        self.constants = ConstantBuffers()
        self._constant_infinities: list[str] = []
        self._finished = False
        self._ended = False
        self._stopped = False
        self._backwards = 0
        self._by_hand = HandUpdates()
        self._replicas = Replicas()
        self._preemption = preemption.Preemption(settings)
        self._border = Border()
        self.killed_save: SaveKiller | None = None
        if settings.kill_save:
            self.killed_save = SaveKiller(settings, self.output, self.recorder)

    def working_step(self) -> int:
        """Return the number of the optimizer step in progress, counted from 1."""
        return self.recorder.steps + 1

    def note_override(self, event: OverrideEvent) -> None:
        """Record that the training overrode a knob or seeded a generator."""
        with self.problems.noting("writing the override log"):
            self.override_log.add(event)

    def note_source(self, source: SourceRecord) -> None:
        """Record a line of the training that may make two runs differ."""
        # these are found by searching the code at the end, and may have run from the first step on
        in_code = source.kind in {ADDRESS, SPLIT} or source.before == IN_CODE
        with self.problems.noting("writing what may make two runs differ"):
            record = {
                "step": 1 if in_code else self.working_step(),
                "kind": source.kind,
                "call": source.call[:MAX_TEXT],
                "before": source.before[:MAX_TEXT],
                "after": source.after[:MAX_TEXT],
                "file": source.place.file[-MAX_TEXT:],
                "line": source.place.line,
                "stack": [line[-MAX_TEXT:] for line in source.stack],
                "worker": multiprocessing.parent_process() is not None,
                "thread": threading.current_thread() is not threading.main_thread(),
            }
            self.output.append_line("sources", record)

    def attest(self, *, just_set: bool = False) -> None:
        """Write the attestation: the settings that torch really has in this process.

        `just_set` is true right after the harness set the knobs. Only then is a different value
        a problem. Later the script may have seeded again, which it is free to do, and the
        guard reports every knob that it overrode.
        """
        readings = process_knobs.read_back(self.problems)
        if just_set:
            for sentence in process_knobs.not_as_asked(self.settings, readings):
                self.problems.note(sentence)
        self._write_attestation(readings)

    def _write_attestation(self, readings: process_knobs.Readings) -> None:
        self._applied = readings
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
        """Stop or preempt the run if it is time; else observe the gradients of this step.

        Raises `TrainingStopped` if no further step is wanted.
        """
        if self.settings.resumed and preemption.makes_state_to_load():
            return
        if not self._stopped:
            tell_unwaited()
            if not self.recorder.optimizers:
                # an optimizer that lags behind takes its step first: all end at one step
                self._before_first_step()
            if self._all_steps_taken() and optimizer not in self.recorder.lagging():
                self._stop()
            if self._ends_early():
                self._stop()
            if self._preemption.is_due(self.recorder, optimizer):
                self._preempt()
            self.recorder.before(optimizer)
            if self.settings.resumed and not self._border.tells(self.recorder):
                self._tell_boundary(before_update=True)

    def after_backward(self, loss: torch.Tensor) -> None:
        """Raise `TrainingStopped` in a script that trains without any torch optimizer.

        Without optimizer steps nothing would ever stop it. The limit is low when the script updates
        its weights by hand, and high otherwise.
        """
        if self.recorder.optimizers:
            return
        self._backwards += 1
        with self.problems.noting("looking for updates by hand"):
            self._by_hand.note(loss)
        steps = self.settings.max_steps
        by_hand = self._by_hand.count >= max(UPDATES_BY_HAND, UPDATES_OF_A_STEP * steps)
        if by_hand or self._backwards >= max(BACKWARDS, BACKWARDS_OF_A_STEP * steps):
            self._stopped = True
            raise TrainingStopped

    def scaler_step(
        self, scaler: GradScaler, optimizer: Optimizer, step: auxiliary_state.Step
    ) -> Any:
        """Run a `GradScaler`'s step; a step that the scaler skips is recorded as a step too."""
        self.auxiliary_state.note_scaler(scaler)
        before = self.recorder.steps_of(optimizer)
        self._inside_scaler = True
        try:
            result = step()
        finally:
            self._inside_scaler = False
        if self.recorder.steps_of(optimizer) == before:
            self.after_step(optimizer, skipped=True)
        return result

    def after_step(self, optimizer: Optimizer, *, skipped: auxiliary_state.Skipped = None) -> None:
        """Record a finished step; raise `TrainingStopped` after the last one and any later one."""
        if self.settings.resumed and preemption.makes_state_to_load():
            return
        if self._inside_scaler:
            # a fused optimizer is called even for a skipped step, so the call alone proves nothing
            skipped = auxiliary_state.skipped_inside(optimizer)
        if not self._stopped:
            if not self.recorder.optimizers:
                self._before_first_step()
            # first of all: time from here on is the harness's
            self.recorder.end_step(optimizer)
            if self.first_step_seconds is None:
                self._at_first_step(optimizer)
            with self.problems.noting("watching the knobs"):
                self.guard.poll()
                precision.PRECISION_SWITCHES.poll(precision.READERS)
            self.recorder.observe(optimizer, skipped=skipped)
            self._note_replicas(optimizer)
            self.carried.after_step()
            self._preemption.note_step(self.recorder.steps)
            if self.killed_save is not None:
                self.killed_save.look()
            self.operators.after_step()
            if self._all_steps_taken() and not self.recorder.lagging():
                self._stop()
            # `before_step` is not called for a step that the scaler skips: check the end here
            later = self.recorder.steps_of(optimizer) > self.settings.end_step
            if self._ends_early() and (later or not self.settings.end_written):
                self._stop()
            # Checked only when lines were just written: a file system look-up at each step would be
            # noticeable where steps are short.
            if self.recorder.just_wrote and self.output.race_told():
                self._stop()
            return
        raise TrainingStopped

    def _note_replicas(self, optimizer: Optimizer) -> None:
        if self.recorder.steps_of(optimizer) == 1:
            with self.problems.noting("looking for replicas"):
                known = self.recorder.optimizers
                number = next(
                    place
                    for place, known_optimizer in enumerate(known)
                    if known_optimizer is optimizer
                )
                self._replicas.note(number, optimizer, self.recorder.modules)

    def _all_steps_taken(self) -> bool:
        return self.recorder.steps >= self.settings.max_steps

    def _ends_early(self) -> bool:
        """Whether every optimizer has reached the step at which this run ends on purpose."""
        settings = self.settings
        if not settings.end_step:
            return False
        counts, rank = settings.end_optimizers, self.output.rank
        optimizers = counts[rank] if rank < len(counts) else 1
        return self.recorder.have_taken(settings.end_step, optimizers)

    def _stop(self) -> None:
        self._stopped = True
        self.finish("max_steps")
        with self.problems.noting("waiting for other ranks"):
            self._wait_for_daemons()
        raise TrainingStopped

    def _wait_for_daemons(self) -> None:
        """Wait for the summaries of daemonic children that train, at most `WAIT_SECONDS`.

        Python terminates daemonic processes when their parent exits. Workers of a DataLoader are
        daemonic too; they do not train and are not waited for.
        """
        until = perf_counter() + preemption.WAIT_SECONDS
        for child in multiprocessing.active_children():
            # Waiting for a DataLoader's workers too would make each rank wait its full time for
            # ranks on other nodes.
            trains = child.daemon and self.output.has_trained(child.pid)
            while trains and child.is_alive() and perf_counter() < until:
                if self.output.has_summary(child.pid):
                    break
                time.sleep(POLL_SECONDS)

    def _preempt(self) -> None:
        """Send SIGTERM if the script may still save in its handler; else end the process."""
        if self._preemption.is_gentle:
            self._preemption.ask(self.recorder.steps)
            return
        self._stopped = True
        self._preemption.note_end()
        self._tell_boundary(before_update=True)
        self.finish("max_steps")
        # once one rank ends, the launcher kills the others before they have written
        preemption.wait_for_ranks(self.settings.out, self.output)
        # a thread has finished the checkpoint only now: record it as still being written
        if self._preemption.written_after_the_end():
            self._tell_boundary(before_update=True)
        self._preemption.end()

    def _tell_boundary(self, *, before_update: bool) -> None:
        """Write the state at the border between two runs: where one is interrupted or resumed."""
        with self.problems.noting("reading the state of the run"):
            writing, beside = self._preemption.being_written()
            self._border.write(
                self.output,
                self._standing,
                self.recorder,
                self.problems,
                before_update=before_update,
                writing=writing,
                beside=beside,
            )

    def _before_first_step(self) -> None:
        """Settle what was unknown when torch was imported: group, rank and exit hook."""
        if cuda.in_bad_fork():
            # a worker that only reads data may be forked like this; one that trains cannot use the
            # GPU
            self.problems.note("this process was forked after CUDA had been initialised")
        attestation.Group.remember()
        if self.output.rank != training_rank() or cuda.in_bad_fork():
            # a worker that the script itself started learns its rank in `init_process_group`
            self.output.rank = training_rank()
            self.attest()
        if multiprocessing.parent_process() is not None:
            # multiprocessing ends a worker with `os._exit`: finalizers run, exit handlers do not
            multiprocessing.util.Finalize(None, self.end, exitpriority=-1)

    def _at_first_step(self, optimizer: Optimizer) -> None:
        """Record how long the start took and which device is used, once the first step is done.

        With `settings.noise` the gradients of that step are written too.
        """
        with self.problems.noting("looking for other processes of this rank"):
            # Another process of this rank trains too, so the script's processes have no ranks. Its
            # mark ends both.
            if not self.output.first_to_train():
                self.output.tell_race()
        with self.problems.noting("timing the start"):
            cuda.synchronize(self.recorder.devices)
            since_start = perf_counter() - started_at
            self.first_step_seconds = since_start - Waiting.waited_seconds
            self.first_step_clock_seconds = monotonic()
        self._look_at_open_files()
        if cuda.in_use():
            # before CUDA started there was no device to name and no CUDA seed to read
            with self.problems.noting("attesting the device"):
                self._write_attestation(self._applied | {"seed_cuda": process_knobs.seed_of_cuda()})
        if self.settings.noise:
            with self.problems.noting("writing the gradients"):
                write_gradients(optimizer, self.output, self.problems)

    def _look_at_open_files(self) -> None:
        with self.problems.noting("looking at open files"):
            outside.tell_held()

    def finish(self, stopped_by: str) -> None:
        """Write state and summary, once, if this process took a step."""
        if self._finished or not self.recorder.steps:
            return
        self._finished = True
        if self.killed_save is not None:
            self.killed_save.tell_missed()
        with self.problems.noting("writing the last steps"):
            self.recorder.flush()
        if self.settings.preempt_step and not self._border.tells(self.recorder):
            self._tell_boundary(before_update=False)
        self.operators.write()
        with self.problems.noting("watching the knobs"):
            self.guard.poll()
        with self.problems.noting("looking for addresses in the code"):
            tell_addresses()
        with self.problems.noting("looking for splits in the code"):
            tell_splits()
        self._look_at_open_files()
        with self.problems.noting("looking for what the script saved"):
            outside.tell_saved()
        if self.settings.shake:
            # only a shaken run needs this module, so no other run imports it
            from ..variation_readings import tell_code

            with self.problems.noting("looking for what reads the variation"):
                tell_code(self.settings.shake)
        with self.problems.noting("writing the state"):
            self._write_state()
        with self.problems.noting("writing the summary"):
            self._write_summary(stopped_by)

    def end(self) -> None:
        """Finish the records when the script ends, by itself or because the harness stopped it."""
        flush_all()
        # a forked child that never trained holds its parent's session, and must not touch its files
        if self.pid != process_id():
            return
        self.finish("script")
        if not self._ended:
            # A spawned worker calls this twice: from its finalizer and at exit. The second time the
            # exception that ended it is no longer visible.
            self._ended = True
            with self.problems.noting("recording how the process ends"):
                tell_end(self.settings.out, self.output.rank, trained=bool(self.recorder.steps))
        # the script's own exit handlers may have used operators after the last step
        self.operators.write()
        if not self.recorder.steps:
            self._tell_untrained()

    def _tell_untrained(self) -> None:
        """Write `untrained` instead of a summary: the process ended without an optimizer step."""
        if replaced_functions():
            for sentence in replaced_functions():
                self.problems.note(sentence)
            self.attest()
        document = {
            "pid": self.pid,
            "rank": self.output.rank,
            "torch": True,
            "backwards": self._backwards,
            "stopped": self._stopped,
            "imported": ending.trainers(),
        }
        self.output.document_or_complaint("untrained", document)

    def _write_summary(self, stopped_by: str) -> None:
        summary = {
            "steps": self.recorder.steps,
            "stopped_by": stopped_by,
            "environment": environment_survey.parts(self.problems),
            **vars(environment_survey.packages(self.problems, self.settings.tree)),
            "facts": attestation.process_facts(),
            "variables": attestation.told_variables(),
            "peak_memory_bytes": time_and_memory.peak_resident_bytes(),
            "device_memory_bytes": self.recorder.device_peak_bytes(),
            "sampling_intervals": self.schedule.sampling_intervals,
            "optimizer_numbers": self.recorder.optimizer_numbers,
            "parameter_names": self._parameter_names,
            "observe_seconds": self.recorder.observe_seconds,
            "first_step_seconds": self.first_step_seconds,
            "first_step_clock_seconds": self.first_step_clock_seconds,
            "ready_seconds": Waiting.ready_seconds,
            "overridden": self.override_log.total,
            "constant_infinities": self._constant_infinities,
            "carried": self.carried.record(self.recorder.optimizers, draw_lines),
            "replicated": self._replicas.record(self.recorder.optimizer_numbers),
            "configuration": configuration.recorded(self.settings.tree),
            "problems": self._problems_at_the_end(),
            "left_out": self.problems.left_out,
        }
        self.output.document_or_complaint("summary", summary)

    def _standing(self) -> dict[str, torch.Tensor]:
        """Return tensors of model, optimizers, scalers and averages as they are now, by name."""
        recorder = self.recorder
        modules = _arranged(recorder.modules, recorder.module_numbers)
        optimizers = _arranged(recorder.optimizers, recorder.optimizer_numbers)
        tensors = capture(modules, optimizers, recorder.order, self.problems)
        return tensors | self.auxiliary_state.capture(self.problems)

    def _write_state(self) -> None:
        recorder = self.recorder
        modules = _arranged(recorder.modules, recorder.module_numbers)
        optimizers = _arranged(recorder.optimizers, recorder.optimizer_numbers)
        tensors = self._standing()
        with self.problems.noting("comparing buffers with those of the start"):
            self._constant_infinities = self.constants.names(modules)
        path = self.output.path("state", ".safetensors")
        write_safetensors(path, tensors, self.problems.leave_out)
        self._parameter_names = parameter_names(modules, optimizers, recorder.order)

    def _problems_at_the_end(self) -> list[str]:
        for sentence in replaced_functions():
            self.problems.note(sentence)
        return self.problems.sentences


def _arranged(items: list[Kept], numbers: list[int]) -> list[Kept]:
    """Return the items sorted by their numbers."""
    return [item for _, item in sorted(zip(numbers, items, strict=True), key=lambda pair: pair[0])]
