"""The fingerprints of an optimizer step, in the order in which one causes the next.

This is the one place that has their names; the harness, which imports nothing of the gate, is held
to it by tests. The loss stands between `input` and `backward`, see `EventKind`.
"""

from __future__ import annotations

import re
from typing import Final, Literal

# what is observed together: a group has one sampling interval
SamplingGroup = Literal["random", "batch", "tensors"]
RANDOM: Final = "random"
PARAMETERS: Final = "parameters"
GENERATORS: Final = ("python", "numpy", "torch", "cuda")
# By family; None is observed at each step at which it changes.
SAMPLING: Final[dict[str, SamplingGroup | None]] = {
    "structure": None,
    "initial": None,
    RANDOM: "random",
    "batch": "batch",
    "input": "batch",
    "backward": "tensors",
    "gradients": "tensors",
    PARAMETERS: "tensors",
    "optimizer": "tensors",
}
FAMILIES: Final = tuple(SAMPLING)
# `backward.1`, `random.torch.1`, `loss.1`, `loss.1.pass2`
OPTIMIZER: Final = re.compile(
    rf"(?P<name>(?:{'|'.join((*FAMILIES, 'loss', 'skipped'))})(?:\.[a-z]+)?)"
    r"\.(?P<optimizer>[0-9]{1,6})(?:\.pass[0-9]{1,6})?",
    re.ASCII,
)


def family_of(name: str) -> str:
    """What comes before the dot: `random` of `random.torch`, else the name itself."""
    return name.partition(".")[0]


def of_optimizer(name: str, optimizer: int) -> str:
    """The name of a fingerprint or metric that one optimizer of several has; the first has none."""
    return f"{name.removesuffix('.0')}.{optimizer}" if optimizer else name


def optimizer_of(name: str) -> int:
    """The number behind a name that `of_optimizer` made, 0 where there is none."""
    found = OPTIMIZER.fullmatch(name)
    return int(found["optimizer"]) if found is not None else 0


def order_of(name: str) -> tuple[int, int, str]:
    """Sorts names in the order of causes; one that the harness does not write comes last."""
    family, _, generator = name.partition(".")
    return _index(FAMILIES, family), _index(GENERATORS, generator), name


def _index(order: tuple[str, ...], name: str) -> int:
    return order.index(name) if name in order else len(order)
