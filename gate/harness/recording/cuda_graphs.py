"""Training inside CUDA graphs: not disturbed while captured, recorded at each replay.

While a graph is being captured the host may neither wait nor read, and whatever the harness
computed would become part of the training's graph. So the hooks only remember what passed by. A
replay runs no Python of the training's, so the harness stands around `CUDAGraph.replay`: after it
each remembered loss holds its new value, and each remembered optimizer has taken a step. The
gradients of such a step are the graph's own and are not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer

_CAPTURED: Final = "_repro_gate_captured"

# a loss that a backward pass began with, or an optimizer that stepped
Passed = torch.Tensor | Optimizer


class Capture:
    """What passed by in the capture under way, in this process."""

    def __init__(self) -> None:
        self._passed: list[Passed] = []

    def note(self, passed: Passed) -> None:
        """A backward pass or a step is being captured."""
        self._passed.append(passed)

    def take(self) -> tuple[Passed, ...]:
        """All of the capture that has just ended, in order."""
        passed, self._passed = tuple(self._passed), []
        return passed


def install_graph_hooks(
    capture: Callable[[], Capture | None], on_replay: Callable[[Passed], None]
) -> None:
    """Hook the end of each capture and each replay; `capture` gives that of this process."""
    graph: Any = torch.cuda.CUDAGraph
    plain_end, plain_replay = graph.capture_end, graph.replay

    @functools.wraps(plain_end)
    def capture_end(self: Any) -> None:
        active = capture()
        # taken first: a capture that fails leaves nothing to the next one
        passed = () if active is None else active.take()
        plain_end(self)
        setattr(self, _CAPTURED, passed)

    @functools.wraps(plain_replay)
    def replay(self: Any) -> None:
        plain_replay(self)
        # in the order of the capture: a loss comes before the step that it led to
        for passed in getattr(self, _CAPTURED, ()):
            on_replay(passed)

    graph.capture_end = capture_end
    graph.replay = replay
