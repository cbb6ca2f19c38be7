"""The gradients as backward returned them: whose they are, and whether anybody has changed them.

What a script does to gradients by hand (clipping, noise, sums over ranks) happens between the
backward pass and the update. Looked at on both sides, it is told from the backward pass itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch.optim import Optimizer

from .. import harness_cuda
from ..output import Problems
from ..plain_tensors import gradient
from ..tensor_digests import StartedDigest, bodies_once
from .module_search import known_optimizers, outermost_owners
from .order import Order
from .state import optimized_parameters
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
    """Which tensors hold the gradients and how often each was written; None where none can tell."""
    gradients = [gradient(parameter) for parameter in parameters]
    try:
        return tuple(None if one is None else (id(one), one._version) for one in gradients)  # noqa: SLF001 - no public name
    except RuntimeError:
        return None


class Looking(Protocol):
    """Who looks at the gradients of an optimizer."""

    def after_backward(self, optimizer: Optimizer, step: int, order: Order) -> None:
        """Backward has returned on the way to this step."""


class Steps(Protocol):
    """Which optimizers have stepped, how often, and in which order their parameters are read."""

    steps: int
    optimizers: list[Optimizer]
    order: Order

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
        with harness_cuda.free_to_wait(), self._problems.noting("looking at gradients"):
            if not self._searched and not steps.optimizers:
                with self._clock.span(), bodies_once():
                    self._search(steps.order)
            self._searched = True
            if steps.steps >= SETTLED_STEPS:
                self._waiting.clear()
            known = {id(one): one for one in (*steps.optimizers, *self._waiting)}
            if len(known) <= MAX_OPTIMIZERS:
                for number, optimizer in known.items():
                    if self._due(number, passes):
                        step = steps.steps_of(optimizer) + 1
                        looking.after_backward(optimizer, step, steps.order)

    def close_step(self, optimizer: Optimizer, passes: int) -> None:
        """An optimizer has stepped after so many passes."""
        self._passes[id(optimizer)] = passes

    def _due(self, number: int, passes: int) -> bool:
        expected = self._passes.get(number)
        return passes <= MAX_FIRST_PASSES if expected is None else passes >= expected

    def _search(self, order: Order) -> None:
        """Find the optimizers that there are, and learn the names of what they will update."""
        self._waiting = known_optimizers()[: MAX_OPTIMIZERS + 1]
        if len(self._waiting) > MAX_OPTIMIZERS:
            return
        parameters = [parameter for one in self._waiting for parameter in optimized_parameters(one)]
        for module in outermost_owners(parameters, self._problems):
            order.learn(module)
