"""Finds the model and its optimizers, which nobody passes to the harness.

Every new module and optimizer runs its class's `__init__`, or `__setstate__` if it is copied or
loaded. There it is remembered by a weak reference. The garbage collector, which knows every object,
is asked only if that is not enough. Going through all objects of a process with torch takes a
quarter of a second, as long as thirty steps of a small training.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ..output import Problems
from ..user_code import unseen_by_warnings

_is_compiling: Final = torch.compiler.is_compiling


class Made:
    """Modules and optimizers of this process by their ids, in order; None until remembered."""

    modules: weakref.WeakValueDictionary[int, nn.Module] | None = None
    optimizers: weakref.WeakValueDictionary[int, Optimizer] | None = None
    # the modules that were seen at work, so they are alive and not garbage awaiting collection
    called: ClassVar[weakref.WeakValueDictionary[int, nn.Module]] = weakref.WeakValueDictionary()


def remember() -> None:
    """Remember each module and each optimizer that is created from now on."""
    Made.modules = weakref.WeakValueDictionary()
    Made.optimizers = weakref.WeakValueDictionary()
    for kind, kept in ((nn.Module, Made.modules), (Optimizer, Made.optimizers)):
        for name in ("__init__", "__setstate__"):
            setattr(kind, name, _remembering(getattr(kind, name), kept))


def _remembering(plain: Any, kept: Any) -> Any:
    @functools.wraps(plain)
    def method(self: Any, *args: Any, **named: Any) -> Any:
        # checked first: the compiler takes the answer for a constant and never sees the rest
        if not _is_compiling():
            # an object without weak references is left to the search through all objects
            with suppress(TypeError):
                kept[id(self)] = self
        return plain(self, *args, **named)

    return unseen_by_warnings(method)


def note_called(module: nn.Module) -> None:
    """Note that the script has called this module."""
    Made.called[id(module)] = module


def known_optimizers() -> list[Optimizer]:
    """Return every optimizer of the process that has parameter groups."""
    if Made.optimizers is not None:
        optimizers_found: list[Any] = list(Made.optimizers.values())
    else:
        optimizers_found = [item for item in gc.get_objects() if issubclass(type(item), Optimizer)]
    return [optimizer for optimizer in optimizers_found if "param_groups" in vars(optimizer)]


def outermost_owners(parameters: Sequence[torch.Tensor], problems: Problems) -> list[nn.Module]:
    """Return the modules that own one of the parameters and are inside no other module.

    They are in the order of the parameters. Of several owners of one parameter the largest comes
    first.
    """
    if Made.modules is not None:
        owners = _owners(list(Made.modules.values()), problems)
        if all(id(parameter) in owners for parameter in parameters):
            roots = _in_order(parameters, owners)
            # a dead module that only one of two runs has collected already would look like a
            # difference
            if all(id(root) in Made.called for root in roots):
                return roots
            # drop the references held here, or the collector could not free dead modules
            del owners, roots
            gc.collect()
            return _in_order(parameters, _owners(list(Made.modules.values()), problems))
    return _in_order(parameters, _owners(_live_modules(), problems))


def _in_order(
    parameters: Sequence[torch.Tensor], owners: dict[int, list[nn.Module]]
) -> list[nn.Module]:
    roots = {id(root): root for parameter in parameters for root in owners.get(id(parameter), ())}
    return list(roots.values())


def _owners(modules: Sequence[nn.Module], problems: Problems) -> dict[int, list[nn.Module]]:
    """Map the `id` of each parameter to the outermost modules that own it."""
    owners: dict[int, list[nn.Module]] = {}
    for root, parameter_ids in _parameters_of_roots(modules, problems):
        for parameter_id in parameter_ids:
            owners.setdefault(parameter_id, []).append(root)
    return owners


def _live_modules() -> list[nn.Module]:
    """Return every module of the process that something still refers to.

    `type()` instead of `isinstance`, which reads `__class__` and so wakes lazy proxies.
    """
    gc.collect()
    return [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    # a module whose `__init__` has not run that far, or never ran, has no children to ask for
    ready = [module for module in modules if "_modules" in module.__dict__]
    inner = {id(child) for module in ready for child in module.children()}
    return [module for module in ready if id(module) not in inner]


def _parameters_of_roots(
    modules: Iterable[nn.Module], problems: Problems
) -> list[tuple[nn.Module, list[int]]]:
    """Return each outermost module with its parameters' ids, the largest first."""
    rows = []
    for root in _outermost(modules):
        with problems.noting(f"asking a {type(root).__name__} for its parameters"):
            rows.append((root, [id(parameter) for parameter in root.parameters()]))
    return sorted(rows, key=lambda owned: len(owned[1]), reverse=True)
