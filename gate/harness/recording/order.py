"""An order of parameters, modules and optimizers that no set and no address decides.

A script may collect its parameters in a `set`, whose order follows addresses and so differs from
run to run while every value is equal (Pyro does). So the order comes from what stands there: the
name in a module where there is one, else type and shape; then, where that is the same for several,
from the values and gradients of the first step, and at last from what they hold now. Optimizers and
modules that first step with a backward pass in between keep the order of their steps, which is the
program's own.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from ..plain_tensors import gradient, structure
from ..tensor_digests import StartedDigest, finish_all

NAMED, NAMELESS = 0, 1
# whether a module names it, the module's or its own structure, what that held, and its place there
Key: TypeAlias = tuple[int, str, str, int]


class SortKey(NamedTuple):
    """Where something belongs: which burst of steps it came with, what it is, what it held."""

    burst: int
    what: str
    held: str


class Order:
    """The order of one process; what it is asked about must have been learned at its first step."""

    def __init__(self) -> None:
        # Under a tensor's number, with a reference to it: a number is given again once its tensor
        # is gone, and whether it is differs from run to run.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Key, str]] = {}

    def learn(self, module: nn.Module) -> None:
        """Know the parameters of a module by their names; before they are updated first."""
        kind, key = type(module).__qualname__, module_key(module, 0)
        for index, (name, parameter) in enumerate(module.named_parameters()):
            # what it is stands before what it holds: no number may decide an order that shapes can
            self._know(parameter, (NAMED, key.what, key.held, index), f"{kind}/{name}")

    def name(self, parameter: torch.Tensor) -> str:
        """Kind of module and name in it; empty for a parameter that no module owns."""
        known = self._known.get(id(parameter))
        return "" if known is None or known[0]() is not parameter else known[2]

    def groups(self, optimizer: Optimizer) -> list[list[torch.Tensor]]:
        """The parameters of each of its groups, in order."""
        return [self._sorted(group["params"]) for group in optimizer.param_groups]

    def _sorted(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        alike = Counter(map(self._key, parameters))

        def key(parameter: torch.Tensor) -> tuple[Key, str]:
            known = self._key(parameter)
            return known, _held([parameter]) if alike[known] > 1 else ""

        return sorted(parameters, key=key)

    def parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """All of them, group after group."""
        return [parameter for group in self.groups(optimizer) for parameter in group]

    def _key(self, parameter: torch.Tensor) -> Key:
        known = self._known.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        key = (NAMELESS, structure(parameter), _held([parameter]), 0)
        self._know(parameter, key, "")
        return key

    def _know(self, parameter: torch.Tensor, key: Key, name: str) -> None:
        self._known[id(parameter)] = weakref.ref(parameter), key, name

    def optimizer_key(self, optimizer: Optimizer, burst: int) -> SortKey:
        """Its class and what it optimizes, and what that held at its first step."""
        parameters = self.parameters(optimizer)
        what = [f"{self.name(parameter)} {structure(parameter)}" for parameter in parameters]
        return SortKey(burst, "\n".join((type(optimizer).__qualname__, *what)), _held(parameters))


def module_key(module: nn.Module, burst: int) -> SortKey:
    """Its class and the names in it, and what they held at its first step."""
    named = list(module.named_parameters())
    what = [f"{name} {structure(parameter)}" for name, parameter in named]
    held = _held([parameter for _, parameter in named])
    return SortKey(burst, "\n".join((type(module).__qualname__, *what)), held)


def ranking(
    keys: Sequence[SortKey], parameters: Callable[[int], Iterable[torch.Tensor]]
) -> list[int]:
    """The number of each of them in the order; `parameters` gives those of the one so numbered."""
    alike = Counter(keys)

    def key(index: int) -> tuple[SortKey, str]:
        known = keys[index]
        return known, _held(parameters(index)) if alike[known] > 1 else ""

    numbers = [0] * len(keys)
    for number, index in enumerate(sorted(range(len(keys)), key=key)):
        numbers[index] = number
    return numbers


def _held(parameters: Iterable[torch.Tensor]) -> str:
    """Digests of the values and then of the gradients.

    In this order, so that another gradient never reorders what had other values before.
    """
    values = list(parameters)
    gradients = [gradient(parameter) for parameter in values]
    with torch.no_grad():
        started = [
            StartedDigest([("", tensor) for tensor in tensors], "order", _nobody, fast=True)
            for tensors in (values, gradients)
        ]
        return " ".join(finish_all(started))


def _nobody(_: str) -> None:
    """What cannot be digested the fingerprints tell."""
