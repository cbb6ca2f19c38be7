"""The training state at the end as named tensors; the names are those of docs/guest-protocol.md."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .order import Order
from .output import Problems

NamedTensor = tuple[str, torch.Tensor]


def optimized_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def capture(
    modules: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    order: Order,
    problems: Problems,
) -> dict[str, torch.Tensor]:
    """Every tensor and number of the modules and optimizers, by name; nothing is copied yet."""
    found: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        # A deprecation inside state_dict, made an error by the user, would lose the evidence.
        warnings.simplefilter("ignore")
        for number, module in enumerate(modules):
            with problems.noting(f"reading the state of model {number}"):
                model = named_tensors(f"model/{number}", module.state_dict(), problems)
                _add(found, model, problems)
        for number, optimizer in enumerate(optimizers):
            with problems.noting(f"reading the state of optimizer {number}"):
                state = _of_optimizer(f"optimizer/{number}", optimizer, order, problems)
                _add(found, state, problems)
    _add(found, _outside_parameters(modules, optimizers, order), problems)
    return found


def named_tensors(name: str, value: Any, problems: Problems) -> Iterator[NamedTensor]:
    """The tensors and numbers inside a value; keys and positions are joined by `/`."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from named_tensors(f"{name}/{key}", part, problems)
    elif isinstance(value, list | tuple):
        for position, part in enumerate(value):
            yield from named_tensors(f"{name}/{position}", part, problems)
    else:
        with problems.noting(f"{name} is left out of the state"):
            number = _number(value)
            if number is not None:
                yield name, number


def _number(value: Any) -> torch.Tensor | None:
    """A number as a 0-d tensor of its full width; None for what is no number."""
    if isinstance(value, bool):
        return torch.tensor(value, dtype=torch.bool, device="cpu")
    if isinstance(value, int):
        return torch.tensor(value, dtype=torch.int64, device="cpu")
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if type(value).__module__ == "numpy":
        return torch.as_tensor(value, device="cpu")
    return None


def _of_optimizer(
    name: str, optimizer: Optimizer, order: Order, problems: Problems
) -> Iterator[NamedTensor]:
    """State and groups; a group's list of parameter positions is no number of the training."""
    saved = optimizer.state_dict()
    numbers = {id(each): number for number, each in enumerate(order.parameters(optimizer))}
    places = {at: numbers[id(each)] for at, each in enumerate(optimized_parameters(optimizer))}
    state = {places.get(at, at): part for at, part in saved["state"].items()}
    yield from named_tensors(f"{name}/state", state, problems)
    for position, group in enumerate(saved["param_groups"]):
        values = {key: part for key, part in group.items() if key != "params"}
        yield from named_tensors(f"{name}/group/{position}", values, problems)


def _outside_parameters(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], order: Order
) -> Iterator[NamedTensor]:
    """Optimized tensors that no module owns."""
    owned = {id(parameter) for module in modules for parameter in module.parameters()}
    for number, optimizer in enumerate(optimizers):
        for index, parameter in enumerate(order.parameters(optimizer)):
            if id(parameter) not in owned:
                yield f"parameter/{number}/{index}", parameter


def _add(
    found: dict[str, torch.Tensor], tensors: Iterator[NamedTensor], problems: Problems
) -> None:
    """Keep the first of two equal names: only a key that holds a `/` can make one."""
    for name, tensor in tensors:
        if found.setdefault(name, tensor) is not tensor:
            problems.note(f"{name} is the name of two values, the second is left out of the state")
