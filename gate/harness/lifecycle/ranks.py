"""Which rank this process is, once its training runs."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..this_process import current_rank

# An optional part of torch, seen through one untyped name.
_distributed: Final[Any] = torch.distributed


def training_rank() -> int:
    """As the process group knows it, or else as the launcher told it, or 0.

    Workers of `torch.multiprocessing.spawn` often hand their rank to `init_process_group` only.
    """
    if _distributed.is_available() and _distributed.is_initialized():
        return int(_distributed.get_rank())
    return current_rank()
