"""The gradients as backward returned them, and weights that a script changes by itself.

What a script does to gradients by hand (clipping, noise, sums over ranks) happens between the
backward pass and the update. A look on both sides distinguishes it from the backward pass itself.

Such a script is never seen to take a step. Waiting for its end helps nobody, so it is reported
after few passes; a script that only accumulates gradients changes no weight in between and goes on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from .. import cuda
from ..output import Problems
from ..plain_tensors import UnsupportedTensorError, gradient, plain_parts
from ..tensor_digests import StartedDigest, bodies_once
from .module_search import known_optimizers, outermost_owners
from .state import TensorOrder, optimized_parameters
from .time_and_memory import StepClock

# A script may have an optimizer for each parameter: there the update follows at once.
MAX_OPTIMIZERS = 8
# of the first step, when nobody knows yet which pass will be its last
MAX_FIRST_PASSES = 8
# from here on an optimizer that has not stepped is taken for one that never will
SETTLED_STEPS = 2

Versions = tuple[tuple[int, int] | None, ...]


class Returned(NamedTuple):
    """A digest of gradients, and the versions of the tensors that it was made of."""

    digest: StartedDigest
    versions: Versions | None


def gradient_versions(parameters: Sequence[torch.Tensor]) -> Versions | None:
    """Those of the tensors that hold the gradients."""
    return versions_of([gradient(parameter) for parameter in parameters])


def versions_of(tensors: Sequence[torch.Tensor | None]) -> Versions | None:
    """Which tensors these are and how often each was written; None where none can tell."""
    try:
        return tuple(
            None if tensor is None else (id(tensor), tensor._version)  # noqa: SLF001 - no public name
            for tensor in tensors
        )
    except RuntimeError:
        return None


class Looking(Protocol):
    """Who looks at the weights and gradients of an optimizer."""

    def look_at_weights(
        self, optimizers: Sequence[tuple[Optimizer, int]], order: TensorOrder, *, first_pass: bool
    ) -> None:
        """A pass has used what these optimizers update, each on the way to its own step."""

    def after_backward(self, optimizer: Optimizer, step: int, order: TensorOrder) -> None:
        """Backward has returned on the way to this step."""


class Steps(Protocol):
    """Which optimizers have stepped, how often, and in which order their parameters are read."""

    steps: int
    optimizers: list[Optimizer]
    order: TensorOrder

    def steps_of(self, optimizer: Optimizer) -> int:
        """How many steps of this optimizer are on record."""


class ReturnedGradients:
    """Chooses at which pass to look at which optimizer: at the last one before its update.

    How many passes an update takes is known from the one before. Before the first step an optimizer
    has not been seen either, so all that there are are looked at.
    """

    def __init__(self, problems: Problems, clock: StepClock) -> None:
        self._problems = problems
        self._clock = clock
        self._searched = False
        self._waiting: list[Optimizer] = []
        self._passes: dict[int, int] = {}

    def look(self, looking: Looking, passes: int, steps: Steps) -> None:
        """A pass has returned, the n-th since the last step."""
        with cuda.free_to_wait(), self._problems.noting("looking at gradients"):
            if not self._searched and not steps.optimizers:
                with self._clock.span(), bodies_once():
                    self._search(steps.order)
            self._searched = True
            if steps.steps >= SETTLED_STEPS:
                self._waiting.clear()
            known = {
                id(known_optimizer): known_optimizer
                for known_optimizer in (*steps.optimizers, *self._waiting)
            }
            if len(known) <= MAX_OPTIMIZERS:
                to_step = [
                    (known_optimizer, steps.steps_of(known_optimizer) + 1)
                    for known_optimizer in known.values()
                ]
                due = [pair for pair in to_step if self._due(id(pair[0]), passes)]
                if due or passes == 1:
                    looking.look_at_weights(to_step, steps.order, first_pass=passes == 1)
                for optimizer, step in due:
                    looking.after_backward(optimizer, step, steps.order)

    def close_step(self, optimizer: Optimizer, passes: int) -> None:
        """An optimizer has stepped after so many passes."""
        self._passes[id(optimizer)] = passes

    def _due(self, number: int, passes: int) -> bool:
        expected = self._passes.get(number)
        return passes <= MAX_FIRST_PASSES if expected is None else passes >= expected

    def _search(self, order: TensorOrder) -> None:
        """Find the optimizers that there are, and learn the names of what they will update."""
        self._waiting = known_optimizers()[: MAX_OPTIMIZERS + 1]
        if len(self._waiting) > MAX_OPTIMIZERS:
            return
        parameters = [
            parameter
            for optimizer in self._waiting
            for parameter in optimized_parameters(optimizer)
        ]
        for module in outermost_owners(parameters, self._problems):
            order.learn(module)


# nodes of the graph that are looked at for a parameter: the last layer's lies near the loss
MAX_NODES = 2000
# of one parameter: enough to see that it moved
LOOKED_AT = 64


class HandUpdates:
    """Counts backward passes between which a parameter moved; nothing is kept of the graph."""

    def __init__(self) -> None:
        self.count = 0
        # by reference, not by number: a number is given again once its tensor is gone
        self._seen: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None

    def note(self, loss: torch.Tensor) -> None:
        """Look at a parameter of the pass that has just run."""
        parameter = first_parameter(loss)
        now = None if parameter is None else _some_bytes(parameter)
        if parameter is None or now is None:
            return
        if self._seen is not None and self._seen[0]() is parameter:
            # another parameter than last time says nothing; the same one with other bytes does
            self.count += not torch.equal(self._seen[1], now)
        self._seen = weakref.ref(parameter), now


def _some_bytes(parameter: torch.Tensor) -> torch.Tensor | None:
    """A copy of the first elements of this process's own part: another rank may not be looking.

    As bytes, because torch compares no complex32, and NaN equals nothing.
    """
    try:
        parts = plain_parts(parameter)
    except UnsupportedTensorError:
        return None
    with torch.no_grad():
        if not parts:
            return None
        first = parts[0][1].reshape(-1)[:LOOKED_AT]
        return first.resolve_conj().resolve_neg().clone().view(torch.uint8)


def first_parameter(loss: torch.Tensor) -> torch.Tensor | None:
    """A leaf that the loss hangs on, the nearest in the graph, or None within `MAX_NODES`."""
    waiting: list[Any] = [loss.grad_fn]
    # nodes are held, since the number of one that is gone is given again
    seen: dict[int, Any] = {}
    for _ in range(MAX_NODES):
        if not waiting:
            return None
        node = waiting.pop(0)
        if node is None or id(node) in seen:
            continue
        seen[id(node)] = node
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            return leaf
        waiting += [following for following, _ in node.next_functions]
    return None
