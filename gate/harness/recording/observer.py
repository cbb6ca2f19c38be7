"""Digests of what flows through a step, by fingerprint; `schedule.py` says when.

Fingerprints in the order in which one causes the next: `structure`, `initial`, `random.*`, `batch`,
`input`, (the loss, which the recorder writes), `backward`, `gradients`, `parameters`, `optimizer`.
Each digest is sensitive to every position: a shuffled batch or two swapped weights are another
digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

import torch
from torch.optim import Optimizer

from ..output import Problems
from ..plain_tensors import gradient, structure
from ..tensor_digests import HostCopies, StartedDigest, finish_all, start_parameters
from ..values import start_value
from .gradients import Returned, gradient_versions
from .order import Order
from .random_states import random_states
from .schedule import BATCH, RANDOM, TENSORS, Schedule
from .state import named_tensors, optimized_parameters
from .time_and_memory import StepClock

_NO_COPIES: Final = HostCopies(())


class StepObservation(NamedTuple):
    """What was seen of a step: known fingerprints, and digests whose values may be on the way.

    `batches`, `inputs` and `started` take the values off `copies` in that order.
    `gradients_kept`: nobody has changed the gradients that backward returned.
    """

    fingerprints: dict[str, str]
    gradients_kept: bool
    batches: tuple[StartedDigest, ...]
    inputs: tuple[StartedDigest, ...]
    started: dict[str, StartedDigest]
    copies: HostCopies

    def finish(self) -> tuple[str | None, dict[str, str]]:
        """The digest of the parameters, where it was taken, and those of all other fingerprints.

        To be asked once, when the device has come so far.
        """
        values = iter(
            finish_all((*self.batches, *self.inputs, *self.started.values()), self.copies)
        )
        fingerprints = dict(self.fingerprints)
        for name, several in (("batch", self.batches), ("input", self.inputs)):
            if several:
                fingerprints[name] = _joined([next(values) for _ in several])
        fingerprints |= dict(zip(self.started, values, strict=True))
        if self.gradients_kept and "backward" in fingerprints:
            fingerprints["gradients"] = fingerprints["backward"]
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
        self._inputs: list[StartedDigest] = []
        self._returned: dict[int, Returned] = {}
        self._gradients_kept = False
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

    def note_input(self, arguments: object, step: int) -> None:
        """Digest what the model is called with on the way to this step."""
        if not self.schedule.due(BATCH, step):
            self._left_a_batch_out = True
        else:
            with self._spending(BATCH), self._problems.noting("observing an input"):
                self._inputs.append(start_value(arguments, self._problems.leave_out))

    def after_backward(self, optimizer: Optimizer, step: int, order: Order) -> None:
        """Digest the gradients that backward has just returned, where they are others than before.

        Looked at again before the update: what is another then, the script itself has changed.
        """
        if not self.schedule.due(TENSORS, step):
            return
        with self._spending(TENSORS), self._problems.noting("observing the backward pass"):
            parameters = order.parameters(optimizer)
            versions = gradient_versions(parameters)
            known = self._returned.get(id(optimizer))
            if known is None or versions is None or known.versions != versions:
                started = self._digest("backward", _numbered(map(gradient, parameters)))
                self._returned[id(optimizer)] = Returned(started, versions)

    def look_at_structure(self, number: int, optimizer: Optimizer, step: int, order: Order) -> None:
        """Look at what the update will work on: structure, first parameters."""
        # a script may replace parameters or add groups; comparing identities costs nothing
        identities = tuple(map(id, optimized_parameters(optimizer)))
        if self._structures.get(number) != identities:
            with self._problems.noting("observing the structure"), torch.no_grad():
                self._structures[number] = identities
                self._fingerprints["structure"] = structure_digest(optimizer, order)
                if step == 1:
                    self._start("initial", _numbered(order.parameters(optimizer)))

    def before(self, optimizer: Optimizer, step: int, order: Order) -> None:
        """Look at the gradients that the update will use."""
        if self.schedule.due(TENSORS, step):
            with self._spending(TENSORS), self._problems.noting("observing the gradients"):
                self._start_gradients(optimizer, order.parameters(optimizer), step)

    def _start_gradients(
        self, optimizer: Optimizer, parameters: list[torch.Tensor], step: int
    ) -> None:
        returned = self._returned.pop(id(optimizer), None)
        if returned is not None and not returned.digest.saw_nothing:
            self._started["backward"] = returned.digest
            # at the first step the order of parameters is learned between the two looks
            known = step > 1 and returned.versions is not None
            self._gradients_kept = known and returned.versions == gradient_versions(parameters)
        if not self._gradients_kept:
            self._start("gradients", _numbered(map(gradient, parameters)))

    def unobserved(self, step: int) -> list[str]:
        """The groups of fingerprints that are left out at this step; ask before `after`."""
        left_out = [group for group in (RANDOM, TENSORS) if not self.schedule.due(group, step)]
        return [*left_out, BATCH] if self._left_a_batch_out else left_out

    def after(self, optimizer: Optimizer, step: int, order: Order) -> StepObservation:
        """Look at what the update left, and send everything that was seen to the host."""
        fingerprints, started = self._fingerprints, self._started
        batches, inputs, kept = tuple(self._batches), tuple(self._inputs), self._gradients_kept
        try:
            if self.schedule.due(RANDOM, step):
                with self._spending(RANDOM):
                    fingerprints |= random_states(self._problems)
            tensors = self.schedule.due(TENSORS, step)
            copies = _NO_COPIES
            if tensors or batches or inputs or started:
                with self._spending(TENSORS if tensors else ""):
                    if tensors:
                        self._start_results(optimizer, order.parameters(optimizer))
                    flowing = (*batches, *inputs, *started.values())
                    copies = HostCopies(flowing, self._clock.devices)
            return StepObservation(fingerprints, kept, batches, inputs, started, copies)
        finally:
            # also after a fault: nothing of this step is taken for the next one's
            self._batches, self._inputs, self._started, self._fingerprints = [], [], {}, {}
            self._left_a_batch_out = self._gradients_kept = False

    def _start_results(self, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
        self._started["parameters"] = start_parameters(parameters, self._problems.leave_out)
        self._start("optimizer", _state(optimizer, parameters, self._problems))

    def _start(self, fingerprint: str, tensors: Iterable[tuple[str, torch.Tensor | None]]) -> None:
        started = self._digest(fingerprint, tensors)
        if not started.saw_nothing:
            self._started[fingerprint] = started

    def _digest(
        self, fingerprint: str, tensors: Iterable[tuple[str, torch.Tensor | None]]
    ) -> StartedDigest:
        return StartedDigest(tensors, fingerprint, self._problems.leave_out, fast=True)

    @contextmanager
    def _spending(self, group: str) -> Iterator[None]:
        with self._clock.span(group), torch.no_grad():
            yield


def _joined(digests: list[str]) -> str:
    """One digest of several in their order."""
    joined = hashlib.sha256("\n".join(digests).encode("ascii")).hexdigest()
    return f"sha256:{joined}"


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
