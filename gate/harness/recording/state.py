"""The training's tensors by name, in an order that is the same in every run.

A script may collect its parameters in a `set`. The order of a set follows addresses, so it differs
from run to run while every value is equal (Pyro does this). So the order here is derived from the
tensors themselves: the name in a module if there is one, else type and shape. Where these are equal
for several tensors, the values and gradients at the first step decide, and at last the current
values. Optimizers and modules that first step with a backward pass in between keep the order of
their first steps. That order is the program's own.

`ConstantBuffers` finds infinities that are constants of the script, such as a bound or a mask,
rather than results of the training. Equal bytes at the start and at the end are the only proof: a
running average that has overflowed stays infinite too. Buffers count from their registration on,
since some libraries call their modules past `Module`, so that no first call is seen.
"""

from __future__ import annotations

import hashlib
import io
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from ..output import Output, Problems
from ..plain_tensors import (
    UnsupportedTensorError,
    byte_size,
    gradient,
    plain_parts,
    structure,
    use_bytes,
    write_safetensors,
)
from ..tensor_digests import StartedDigest, finish_all

NAMED, NAMELESS = 0, 1
# named by a module or not; the structure of that module or of the tensor; a digest of its values;
# the parameter's place in the module
Key: TypeAlias = tuple[int, str, str, int]


class SortKey(NamedTuple):
    """Sorts modules and optimizers: burst of first steps, structure, digest of the values.

    Optimizers that first step without a backward pass in between are of one burst.
    """

    burst: int
    what: str
    held: str


