"""Digests of what flows through a step, by stream; `schedule.py` says when.

Streams in the order in which one causes the next: `structure`, `initial`, `random.*`, `batch`,
(the loss, which the recorder writes), `gradients`, `parameters`, `optimizer`. Each digest is
sensitive to every position: a shuffled batch or two swapped weights are another digest.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

from . import cuda
from .digests import StartedDigest, finish_all, start_parameters
from .order import Order
from .output import Problems
from .random_states import random_states
from .schedule import BATCH, RANDOM, TENSORS, Schedule
from .state import named_tensors, optimized_parameters
from .values import value_digest


class Observer:
    """What one process sees of the step that is under way.

    Seconds are spent in three places: when a batch is drawn and before the update, both inside a
    step's time, and after the update. `inside_seconds` is what a step's time must lose.
    """

    def __init__(self, schedule: Schedule, problems: Problems) -> None:
        self.schedule = schedule
        self.inside_seconds = 0.0
        self._problems = problems
        self._batches: list[str] = []
        self._left_a_batch_out = False
        self._structures: dict[int, tuple[int, ...]] = {}
        self._started: dict[str, StartedDigest] = {}
        self._streams: dict[str, str] = {}

    def note_batch(self, value: object, step: int) -> None:
        """Digest a batch that a DataLoader yields on the way to this step."""
        if not self.schedule.due(BATCH, step):
            self._left_a_batch_out = True
        else:
            with self._inside(BATCH), self._problems.noting("observing a batch"):
                self._batches.append(value_digest(value, self._problems.note))

    def before(self, number: int, optimizer: Optimizer, step: int, order: Order) -> None:
        """Look at what the update will work on: structure, first parameters, gradients."""
        with self._inside(""), self._problems.noting("observing the structure"):
            parameters = order.parameters(optimizer)
            identities = tuple(map(id, optimized_parameters(optimizer)))
            if self._structures.get(number) != identities:
                self._structures[number] = identities
                self._streams["structure"] = structure_digest(optimizer, order)
                if step == 1:
                    self._start("initial", _numbered(parameters))
        if self.schedule.due(TENSORS, step):
            # Waits on both sides, so that the reductions are no part of the update's time.
            with self._inside(TENSORS), self._problems.noting("observing the gradients"):
                cuda.wait()
                self._start("gradients", _numbered([each.grad for each in parameters]))
                cuda.wait()

    def unobserved(self, step: int) -> list[str]:
        """The groups of streams that are left out at this step; ask before `after`."""
        left_out = [group for group in (RANDOM, TENSORS) if not self.schedule.due(group, step)]
        return [*left_out, BATCH] if self._left_a_batch_out else left_out

    def after(
        self, optimizer: Optimizer, step: int, order: Order
    ) -> tuple[str | None, dict[str, str]]:
        """The digest of the parameters, when it is its turn, and those of all other streams."""
        if self.schedule.due(RANDOM, step):
            with self._spending(RANDOM):
                self._streams |= random_states(self._problems)
        if self._batches:
            joined = hashlib.sha256("\n".join(self._batches).encode("ascii")).hexdigest()
            self._streams["batch"] = f"sha256:{joined}"
        with self._spending(TENSORS if self.schedule.due(TENSORS, step) else ""):
            if self.schedule.due(TENSORS, step):
                self._start_results(optimizer, order.parameters(optimizer))
            digests = finish_all(list(self._started.values()))
            streams = self._streams | dict(zip(self._started, digests, strict=True))
        self._batches, self._started, self._streams = [], {}, {}
        self._left_a_batch_out = False
        return streams.pop("parameters", None), streams

    def close_step(self, step: int, step_seconds: float | None, observe_seconds: float) -> None:
        """Hand the step's times to the schedule."""
        self.schedule.close_step(step, step_seconds, observe_seconds)
        self.inside_seconds = 0.0

    def _start_results(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        self._started["parameters"] = start_parameters(parameters, self._problems.note)
        self._start("optimizer", _state(optimizer, parameters, self._problems))

    def _start(self, stream: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        started = StartedDigest(tensors, stream, self._problems.note, fast=True)
        self._started[stream] = started

    @contextmanager
    def _inside(self, group: str) -> Iterator[None]:
        begun = time.perf_counter()
        with self._spending(group):
            yield
        self.inside_seconds += time.perf_counter() - begun

    @contextmanager
    def _spending(self, group: str) -> Iterator[None]:
        """Time the body; the empty group is what no thinning can avoid."""
        begun = time.perf_counter()
        with torch.no_grad():
            yield
        if group:
            self.schedule.spend(group, time.perf_counter() - begun)


def structure_digest(optimizer: Optimizer, order: Order) -> str:
    """`sha256:hex` over each group's parameters in order: name, type, shape, wants a gradient."""
    lines = []
    for position, parameters in enumerate(order.groups(optimizer)):
        for parameter in parameters:
            facts = (parameter.dtype, tuple(parameter.shape), parameter.requires_grad)
            lines.append(f"{position} {order.name(parameter)} {facts}\n")
    text = "".join(lines).encode("utf-8", "backslashreplace")
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def _numbered(
    tensors: Iterable[torch.Tensor | None],
) -> Iterator[tuple[str, torch.Tensor | None]]:
    return ((str(index), tensor) for index, tensor in enumerate(tensors))


def _state(
    optimizer: Optimizer, parameters: Sequence[torch.Tensor], problems: Problems
) -> Iterator[tuple[str, torch.Tensor]]:
    """The state of each parameter in their order, by sorted keys."""
    for index, parameter in enumerate(parameters):
        state = optimizer.state.get(parameter, {})
        for key in sorted(state, key=str):
            yield from named_tensors(f"{index}/{key}", state[key], problems)
