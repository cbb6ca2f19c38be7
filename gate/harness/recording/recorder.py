"""Record every optimizer step of this process: loss, digests, time, memory.

Each step becomes one line of `steps-rR-P.jsonl` (docs/harness-protocol.md).
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from .. import cuda
from ..output import FLOAT_TYPES, Output, Problems, exact
from ..plain_tensors import UnsupportedTensorError, own_number
from ..settings import perf_counter
from ..tensor_digests import bodies_once
from ..user_code import inside_backward
from . import first_inputs, time_and_memory
from .auxiliary_state import Skipped, unscaled
from .first_inputs import Arguments
from .given import MAX_SAMPLES, GivenSettings, samples_in
from .gradients import ReturnedGradients
from .module_search import outermost_owners
from .observer import TENSORS, Generators, Observer, Schedule, StepObservation
from .state import SortKey, TensorOrder, module_key, optimized_parameters, parameter_order
from .time_and_memory import HarnessSpan, StepClock, StepTimes, TimeMark, has_reached, wait_for

# per step; beyond that, each further loss overwrites the last one kept
MAX_LOSSES: Final = 256
# Without a device, lines are written together, at most this many seconds apart. Between two steps
# of a few milliseconds the CPU caches hold the training's data, and a system call costs ten times
# as much.
LINES_SECONDS: Final = 0.5
# Up to this step each line is written at once: the cost of the first steps decides which later ones
# are observed.
AT_ONCE_STEPS: Final = 10
_AS_IT_IS: Final = nullcontext()
_FLOATS: Final = frozenset(getattr(torch, name) for name in FLOAT_TYPES)


class OpenStep(NamedTuple):
    """A finished step whose line is written once the device has computed its values.

    `known` holds what the host already knows. `losses` and `skipped` may still be on their way from
    the device. On the CPU there is nothing to wait for.
    """

    known: dict[str, Any]
    losses: list[torch.Tensor | None]
    skipped: Skipped
    seen: StepObservation | None
    times: StepTimes


class Recorder:
    """Records what the training does, one line for each step.

    The recorder never waits for work of the current step on a device. It starts copies to the host
    and writes the line when they have arrived. That is at the latest at the next step of the same
    optimizer. So the host can run ahead as without the harness, by one step at most. Without a
    device, the lines of `LINES_SECONDS` are written together.

    Modules and optimizers are kept alive until the state is written, even if the script drops them.
    `steps` is the largest step count of any single optimizer. Without `observe` only loss, time and
    memory are recorded.
    """

    def __init__(
        self, output: Output, problems: Problems, schedule: Schedule, *, observe: bool
    ) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.steps = 0
        self.observe_seconds = 0.0
        self.just_wrote = False
        self._device_memory = time_and_memory.DevicePeak()
        self._output = output
        self._problems = problems
        self._schedule = schedule
        self._clock = StepClock()
        self._observer = Observer(schedule, problems, self._clock) if observe else None
        self._gradients = ReturnedGradients(problems, self._clock)
        self.order = TensorOrder()
        self._burst = 0
        self._passed = False
        self._module_keys: list[SortKey] = []
        self._optimizer_keys: list[SortKey] = []
        self._step_counts: list[int] = []
        self._losses: list[torch.Tensor | None] = []
        self._derived: list[torch.Tensor | None] = []
        self._backwards = 0
        self._samples: int | None = 0
        self._rows: int | None = 0
        self._batch_threads: set[int] = set()
        self._model_threads: set[int] = set()
        self._given = GivenSettings()
        self._about_the_last: HarnessSpan | None = None
        self._ended: tuple[tuple[HarnessSpan, ...], TimeMark] | None = None
        self._open: deque[OpenStep] = deque()
        self._write_seconds = 0.0
        self._written_at = 0.0

    @property
    def generators(self) -> Generators:
        """Which generators the training drew from; empty if nothing is observed."""
        return Generators() if self._observer is None else self._observer.generators

    @property
    def devices(self) -> cuda.Devices:
        """The GPUs that hold the optimized parameters."""
        return self._clock.devices

    def note_backward(self, loss: torch.Tensor) -> None:
        """Remember the loss that `backward` was called on, as it was before `GradScaler.scale`.

        The value is copied on its own device and not read. Reading would make the host wait for the
        device. A replayed CUDA graph may overwrite the original in place.
        """
        begun = self._clock.mark()
        self._backwards += 1
        self._passed = True
        self._remember(self._losses, unscaled(loss))
        self._clock.spent_since(begun)
        # a backward pass inside another, as of reentrant checkpointing: the outer one goes on
        if inside_backward():
            return
        first_inputs.await_input()
        # With several optimizers, each has its own step count: `look` asks the schedule for each.
        only = len(self.optimizers) == 1
        if self._observer is None or (only and not self._schedule.due(TENSORS, self.steps + 1)):
            return
        self._gradients.look(self._observer, self._backwards, self)

    def note_grad(self, loss: torch.Tensor) -> None:
        """Remember a scalar of `torch.autograd.grad`: the loss of a step without a backward pass.

        Beside a backward pass such gradients serve something else, for example a gradient penalty.
        """
        self._passed = True
        self._remember(self._derived, unscaled(loss))

    def _remember(self, losses: list[torch.Tensor | None], loss: torch.Tensor) -> None:
        # Overwrite the last place when the list is full: `loss` is defined as that of the step's
        # last pass.
        del losses[MAX_LOSSES - 1 :]
        # the fast path of nearly every loss, without a look at wrapper classes or other devices
        if type(loss) is torch.Tensor and _is_plain_number(loss):
            losses.append(loss.detach().clone())
            return
        number = None
        try:
            number = own_number(loss)
        except UnsupportedTensorError as error:
            self._problems.leave_out(f"a loss is left out: {error}")
        if number is not None and number.dtype not in _FLOATS:
            self._problems.leave_out(f"a loss is left out: it is of type {number.dtype}")
            number = None
        losses.append(None if number is None else number.clone())

    def note_batch(self, batch: object, *, collated: bool) -> None:
        """Digest a batch that a DataLoader yields and count its samples for the step to come.

        `collated` is true if the DataLoader assembled the batch from samples, so that its first
        dimension counts them.
        """
        begun = self._clock.mark()
        self._batch_threads.add(threading.get_ident())
        self._samples = _sum(self._samples, samples_in(batch) if collated else None)
        self._clock.spent_since(begun)
        if self._observer is not None:
            with cuda.free_to_wait():
                self._observer.note_batch(batch, self.steps + 1)

    def note_input(self, arguments: Arguments) -> None:
        """Digest the arguments of the model's first call since the last pass or step.

        The first dimension is recorded as `rows`. It is all that is known about batch sizes where
        no DataLoader yields the batches.
        """
        begun = self._clock.mark()
        self._model_threads.add(threading.get_ident())
        self._rows = _sum(self._rows, samples_in(arguments if arguments[1] else arguments[0]))
        self._clock.spent_since(begun)
        if self._observer is not None:
            with cuda.free_to_wait():
                self._observer.note_input(arguments, self.steps + 1)

    def _draws_ahead(self) -> bool:
        """Whether a thread that never calls the model draws batches.

        Only that thread's pace then decides for which step a batch is drawn, so batches cannot be
        assigned to steps. The fingerprint of the model's input shows the same data when it is used.
        """
        return bool(self._batch_threads - self._model_threads - {threading.get_ident()})

    def before(self, optimizer: Optimizer) -> None:
        """Observe gradients and settings of an optimizer that is about to step.

        An error in here becomes a problem of the run and never reaches the script.
        """
        with cuda.free_to_wait(), self._bodies_once(optimizer):
            begun = self._clock.mark()
            number = self._number(optimizer)
            step = self._step_counts[number] + 1
            with self._device_memory.of_the_harness(self._clock.devices):
                if self._observer is not None:
                    self._observer.look_at_structure(number, optimizer, step, self.order)
                with self._problems.noting("reading an optimizer's settings"):
                    self._given.note(number, optimizer, step)
                self._clock.spent_since(begun)
                if self._observer is not None:
                    self._observer.before(optimizer, step, self.order)

    def _bodies_once(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        """Cache digests before an optimizer's first step, where several uses share the tensors."""
        new = all(known is not optimizer for known in self.optimizers)
        return bodies_once() if new else _AS_IT_IS

    def steps_of(self, optimizer: Optimizer) -> int:
        """Return the number of recorded steps of this optimizer."""
        counts = zip(self.optimizers, self._step_counts, strict=True)
        return next((count for known, count in counts if known is optimizer), 0)

    def have_taken(self, steps: int, optimizers: int) -> bool:
        """Whether at least `optimizers` optimizers exist, each with at least `steps` steps."""
        counts = self._step_counts
        return len(counts) >= optimizers and min(counts, default=0) >= steps

    def end_step(self, optimizer: Optimizer) -> None:
        """Mark the end of the step: time from here on is the harness's, not the step's."""
        with cuda.free_to_wait():
            self._number(optimizer)
            # taken before anything else is done, so that no work of the harness counts as the
            # step's
            self._ended = self._clock.take_spans(), self._clock.mark()

    def observe(self, optimizer: Optimizer, *, skipped: Skipped = None) -> None:
        """Record the step that `optimizer` has just made; an error becomes a problem of the run.

        `skipped` says whether a `GradScaler` skipped the step, and is None without a scaler. The
        step ended when `end_step` was called, or else it ends here.
        """
        with cuda.free_to_wait():
            number = self._number(optimizer)
            inside, done = self._ended or (self._clock.take_spans(), self._clock.mark())
            self._ended, self.just_wrote = None, False
            self._step_counts[number] += 1
            self.steps = max(self._step_counts)
            with self._problems.noting("recording a step"):
                times = StepTimes(self._about_the_last, inside, done, (), done)
                self._open_step(number, skipped, times)
            self._gradients.close_step(optimizer, self._backwards)
            self._losses, self._derived, self._backwards = [], [], 0
            self._samples, self._rows = 0, 0
            first_inputs.await_input()
            self._write_known(number)
            self._about_the_last = HarnessSpan("", done, self._clock.mark())

    def device_peak_bytes(self) -> int:
        """Return the training's peak of allocated device memory in bytes; 0 without a device."""
        return self._device_memory.read(self._clock.devices)

    def flush(self) -> None:
        """Write the lines of all open steps, waiting for values that are still being copied."""
        with cuda.free_to_wait():
            steps, self._open = list(self._open), deque()
            self._write(steps)
        # no later line can account for the time of this last write
        self.observe_seconds += self._write_seconds
        self._write_seconds = 0.0

    def _number(self, optimizer: Optimizer) -> int:
        """Return the optimizer's place in the order of first steps; register a new one."""
        for number, known in enumerate(self.optimizers):
            if known is optimizer:
                return number
        self.optimizers.append(optimizer)
        self._step_counts.append(0)
        self._clock.follow(cuda.devices_of(optimized_parameters(optimizer)))
        if self._clock.devices:
            self._schedule.leave_steps_alone()
        # A backward pass in between starts a new burst: only within a burst may a set have decided
        # the order. A closure runs its passes inside the step of an earlier optimizer.
        self._burst += self._passed
        self._passed = False
        with self._problems.noting("looking for the model"):
            self._find_modules(optimizer)
        key = SortKey(self._burst, "", "")
        # Finding the order digests all parameters. So the one-time work of a device's first digest
        # is done here, before any step is timed.
        with self._problems.noting("finding the optimizer's order"):
            key = self.order.optimizer_key(optimizer, self._burst)
        self._optimizer_keys.append(key)
        return len(self.optimizers) - 1

    def lagging(self) -> list[Optimizer]:
        """Return the optimizers that have yet to take the latest step of those they step with.

        A script may iterate over a set of optimizers, in a different order in each process.
        Stopping after the first of them would leave a different state each time.
        """
        latest = {
            key.burst
            for key, count in zip(self._optimizer_keys, self._step_counts, strict=True)
            if count == self.steps
        }
        rows = zip(self.optimizers, self._optimizer_keys, self._step_counts, strict=True)
        return [
            optimizer
            for optimizer, key, count in rows
            if key.burst in latest and count == self.steps - 1
        ]

    @property
    def optimizer_numbers(self) -> list[int]:
        """The number of each optimizer, in an order that is equal in all runs (`state.py`)."""
        return parameter_order(
            self._optimizer_keys, lambda index: self.order.parameters(self.optimizers[index])
        )

    @property
    def module_numbers(self) -> list[int]:
        """The number of each module, in the same kind of order."""
        return parameter_order(self._module_keys, lambda index: self.modules[index].parameters())

    def _find_modules(self, optimizer: Optimizer) -> None:
        owned = {id(parameter) for module in self.modules for parameter in module.parameters()}
        parameters = optimized_parameters(optimizer)
        # searching for modules is slow, so only parameters without a known module cause it
        new = [parameter for parameter in parameters if id(parameter) not in owned]
        if new:
            for module in outermost_owners(new, self._problems):
                self.modules.append(module)
                self._module_keys.append(module_key(module, self._burst))
                self.order.learn(module)

    def _open_step(self, number: int, skipped: Skipped, times: StepTimes) -> None:
        """Queue the step's record and start copying its values from the device to the host."""
        optimizer, step = self.optimizers[number], self._step_counts[number]
        devices = self._clock.devices
        if self._draws_ahead():
            self._samples = None
            if self._observer is not None:
                self._observer.drop_batches()
        known: dict[str, Any] = {
            "step": step,
            "optimizer": number,
            "backwards": self._backwards,
            "samples": self._samples,
            "rows": self._rows,
            "unobserved": [],
            "threads": threading.active_count(),
            "device_bytes": cuda.allocated_bytes(devices),
        }
        with self._problems.noting("reading an optimizer's settings"):
            known |= self._given.take(number, optimizer, step)
        seen = None
        if self._observer is not None:
            known["unobserved"] = self._observer.unobserved(step)
            with (
                self._problems.noting("observing a step"),
                # digests need scratch memory on the device, which is no peak of the training
                self._device_memory.of_the_harness(devices),
            ):
                seen = self._observer.after(optimizer, step, self.order)
        losses = [_sent(loss, devices) for loss in self._losses or self._derived]
        if isinstance(skipped, torch.Tensor):
            skipped = _sent(skipped, devices)
        times = times._replace(after=self._clock.take_spans(), observed=self._clock.mark())
        self._open.append(OpenStep(known, losses, skipped, seen, times))

    def _write_known(self, number: int) -> None:
        """Write every line that is ready, and all but the latest of this optimizer's open steps."""
        early = perf_counter() - self._written_at < LINES_SECONDS and self.steps > AT_ONCE_STEPS
        if early and not self._clock.devices:
            return
        steps = []
        while self._open:
            # Without a device nothing is waited for, and thousands of steps may be queued.
            if has_reached(self._open[0].times.observed):
                steps.append(self._open.popleft())
                continue
            mine = sum(step.known["optimizer"] == number for step in self._open)
            # One open step of an optimizer may stay queued, two may not. Otherwise the host would
            # run ahead without limit and keep the digests' copies of every step.
            if mine <= 1:
                break
            steps.append(self._open.popleft())
        self._write(steps)

    def _write(self, steps: list[OpenStep]) -> None:
        for step in steps:
            wait_for(step.times.observed)
        if not steps:
            return
        begun = perf_counter()
        # a write cannot report its own time, so these lines share the time of the previous write
        before = self._write_seconds / len(steps)
        # one reading for all lines of this write: each costs a system call
        about = {"memory_bytes": time_and_memory.resident_bytes()}
        lines = []
        for step in steps:
            with self._problems.noting("recording a step"):
                lines.append(self._line(step, before) | about)
        with self._problems.noting("recording a step"):
            self._output.append_lines("steps", lines)
        self.just_wrote = True
        self._written_at = perf_counter()
        self._write_seconds = self._written_at - begun

    def _line(self, step: OpenStep, write_seconds: float) -> dict[str, Any]:
        """Return the record of a step whose device work is done; feed its times to the schedule."""
        whole, harness_seconds = step.times.whole_seconds(), step.times.harness_seconds()
        seconds = None if whole is None else max(0.0, whole - harness_seconds)
        observe_seconds = step.times.observe_seconds() + write_seconds
        parameters, fingerprints = (None, {}) if step.seen is None else step.seen.finish()
        losses = [None if loss is None else exact(loss) for loss in step.losses]
        self.observe_seconds += observe_seconds
        groups = step.times.group_seconds()
        self._schedule.close_step(step.known["step"], seconds, observe_seconds, groups)
        return step.known | {
            "loss": losses[-1] if losses else None,
            "losses": losses,
            "parameters": parameters,
            "fingerprints": fingerprints,
            "skipped": None if step.skipped is None else bool(step.skipped),
            "seconds": seconds,
            "harness_seconds": harness_seconds,
            "observe_seconds": observe_seconds,
        }


def _sum(counted: int | None, more: int | None) -> int | None:
    """Add two sample counts; None if either is unknown or the sum exceeds `MAX_SAMPLES`."""
    if counted is None or more is None or counted + more > MAX_SAMPLES:
        return None
    return counted + more


def _is_plain_number(loss: torch.Tensor) -> bool:
    """Whether the loss is a float scalar in host memory, as nearly every loss is."""
    return loss.device.type == "cpu" and loss.dtype in _FLOATS and not loss.dim()


def _sent(scalar: torch.Tensor | None, devices: cuda.Devices) -> torch.Tensor | None:
    """Start copying the scalar to the host, without blocking if its device is followed."""
    if scalar is None or scalar.device.type == "cpu":
        return scalar
    return scalar.to("cpu", non_blocking=scalar.device in devices)