class TensorOrder:
    """The order of parameters in one process; learn a module before its first update."""

    def __init__(self) -> None:
        # Keyed by `id`, with a weak reference to the tensor. Python reuses an `id` once its object
        # is gone, and whether that happens differs from run to run.
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Key, str]] = {}

    def learn(self, module: nn.Module) -> None:
        """Remember a module's parameters by name; call this before their first update."""
        kind, key = type(module).__qualname__, module_key(module, 0)
        for index, (name, parameter) in enumerate(module.named_parameters()):
            # Structure goes before values in the key: no value may decide an order that shapes can
            # decide.
            self._know(parameter, (NAMED, key.what, key.held, index), f"{kind}/{name}")

    def name(self, parameter: torch.Tensor) -> str:
        """Return the module's class and the name in it; empty for a parameter without a module."""
        known = self._known.get(id(parameter))
        return "" if known is None or known[0]() is not parameter else known[2]

    def groups(self, optimizer: Optimizer) -> list[list[torch.Tensor]]:
        """Return the parameters of each group of the optimizer, in order."""
        return [self._sorted(group["params"]) for group in optimizer.param_groups]

    def _sorted(self, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # values are digested only for a tie, since that reads all bytes of the tensors
        alike = Counter(map(self._key, parameters))

        def key(parameter: torch.Tensor) -> tuple[Key, str]:
            known = self._key(parameter)
            return known, _held([parameter]) if alike[known] > 1 else ""

        return sorted(parameters, key=key)

    def parameters(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return all parameters of the optimizer in order, group after group."""
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
        """Return the class and parameters of an optimizer, and their values at its first step."""
        parameters = self.parameters(optimizer)
        what = [f"{self.name(parameter)} {structure(parameter)}" for parameter in parameters]
        return SortKey(burst, "\n".join((type(optimizer).__qualname__, *what)), _held(parameters))


def module_key(module: nn.Module, burst: int) -> SortKey:
    """Return the class and parameter names of a module, and their values at its first step."""
    named = list(module.named_parameters())
    what = [f"{name} {structure(parameter)}" for name, parameter in named]
    held = _held([parameter for _, parameter in named])
    return SortKey(burst, "\n".join((type(module).__qualname__, *what)), held)


def parameter_order(
    keys: Sequence[SortKey], parameters: Callable[[int], Iterable[torch.Tensor]]
) -> list[int]:
    """Return for each key its number in the sorted order.

    `parameters` returns the tensors of the item at an index. Equal keys are sorted by the current
    values of these tensors.
    """
    alike = Counter(keys)

    def key(index: int) -> tuple[SortKey, str]:
        known = keys[index]
        return known, _held(parameters(index)) if alike[known] > 1 else ""

    numbers = [0] * len(keys)
    for number, index in enumerate(sorted(range(len(keys)), key=key)):
        numbers[index] = number
    return numbers


def _held(parameters: Iterable[torch.Tensor]) -> str:
    """Return digests of the values and then of the gradients.

    The values go first, so that a different gradient never reorders tensors with different values.
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
    """Ignore a tensor that cannot be digested: the fingerprints report it."""


NamedTensor = tuple[str, torch.Tensor]
# values that describe and do not train; functions and classes are left out as well
_SETTINGS: Final = (str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_MAX_NAMES: Final = 1000
_MAX_NAME: Final = 200
# bool before int, since bool is a subclass of int
_NUMBERS: Final = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def optimized_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return all parameters in the order of the optimizer's groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def capture(
    modules: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    order: TensorOrder,
    problems: Problems,
) -> dict[str, torch.Tensor]:
    """Return every tensor and number of the modules and optimizers, by name, without copying."""
    tensors: dict[str, torch.Tensor] = {}
    with warnings.catch_warnings():
        # A deprecation warning inside `state_dict` that the user turned into an error would lose
        # the evidence.
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
    # a problem makes a strict run an error: without weights nothing would be compared
    if parameters and not any(map(_readable, parameters)):
        problems.note("no optimized parameter can be read, so nothing of the weights was compared")
    return tensors


def parameter_names(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], order: TensorOrder
) -> dict[str, str]:
    """Map `<optimizer>/<parameter index>` to the parameter's name among the tensors of `capture`.

    Left out are parameters without a module, names above 200 characters, and all parameters after
    the first 1,000.
    """
    names: dict[int, str] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            # a parameter that several modules share keeps its first name
            names.setdefault(id(parameter), f"model/{number}/{name}")
    named = {
        f"{number}/{index}": name
        for number, optimizer in enumerate(optimizers)
        for index, parameter in enumerate(order.parameters(optimizer))
        if len(name := names.get(id(parameter), "")) in range(1, _MAX_NAME + 1)
    }
    return dict(islice(named.items(), _MAX_NAMES))


def write_gradients(optimizer: Optimizer, output: Output, problems: Problems) -> None:
    """Write the gradients of the optimizer's last step; leave out parameters without one."""
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
    """Yield the tensors and numbers inside a value, under keys and positions joined by `/`."""
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
    """Return a number as a 0-d tensor of its full width, or bytes as a tensor of bytes.

    Raises `TypeError`, `ValueError` or `RuntimeError` for any other value, or a number of more than
    64 bits.
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
    """Return the module's `state_dict`, or for FSDP of the first kind this rank's own tensors.

    FSDP's `state_dict` would gather the whole model on each rank, and wait for a rank that may
    never get here. Its other state types gather as well.
    """
    # decided before any call of `state_dict`, which would already communicate
    if _gathers(module):
        return dict(_standing(module))
    try:
        # without detaching: a tensor's own class may refuse that
        tensors: Mapping[str, Any] = module.state_dict(keep_vars=True)
    except Exception:
        tensors = module.state_dict()
    return tensors


def _gathers(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    kind = getattr(fsdp, "FullyShardedDataParallel", ())
    return any(isinstance(part, kind) for part in module.modules())


def _standing(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and persistent buffers as they are now, this rank's part of each."""
    yield from module.named_parameters(remove_duplicate=False)
    for path, part in module.named_modules(remove_duplicate=False):
        passing: set[str] = part._non_persistent_buffers_set  # noqa: SLF001 - no public name
        for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
            if name not in passing:
                yield (f"{path}.{name}" if path else name), buffer


def _of_optimizer(
    name: str, optimizer: Optimizer, order: TensorOrder, problems: Problems
) -> Iterator[NamedTensor]:
    """Yield the optimizer's state and groups, without the groups' lists of positions."""
    saved = optimizer.state_dict()
    ordered = {id(parameter): index for index, parameter in enumerate(order.parameters(optimizer))}
    places = {
        at: ordered[id(parameter)] for at, parameter in enumerate(optimized_parameters(optimizer))
    }
    # torch numbers parameters in the order of the groups, which a set may have decided
    state = {places.get(at, at): part for at, part in saved["state"].items()}
    yield from named_tensors(f"{name}/state", state, problems)
    for position, group in enumerate(saved["param_groups"]):
        values = {key: part for key, part in group.items() if key != "params"}
        yield from named_tensors(f"{name}/group/{position}", values, problems)


def _outside_parameters(
    modules: Sequence[nn.Module], optimizers: Sequence[Optimizer], order: TensorOrder
) -> Iterator[NamedTensor]:
    """Yield optimized tensors that no module owns."""
    owned = {id(parameter) for module in modules for parameter in module.parameters()}
    for number, optimizer in enumerate(optimizers):
        for index, parameter in enumerate(order.parameters(optimizer)):
            if id(parameter) not in owned:
                yield f"parameter/{number}/{index}", parameter


def _add(kept: dict[str, torch.Tensor], tensors: Iterator[NamedTensor], problems: Problems) -> None:
    """Keep the first of two tensors with equal names; only a key with `/` can cause that."""
    for name, tensor in tensors:
        if kept.setdefault(name, tensor) is not tensor:
            problems.note(f"{name} is the name of two values, the second is left out of the state")


MAX_BUFFERS = 1000
MAX_BYTES = 4 << 20
MAX_ALL_BYTES = 64 << 20
MAX_NAME = 1000


class ConstantBuffers:
    """Remembers buffers from before the training begins, to find those that stay the same.

    A buffer is remembered when it is registered, and again when the first module is called: until
    then a script may fill it.
    """

    def __init__(self) -> None:
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], bytes]] = {}
        self._places: set[tuple[int, str]] = set()
        self._left = MAX_ALL_BYTES
        self._begun = False

    def note_registered(self, module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
        """Remember a buffer at its registration, before any module is called.

        Only the first registration under a name counts. A later one holds a computed value, which
        may be a result of the training.
        """
        place = id(module), name
        if self._begun or place in self._places or len(self._places) >= MAX_BUFFERS:
            return
        self._places.add(place)
        if buffer is not None:
            self._remember(buffer)

    def look(self, module: nn.Module) -> None:
        """Remember the buffers of the first module that is called, just before that call."""
        if not self._begun:
            self._begun = True
            for buffer in module.buffers():
                self._remember(buffer)

    def _remember(self, buffer: torch.Tensor) -> None:
        if not _can_hold(buffer):
            return
        known = self._before.get(id(buffer))
        # the `id` may have belonged to a buffer that is gone
        if known is None or known[0]() is not buffer:
            if len(self._before) >= MAX_BUFFERS or byte_size(buffer) > self._left:
                return
            self._left -= byte_size(buffer)
        self._before[id(buffer)] = weakref.ref(buffer), _digest(buffer)

    def names(self, modules: Sequence[nn.Module]) -> list[str]:
        """Return the state's names of the buffers that still hold the same infinities."""
        return sorted(self._constant(modules))[:MAX_BUFFERS]

    def _constant(self, modules: Sequence[nn.Module]) -> Iterator[str]:
        for number, module in enumerate(modules):
            for name, buffer in module.named_buffers(remove_duplicate=False):
                reference, digest = self._before.get(id(buffer), (None, b""))
                same = reference is not None and reference() is buffer and len(name) < MAX_NAME - 20
                if same and _digest(buffer) == digest and bool(torch.isinf(buffer).any()):
                    yield f"model/{number}/{name}"


def _can_hold(buffer: torch.Tensor) -> bool:
    plain = type(buffer) is torch.Tensor and buffer.layout is torch.strided
    # a buffer on the device `meta` has no bytes
    return (
        plain
        and not buffer.is_meta
        and buffer.is_floating_point()
        and byte_size(buffer) <= MAX_BYTES
    )


def _digest(buffer: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{buffer.dtype} {tuple(buffer.shape)}\n".encode())
    with torch.no_grad():
        use_bytes(buffer.detach(), digest.update)
    return digest.digest()
