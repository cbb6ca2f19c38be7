"""Whether a script changes its weights by itself, without any optimizer of torch's.

Such a script is never seen to take a step. Waiting for its end helps nobody, so it is reported
after few passes; a script that only accumulates gradients changes no weight in between and goes on.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..plain_bytes import UnsupportedTensorError
from ..plain_tensors import plain_parts

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
