"""Sums over ranks in a fixed order: every rank gathers all parts, and adds them in one tree.

How a backend splits a tensor, and along which ring or tree it adds, decides how a sum of three or
more parts rounds; the sizes of gradient buckets do too. Here each element is added by itself, in
the order of the ranks, so that none of this matters. Slow: for runs of a diagnosis alone.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import torch

MODULE: Final = "torch.distributed.distributed_c10d"
PARALLEL: Final = "torch.nn.parallel.distributed"
# of what is gathered at a time
MAX_GATHERED_BYTES: Final = 256 * 1024 * 1024


class Done:
    """In the place of torch's handle: the sum is there already."""

    def wait(self, *_: object) -> bool:
        """Nothing to wait for."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def get_future(self) -> Any:
        """A future that is done."""
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


def fix_collectives() -> None:
    """`torch.distributed` has been imported: sums and means over ranks get their fixed order."""
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
        # a sum of whole numbers has one result in every order
        floats = all(
            type(tensor) is torch.Tensor and tensor.is_floating_point() for tensor in tensors
        )
        if asked["op"] not in ops or not floats or module.get_rank(group) < 0:
            return plain(*args, **named)
        # torch is only half there when its module of collectives is imported
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
    """The sum of each element over the ranks, as every one of them computes it."""
    ranks = module.get_world_size(group)
    total = torch.empty_like(flat)
    numbers_each = max(1, MAX_GATHERED_BYTES // (ranks * flat.element_size()))
    for start in range(0, flat.numel(), numbers_each):
        own = flat[start : start + numbers_each]
        parts = [torch.empty_like(own) for _ in range(ranks)]
        module.all_gather(parts, own, group=group)
        # neighbours in pairs, the last of an odd number as it is: one tree for every backend
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            parts = [left + right for left, right in pairs] + parts[len(parts) & ~1 :]
        total[start : start + numbers_each] = parts[0]
    return total


def fix_replicas() -> None:
    """`DistributedDataParallel` has been imported: its buckets are summed so too.

    By a hook for its gradients, unless the script has one of its own.
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
    """The mean of a bucket over the ranks, as a hook of `DistributedDataParallel` gives it."""
    module: Any = sys.modules[MODULE]
    buffer = bucket.buffer()
    # divided before the sum, as torch's own hook does it (ddp_comm_hooks/default_hooks.py)
    mean = sum_over_ranks(module, buffer / module.get_world_size(group), group)
    future: Any = torch.futures.Future()
    future.set_result(mean)
    return future


# the compiler's and torch's own checks ask a hook for what it takes and gives
fixed_order.__annotations__ = {}
