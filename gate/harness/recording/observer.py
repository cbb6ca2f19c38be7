"""Digests of what flows through a step, by fingerprint; `schedule.py` says when.

Fingerprints in the order in which one causes the next: `structure`, `initial`, `random.*`, `batch`,
(the loss, which the recorder writes), `gradients`, `parameters`, `optimizer`. Each digest is
sensitive to every position: a shuffled batch or two swapped weights are another digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from ..output import Problems
from ..tensors.digests import HostCopies, StartedDigest, finish_all, start_parameters
from ..tensors.plain_parts import gradient, structure
from ..tensors.values import start_value
from .clock import StepClock
from .order import Order
from .random_states import random_states
from .schedule import BATCH, RANDOM, TENSORS, Schedule
from .state import named_tensors, optimized_parameters


class StepObservation(NamedTuple):
    """What was seen of a step: known fingerprints, and digests whose values may be on the way.

    `batches` and `started` take the values off `copies` in that order.
    """

    fingerprints: dict[str, str]
    batches: tuple[StartedDigest, ...]
    started: dict[str, StartedDigest]
    copies: HostCopies

    def finish(self) -> tuple[str | None, dict[str, str]]:
        """The digest of the parameters, where it was taken, and those of all other fingerprints.

        To be asked once, when the device has come so far.
        """
        digests = finish_all((*self.batches, *self.started.values()), self.copies)
        batches, tensors = digests[: len(self.batches)], digests[len(self.batches) :]
        fingerprints = self.fingerprints | dict(zip(self.started, tensors, strict=True))
        if batches:
            joined = hashlib.sha256("\n".join(batches).encode("ascii")).hexdigest()
            fingerprints["batch"] = f"sha256:{joined}"
        return fingerprints.pop("parameters", None), fingerprints


class Observer:
    """What one process sees of the step that is under way, without waiting for a device.

    Time is spent in three places: when a batch is drawn and before the update, both inside a
    step's time, and after the update. Each is a span on the `clock`.
    """

    def __init__(self, schedule: Schedule, problems: Problems, clock: StepClock) -> None:
        self.schedule = schedule
        self._problems = problems
        self._clock = clock
        self._batches: list[StartedDigest] = []
        self._left_a_batch_out = False
        self._structures: dict[int, tuple[int, ...]] = {}
        self._started: dict[str, StartedDigest] = {}
        self._fingerprints: dict[str, str] = {}

    def note_batch(self, value: object, step: int) -> None:
        """Digest a batch that a DataLoader yields on the way to this step."""
        if not self.schedule.due(BATCH, step):
            self._left_a_batch_out = True
        else:
            with self._spending(BATCH), self._problems.noting("observing a batch"):
                self._batches.append(start_value(value, self._problems.leave_out))

    def before(self, number: int, optimizer: Optimizer, step: int, order: Order) -> None:
        """Look at what the update will work on: structure, first parameters, gradients."""
        with self._spending(""), self._problems.noting("observing the structure"):
            parameters = order.parameters(optimizer)
            # a script may replace parameters or add groups; comparing identities costs nothing
            identities = tuple(map(id, optimized_parameters(optimizer)))
            if self._structures.get(number) != identities:
                self._structures[number] = identities
                self._fingerprints["structure"] = structure_digest(optimizer, order)
                if step == 1:
                    self._start("initial", _numbered(parameters))
        if self.schedule.due(TENSORS, step):
            with self._spending(TENSORS), self._problems.noting("observing the gradients"):
                self._start("gradients", _numbered(map(gradient, parameters)))

    def unobserved(self, step: int) -> list[str]:
        """The groups of fingerprints that are left out at this step; ask before `after`."""
        left_out = [group for group in (RANDOM, TENSORS) if not self.schedule.due(group, step)]
        return [*left_out, BATCH] if self._left_a_batch_out else left_out

    def after(self, optimizer: Optimizer, step: int, order: Order) -> StepObservation:
        """Look at what the update left, and send everything that was seen to the host."""
        fingerprints, batches, started = self._fingerprints, tuple(self._batches), self._started
        try:
            if self.schedule.due(RANDOM, step):
                with self._spending(RANDOM):
                    fingerprints |= random_states(self._problems)
            with self._spending(TENSORS if self.schedule.due(TENSORS, step) else ""):
                if self.schedule.due(TENSORS, step):
                    self._start_results(optimizer, order.parameters(optimizer))
                copies = HostCopies((*batches, *started.values()), self._clock.devices)
            return StepObservation(fingerprints, batches, started, copies)
        finally:
            # also after a fault: nothing of this step is taken for the next one's
            self._batches, self._started, self._fingerprints = [], {}, {}
            self._left_a_batch_out = False

    def _start_results(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        self._started["parameters"] = start_parameters(parameters, self._problems.leave_out)
        self._start("optimizer", _state(optimizer, parameters, self._problems))

    def _start(self, fingerprint: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        started = StartedDigest(tensors, fingerprint, self._problems.leave_out, fast=True)
        if not started.saw_nothing:
            self._started[fingerprint] = started

    @contextmanager
    def _spending(self, group: str) -> Iterator[None]:
        with self._clock.span(group), torch.no_grad():
            yield


def structure_digest(optimizer: Optimizer, order: Order) -> str:
    """`sha256:hex` over each group's parameters in order: name, type, shape, wants a gradient."""
    lines = (
        f"{position} {order.name(parameter)} {structure(parameter)}\n"
        for position, parameters in enumerate(order.groups(optimizer))
        for parameter in parameters
    )
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
