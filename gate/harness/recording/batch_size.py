"""How many samples a batch of a DataLoader holds: for a report's throughput, never judged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import torch

# of a batch, and of a container in it: the training's own time is what looking takes
MAX_PARTS: Final = 64
# a longer first dimension is no batch; the gate accepts no larger number
MAX_SAMPLES: Final = 2**32


def samples_in(batch: object) -> int | None:
    """The first dimension that all tensors and arrays of a batch share; None where there is none.

    The outermost parts are looked at first, `MAX_PARTS` at most, and nothing is read of a tensor
    but its shape.
    """
    if (type(batch) is list or type(batch) is tuple) and all(
        type(part) is torch.Tensor for part in batch[:MAX_PARTS]
    ):
        # nearly all: a few plain tensors side by side
        return _shared({part.size(0) for part in batch[:MAX_PARTS] if part.dim()})
    # a class of the training's own may raise at any question, and a figure of a report must not
    # end a strict run
    with suppress(Exception):
        return _shared(set(islice(_first_dimensions(batch), MAX_PARTS)))
    return None


def _shared(sizes: set[int]) -> int | None:
    size = sizes.pop() if len(sizes) == 1 else None
    return size if size is not None and size <= MAX_SAMPLES else None


def _first_dimensions(batch: object) -> Iterable[int]:
    waiting: deque[Any] = deque((batch,))
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part = waiting.popleft()
        if isinstance(part, torch.Tensor):
            if part.dim():
                # not `.shape`, which a nested tensor has not
                yield part.size(0)
        elif type(part).__module__ == "numpy":
            if part.ndim:
                yield len(part)
        elif isinstance(part, Mapping):
            waiting.extend(islice(part.values(), MAX_PARTS))
        elif isinstance(part, list | tuple):
            waiting.extend(part[:MAX_PARTS])
