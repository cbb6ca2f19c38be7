"""Records every optimizer step of this process: loss, digests, time, memory."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from . import cuda, memory
from .companions import unscaled
from .exact_number import FLOAT_TYPES, exact
from .modules import outermost_owners
from .observer import Observer
from .order import Order, Place, module_place, ranking
from .output import Output, Problems
from .state import optimized_parameters

# Of one step; beyond it the last one replaces its forerunner.
MAX_LOSSES = 256


class Recorder:
    """What the training does, one line a step.

    Modules and optimizers are kept alive until the state is written, even if the script drops
    them. `steps` is the largest number of steps of any one optimizer. Without an `observer` only
    loss, time and memory are recorded.
    """

    def __init__(self, output: Output, problems: Problems, observer: Observer | None) -> None:
        self.modules: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        self.steps = 0
        self.observe_seconds = 0.0
        self._output = output
        self._problems = problems
        self._observer = observer
        self.order = Order()
        self._burst = 0
        self._module_places: list[Place] = []
        self._optimizer_places: list[Place] = []
        self._step_counts: list[int] = []
        self._losses: list[torch.Tensor | None] = []
        self._derived: list[torch.Tensor | None] = []
        self._backwards = 0
        self._observed_until: float | None = None

    def note_backward(self, loss: torch.Tensor) -> None:
        """Remember the scalar that `backward` was called on, as it was before a `GradScaler`.

        Only referred to, not read: reading would make the host wait for the device here.
        """
        self._backwards += 1
        _remember(self._losses, unscaled(loss))

    def note_grad(self, loss: torch.Tensor) -> None:
        """Remember what a script derived without `backward`: the loss of a step that has no other.

        Beside a backward pass such gradients serve something else, a penalty for example.
        """
        _remember(self._derived, unscaled(loss))

    def note_batch(self, batch: object) -> None:
        """Observe what a DataLoader yields; it belongs to the step that comes next."""
        if self._observer is not None:
            self._observer.note_batch(batch, self.steps + 1)

    def before(self, optimizer: Optimizer) -> None:
        """Look at an optimizer that is about to step; faults become problems."""
        begun = time.perf_counter()
        number = self._number(optimizer)
        if self._observer is not None:
            self._observer.inside_seconds += time.perf_counter() - begun
            step = self._step_counts[number] + 1
            self._observer.before(number, optimizer, step, self.order)

    def steps_of(self, optimizer: Optimizer) -> int:
        """How many steps of this optimizer are on record."""
        counts = zip(self.optimizers, self._step_counts, strict=True)
        return next((count for known, count in counts if known is optimizer), 0)

    def observe(self, optimizer: Optimizer, *, skipped: bool | None = None) -> None:
        """Record the step that `optimizer` has just made; faults become problems.

        `skipped` tells whether a `GradScaler` skipped it, and is None without one.
        """
        now = self._now()
        inside = 0.0 if self._observer is None else self._observer.inside_seconds
        since = self._observed_until
        seconds = None if since is None else max(0.0, now - since - inside)
        number = self._number(optimizer)
        self._step_counts[number] += 1
        self.steps = max(self._step_counts)
        with self._problems.noting("recording a step"), torch.no_grad():
            self._record(number, seconds, now - inside, skipped=skipped)
        self._losses, self._derived, self._backwards = [], [], 0
        self._observed_until = time.perf_counter()
        spent = self._observed_until - now + inside
        self.observe_seconds += spent
        if self._observer is not None:
            self._observer.close_step(self._step_counts[number], seconds, spent)

    def _now(self) -> float:
        """The time at which the step's work is done, on the device too."""
        with self._problems.noting("waiting for the device"):
            cuda.wait()
        return time.perf_counter()

    def _number(self, optimizer: Optimizer) -> int:
        """The optimizer's place in the order of first steps."""
        for number, known in enumerate(self.optimizers):
            if known is optimizer:
                return number
        self.optimizers.append(optimizer)
        self._step_counts.append(0)
        self._burst += bool(self._backwards or self._derived)
        with self._problems.noting("looking for the model"):
            self._find_modules(optimizer)
        place = Place(self._burst, "", "")
        with self._problems.noting("finding the optimizer's place"):
            place = self.order.optimizer_place(optimizer, self._burst)
        self._optimizer_places.append(place)
        return len(self.optimizers) - 1

    def lagging(self) -> list[Optimizer]:
        """Those that have yet to take the latest step of the optimizers they always step with.

        Where a set decides which of them goes first, stopping after the first would end in another
        state each time.
        """
        latest = {
            place.burst
            for place, count in zip(self._optimizer_places, self._step_counts, strict=True)
            if count == self.steps
        }
        rows = zip(self.optimizers, self._optimizer_places, self._step_counts, strict=True)
        return [
            optimizer
            for optimizer, place, count in rows
            if place.burst in latest and count == self.steps - 1
        ]

    @property
    def optimizer_numbers(self) -> list[int]:
        """The number of each optimizer in an order that no set decides; see `order.py`."""
        return ranking(
            self._optimizer_places, lambda index: self.order.parameters(self.optimizers[index])
        )

    @property
    def module_numbers(self) -> list[int]:
        """The number of each module likewise."""
        return ranking(self._module_places, lambda index: self.modules[index].parameters())

    def _find_modules(self, optimizer: Optimizer) -> None:
        owned = {id(parameter) for module in self.modules for parameter in module.parameters()}
        parameters = optimized_parameters(optimizer)
        new = [parameter for parameter in parameters if id(parameter) not in owned]
        if new:
            for module in outermost_owners(new, self._problems):
                self.modules.append(module)
                self._module_places.append(module_place(module, self._burst))
                self.order.learn(module)

    def _record(
        self, number: int, seconds: float | None, begun: float, *, skipped: bool | None
    ) -> None:
        """Write the step's line; `begun` is when observing began, had it all been in one piece."""
        optimizer, step = self.optimizers[number], self._step_counts[number]
        parameters, streams, unobserved = None, dict[str, str](), list[str]()
        if self._observer is not None:
            unobserved = self._observer.unobserved(step)
            parameters, streams = self._observer.after(optimizer, step, self.order)
        losses = [None if loss is None else exact(loss) for loss in self._losses or self._derived]
        line: dict[str, Any] = {
            "step": step,
            "optimizer": number,
            "loss": losses[-1] if losses else None,
            "losses": losses,
            "backwards": self._backwards,
            "parameters": parameters,
            "streams": streams,
            "unobserved": unobserved,
            "skipped": skipped,
            "seconds": seconds,
            "memory_bytes": memory.resident_bytes(),
            "device_bytes": cuda.allocated_bytes(),
            "observe_seconds": time.perf_counter() - begun,
        }
        self._output.append_line("steps", line)


def _remember(losses: list[torch.Tensor | None], loss: torch.Tensor) -> None:
    is_scalar = loss.numel() == 1 and str(loss.dtype).removeprefix("torch.") in FLOAT_TYPES
    del losses[MAX_LOSSES - 1 :]
    losses.append(loss.detach() if is_scalar else None)
