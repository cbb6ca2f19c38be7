"""Observes gradients as backward returned them, and weights that a script changes by itself.

What a script does to gradients by hand (clipping, noise, sums over ranks) happens between the
backward pass and the update. Looking both after the pass and before the update separates the two.

`HandUpdates` finds scripts that change their weights without an optimizer. The harness never sees
such a script take a step. Waiting for its end helps nobody, so it is reported after few passes. A
script that only accumulates gradients changes no weight in between, and goes on.
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

# A script may have an optimizer for each parameter. Then the update follows each gradient at once.
MAX_OPTIMIZERS = 8
# passes observed in the first step, when nobody knows yet which pass is the last
MAX_FIRST_PASSES = 8
# from this step on, an optimizer that has not stepped is assumed never to step
SETTLED_STEPS = 2

# `id` and version counter of each tensor; the counter rises with each write in place
Versions = tuple[tuple[int, int] | None, ...]


class Returned(NamedTuple):
    """A digest of gradients, and the versions of the tensors that it covers."""

    digest: StartedDigest
    versions: Versions | None


def gradient_versions(parameters: Sequence[torch.Tensor]) -> Versions | None:
    """Return the versions of the parameters' gradients."""
    return versions_of([gradient(parameter) for parameter in parameters])


def versions_of(tensors: Sequence[torch.Tensor | None]) -> Versions | None:
    """Return identity and write count of each tensor; None if a tensor does not count writes."""
    try:
        return tuple(
            None if tensor is None else (id(tensor), tensor._version)  # noqa: SLF001 - no public name
            for tensor in tensors
        )
    except RuntimeError:
        return None


class Looking(Protocol):
    """Observes the weights and gradients of an optimizer."""

    def look_at_weights(
        self, optimizers: Sequence[tuple[Optimizer, int]], order: TensorOrder, *, first_pass: bool
    ) -> None:
        """Look at the weights that a pass used; each pair is an optimizer and its coming step."""

    def after_backward(self, optimizer: Optimizer, step: int, order: TensorOrder) -> None:
        """Look at the gradients that backward has returned for the coming step."""


class Steps(Protocol):
    """Which optimizers have stepped, how often, and in which order their parameters are read."""

    steps: int
    optimizers: list[Optimizer]
    order: TensorOrder

    def steps_of(self, optimizer: Optimizer) -> int:
        """Return the number of recorded steps of this optimizer."""


class ReturnedGradients:
    """Chooses the passes at which to look at an optimizer: the last pass before its update.

    The number of passes for an update is taken from the previous one. Before the first step no
    optimizer has been seen, so all existing ones are looked at.
    """

    def __init__(self, problems: Problems, clock: StepClock) -> None:
        self._problems = problems
        self._clock = clock
        self._searched = False
        self._waiting: list[Optimizer] = []
        self._passes: dict[int, int] = {}

    def look(self, looking: Looking, passes: int, steps: Steps) -> None:
        """Look at the optimizers that are due after this pass, the n-th since the last step."""
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
        """Note that an optimizer has stepped after this many passes."""
        self._passes[id(optimizer)] = passes

    def _due(self, number: int, passes: int) -> bool:
        expected = self._passes.get(number)
        return passes <= MAX_FIRST_PASSES if expected is None else passes >= expected

    def _search(self, order: TensorOrder) -> None:
        """Find the existing optimizers, and learn the names of the parameters they will update."""
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


# limit on the nodes searched for a parameter; the last layer's is near the loss
MAX_NODES = 2000
# elements of a parameter that are compared: enough to see that it moved
LOOKED_AT = 64


class HandUpdates:
    """Counts backward passes between which a parameter moved; keeps no reference to the graph."""

    def __init__(self) -> None:
        self.count = 0
        # by reference: an `id` is reused once its tensor is gone
        self._seen: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None

    def note(self, loss: torch.Tensor) -> None:
        """Compare a parameter of the pass that has just run with its previous value."""
        parameter = first_parameter(loss)
        now = None if parameter is None else _some_bytes(parameter)
        if parameter is None or now is None:
            return
        if self._seen is not None and self._seen[0]() is parameter:
            # a different parameter than last time proves nothing, the same one with other bytes
            # does
            self.count += not torch.equal(self._seen[1], now)
        self._seen = weakref.ref(parameter), now


def _some_bytes(parameter: torch.Tensor) -> torch.Tensor | None:
    """Return a copy of the first elements of this process's own part, as bytes.

    Only the own part, since other ranks may not be doing the same. As bytes, since torch cannot
    compare complex32, and NaN equals nothing.
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
    """Return the leaf nearest to the loss in the graph, or None within `MAX_NODES` nodes."""
    waiting: list[Any] = [loss.grad_fn]
    # keep the nodes, since the `id` of a freed node is reused
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
