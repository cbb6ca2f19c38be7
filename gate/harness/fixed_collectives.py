"""Sums over ranks in a fixed order: every rank gathers all parts, and adds them in one tree.

With three or more parts the rounding of a sum depends on its order. A backend's way to split a
tensor, its ring or tree, and the sizes of gradient buckets decide that order. Here each element is
summed separately, in the order of the ranks, so none of this matters. It is slow and meant for
diagnostic runs only.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import torch

MODULE: Final = "torch.distributed.distributed_c10d"
PARALLEL: Final = "torch.nn.parallel.distributed"
# limit on what is gathered at a time
MAX_GATHERED_BYTES: Final = 256 * 1024 * 1024


class Done:
    """Replaces torch's handle: the sum is complete already."""

    def wait(self, *_: object) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> Any:
        """Return a completed future."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def fix_collectives() -> None:
    """Give sums and means over ranks a fixed order; called when `torch.distributed` is imported."""
    module: Any = sys.modules[MODULE]
    for name, spread in (("all_reduce", _all_reduce), ("reduce_scatter_tensor", _reduce_scatter)):
        setattr(module, name, _fixed(module, getattr(module, name), spread))


def _fixed(module: Any, plain: Any, spread: Any) -> Any:
    @functools.wraps(plain)
    def reduced(*args: Any, **named: Any) -> Any:
        asked = _asked(plain, args, named)
        ops = (module.ReduceOp.SUM, module.ReduceOp.AVG)
        group, mean = asked["group"], asked["op"] == module.ReduceOp.AVG
        tensors = [asked[name] for name in ("tensor", "output", "input") if name in asked]
        # a sum of integers has the same result in every order
        floats = all(
            type(tensor) is torch.Tensor and tensor.is_floating_point() for tensor in tensors
        )
        if asked["op"] not in ops or not floats or module.get_rank(group) < 0:
            return plain(*args, **named)
        # `no_grad` only here: when this function is defined, torch is only half imported
        with torch.no_grad():
            spread(module, tensors, group, mean=mean)
        return Done() if asked["async_op"] else None

    return reduced


def _asked(plain: Any, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    import inspect

    asked = inspect.signature(plain).bind(*args, **named)
    asked.apply_defaults()
    return dict(asked.arguments)


def _all_reduce(module: Any, tensors: list[torch.Tensor], group: Any, *, mean: bool) -> None:
    (tensor,) = tensors
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    total = sum_over_ranks(module, flat, group)
    tensor.copy_((total / module.get_world_size(group) if mean else total).view(tensor.shape))


def _reduce_scatter(module: Any, tensors: list[torch.Tensor], group: Any, *, mean: bool) -> None:
    output, given = tensors
    flat = given.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    total = sum_over_ranks(module, flat, group)
    own = total.chunk(module.get_world_size(group))[module.get_rank(group)]
    output.copy_((own / module.get_world_size(group) if mean else own).view(output.shape))


def sum_over_ranks(module: Any, flat: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum of each element over the ranks; every rank computes the same bits."""
    ranks = module.get_world_size(group)
    total = torch.empty_like(flat)
    numbers_each = max(1, MAX_GATHERED_BYTES // (ranks * flat.element_size()))
    for start in range(0, flat.numel(), numbers_each):
        own = flat[start : start + numbers_each]
        parts = [torch.empty_like(own) for _ in range(ranks)]
        module.all_gather(parts, own, group=group)
        # add neighbours in pairs and pass on the last of an odd number: one tree for every backend
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [left + right for left, right in pairs] + parts[len(parts) & ~1 :]
        total[start : start + numbers_each] = parts[0]
    return total


def fix_replicas() -> None:
    """Sum the buckets of `DistributedDataParallel` in a fixed order too.

    This uses a communication hook for gradients, unless the script has registered its own.
    """
    kind: Any = sys.modules[PARALLEL].DistributedDataParallel
    plain = kind.forward

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **named: Any) -> Any:
        if not self._comm_hooks:
            self.register_comm_hook(self.process_group, fixed_order)
        return plain(self, *args, **named)

    kind.forward = forward


def fixed_order(group: Any, bucket: Any) -> Any:
    """Return the mean of a bucket over the ranks, as a future."""
    module: Any = sys.modules[MODULE]
    buffer = bucket.buffer()
    # divided before the sum, as in torch's own hook (ddp_comm_hooks/default_hooks.py)
    mean = sum_over_ranks(module, buffer / module.get_world_size(group), group)
    future: Any = torch.futures.Future()
    future.set_result(mean)
    return future


# the checks of torch and of its compiler look at a hook's annotations
fixed_order.__annotations__ = {}
