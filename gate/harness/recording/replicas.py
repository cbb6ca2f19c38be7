"""Finds optimizers that update a replica which DistributedDataParallel keeps equal on its ranks.

Other ranks are not asked: the gate compares the digests that each rank records. Only certain
replicas are reported, since a rank that may differ must not be blamed. Shards (FSDP, ZeRO, tensor
and pipeline parallel) are DTensors, or belong to no such module. A parameter outside the module
belongs to its rank alone. A hook that does not sum over all ranks lets replicas differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from .state import optimized_parameters

MODULE: Final = "torch.nn.parallel.distributed"
# torch's hooks that give every rank the same gradients; nobody knows about any other hook
SUMMING_HOOKS: Final = frozenset(
    (
        *("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"),
        *("powerSGD_hook", "batched_powerSGD_hook", "quantization_pertensor_hook"),
        "quantization_perchannel_hook",
    )
)
MAX_REPLICATED: Final = 100


class Replicas:
    """The ranks of each optimizer's group, as of its first step: later the group may be gone."""

    def __init__(self) -> None:
        self._ranks: dict[int, list[int]] = {}

    def note(self, number: int, optimizer: Optimizer, modules: Iterable[nn.Module]) -> None:
        """Note an optimizer's first step; `modules` are the known outermost modules."""
        module: Any = sys.modules.get(MODULE)
        if module is None or len(self._ranks) >= MAX_REPLICATED:
            return
        parameters = optimized_parameters(optimizer)
        # a DTensor or another class of tensor may be a shard
        if not parameters or any(type(parameter) is not nn.Parameter for parameter in parameters):
            return
        for root in modules:
            for part in root.modules():
                if isinstance(part, module.DistributedDataParallel) and _keeps(part, parameters):
                    group = part.process_group
                    self._ranks[number] = list(torch.distributed.get_process_group_ranks(group))
                    return

    def record(self, numbers: Sequence[int]) -> list[dict[str, object]]:
        """Return the record for the summary; `numbers` are the optimizers' numbers there."""
        return [
            {"optimizer": numbers[number], "ranks": ranks} for number, ranks in self._ranks.items()
        ]


def _keeps(part: Any, parameters: Sequence[torch.Tensor]) -> bool:
    """Whether this module gives each of these parameters equal gradients on all its ranks."""
    hooks = [getattr(hook, "__name__", "") for hook, _ in getattr(part, "_comm_hooks", ())]
    if not SUMMING_HOOKS.issuperset(hooks):
        return False
    # DistributedDataParallel does not reduce the gradients of these parameters
    left_out = set(getattr(part, "parameters_to_ignore", ()))
    named = part.module.named_parameters(remove_duplicate=False)
    kept = {id(parameter) for name, parameter in named if name not in left_out}
    return kept.issuperset(map(id, parameters))
