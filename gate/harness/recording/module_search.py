"""Finds the model: nobody hands it to the harness, but the garbage collector knows every object."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from ..output import Problems


def outermost_owners(parameters: Sequence[torch.Tensor], problems: Problems) -> list[nn.Module]:
    """The modules that own one of the parameters and lie in no other module.

    In the order of the parameters; of several owners of one parameter the largest comes first.
    """
    owners: dict[int, list[nn.Module]] = {}
    for root, parameter_ids in _parameters_of_roots(problems):
        for parameter_id in parameter_ids:
            owners.setdefault(parameter_id, []).append(root)
    roots = {id(root): root for parameter in parameters for root in owners.get(id(parameter), ())}
    return list(roots.values())


def _live_modules() -> list[nn.Module]:
    """Every module of the process that something still refers to.

    `type()` rather than `isinstance`: the latter asks `__class__`, which wakes lazy proxies.
    """
    gc.collect()  # a dead module, not yet collected in one run of two, would be a difference
    return [item for item in gc.get_objects() if issubclass(type(item), nn.Module)]


def _outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    # one whose `__init__` has not come so far, or was never called, has no children to ask for
    ready = [module for module in modules if "_modules" in module.__dict__]
    inner = {id(child) for module in ready for child in module.children()}
    return [module for module in ready if id(module) not in inner]


def _parameters_of_roots(problems: Problems) -> list[tuple[nn.Module, list[int]]]:
    """Each outermost module with the identities of its parameters, the largest first."""
    rows = []
    for root in _outermost(_live_modules()):
        with problems.noting(f"asking a {type(root).__name__} for its parameters"):
            rows.append((root, [id(parameter) for parameter in root.parameters()]))
    return sorted(rows, key=lambda owned: len(owned[1]), reverse=True)
