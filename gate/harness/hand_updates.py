"""Whether a script changes its weights by itself, without any optimizer of torch's.

Such a script is never seen to take a step. Waiting for its end tells nobody anything, so it is told
after few passes; a script that only accumulates gradients changes no weight in between and goes on.
"""

from __future__ import annotations

from typing import Any

import torch

# nodes of the graph that are looked at for a parameter: the last layer's lies near the loss
MAX_NODES = 2000
# of one parameter: enough to see that it moved
LOOKED_AT = 64


class HandUpdates:
    """Counts backward passes between which a parameter moved; nothing is kept of the graph."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: tuple[int, torch.Tensor] | None = None

    def note(self, loss: torch.Tensor) -> None:
        """Look at a parameter of the pass that has just run."""
        parameter = first_parameter(loss)
        if parameter is None:
            return
        with torch.no_grad():
            now = parameter.detach().reshape(-1)[:LOOKED_AT].clone()
        if self._seen is not None and self._seen[0] == id(parameter):
            self.count += not torch.equal(self._seen[1], now)
        self._seen = id(parameter), now


def first_parameter(loss: torch.Tensor) -> torch.Tensor | None:
    """A leaf that the loss hangs on, the nearest in the graph, or None within `MAX_NODES`."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[int] = set()
    for _ in range(MAX_NODES):
        if not waiting:
            return None
        node = waiting.pop(0)
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            return leaf
        waiting += [following for following, _ in node.next_functions]
    return None
