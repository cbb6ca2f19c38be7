"""The training's tensors by the names of docs/harness-protocol.md: the state, and gradients."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ..output import Output, Problems
from ..plain_bytes import UnsupportedTensorError
from ..plain_tensors import gradient, plain_parts
from ..safetensors_file import write_safetensors
from .order import Order

NamedTensor = tuple[str, torch.Tensor]
# What describes and does not train; functions and classes beside them.
_SETTINGS: Final = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_MAX_NAMES: Final = 1000
_MAX_NAME: Final = 200
# bool before int, which it is a kind of
_NUMBERS: Final = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


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
    tensors: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        # A deprecation inside state_dict, made an error by the user, would lose the evidence.
        warnings.simplefilter("ignore")
        for number, module in enumerate(modules):
            with problems.noting(f"reading the state of model {number}"):
                model = named_tensors(f"model/{number}", _of_module(module), problems)
                _add(tensors, model, problems)
        for number, optimizer in enumerate(optimizers):
            with problems.noting(f"reading the state of optimizer {number}"):
                state = _of_optimizer(f"optimizer/{number}", optimizer, order, problems)
                _add(tensors, state, problems)
    _add(tensors, _outside_parameters(modules, optimizers, order), problems)
    parameters = [
        parameter for optimizer in optimizers for parameter in optimized_parameters(optimizer)
    ]
    if parameters and not any(map(_readable, parameters)):
        problems.note("no optimized parameter can be read, so nothing of the weights was compared")
    return tensors


def parameter_names(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], order: Order
) -> dict[str, str]:
    """For `<optimizer>/<parameter index>` the parameter's name among the tensors of `capture`.

    A parameter that no module owns has none, nor has one of a name above 200 characters; of many
    the first 1,000 are named.
    """
    names: dict[int, str] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            names.setdefault(id(parameter), f"model/{number}/{name}")
    named = {
        f"{number}/{index}": name
        for number, optimizer in enumerate(optimizers)
        for index, parameter in enumerate(order.parameters(optimizer))
        if len(name := names.get(id(parameter), "")) in range(1, _MAX_NAME + 1)
    }
    return dict(islice(named.items(), _MAX_NAMES))


def write_gradients(optimizer: Optimizer, output: Output, problems: Problems) -> None:
    """Write what the optimizer has just used; a parameter without gradient is not there."""
    gradients = map(gradient, optimized_parameters(optimizer))
    named = {
        f"gradient/{index:06d}": tensor
        for index, tensor in enumerate(gradients)
        if tensor is not None
    }
    write_safetensors(output.path("gradients", ".safetensors"), named, problems.leave_out)


def _readable(parameter: torch.Tensor) -> bool:
    try:
        return bool(plain_parts(parameter))
    except UnsupportedTensorError:
        return False


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
    elif not (value is None or isinstance(value, _SETTINGS) or callable(value)):
        try:
            yield name, _number(value)
        except (TypeError, ValueError, RuntimeError) as error:
            problems.leave_out(f"{name} is left out of the state: {error}")


def _number(value: Any) -> torch.Tensor:
    """A number as a 0-d tensor of its full width, bytes as theirs.

    Raises `TypeError`, `ValueError` or `RuntimeError` for what is neither, or has over 64 bits.
    """
    if isinstance(value, io.BytesIO):
        value = value.getvalue()
    if isinstance(value, bytes | bytearray):
        empty = torch.empty(len(value), dtype=torch.uint8, device="cpu")
        return empty if not value else torch.frombuffer(bytearray(value), dtype=torch.uint8)
    for kind, dtype in _NUMBERS.items():
        if isinstance(value, kind):
            return torch.tensor(value, dtype=dtype, device="cpu")
    if type(value).__module__ == "numpy":
        return torch.as_tensor(value, device="cpu")
    raise TypeError(f"{type(value).__name__} is neither a tensor nor a number nor bytes")


def _of_module(module: nn.Module) -> Mapping[str, Any]:
    """What its `state_dict` gives, or for FSDP of the first kind what stands in it.

    That one would gather the whole model on each rank, and wait for a rank that never gets here;
    its other types of a state gather as well.
    """
    if _gathers(module):
        return dict(_standing(module))
    try:
        # as they are: a tensor's own class may refuse to be detached
        tensors: Mapping[str, Any] = module.state_dict(keep_vars=True)
    except Exception:
        tensors = module.state_dict()
    return tensors


def _gathers(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(fsdp, "FullyShardedDataParallel", ())
    return any(isinstance(part, kind) for part in module.modules())


def _standing(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers as they stand, this rank's own part of each."""
    yield from module.named_parameters(remove_duplicate=False)
    for path, part in module.named_modules(remove_duplicate=False):
        passing: set[str] = part._non_persistent_buffers_set  # noqa: SLF001 - no public name
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            if name not in passing:
                yield (f"{path}.{name}" if path else name), buffer


def _of_optimizer(
    name: str, optimizer: Optimizer, order: Order, problems: Problems
) -> Iterator[NamedTensor]:
    """State and groups; a group's list of parameter positions is no number of the training."""
    saved = optimizer.state_dict()
    ordered = {id(parameter): index for index, parameter in enumerate(order.parameters(optimizer))}
    places = {
        at: ordered[id(parameter)] for at, parameter in enumerate(optimized_parameters(optimizer))
    }
    # torch numbers parameters as the groups list them, which a set may have ordered
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


def _add(kept: dict[str, torch.Tensor], tensors: Iterator[NamedTensor], problems: Problems) -> None:
    """Keep the first of two equal names: only a key that holds a `/` can make one."""
    for name, tensor in tensors:
        if kept.setdefault(name, tensor) is not tensor:
            problems.note(f"{name} is the name of two values, the second is left out of the state")
