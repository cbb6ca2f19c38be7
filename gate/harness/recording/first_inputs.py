"""Observes what the model is called with: the first call since the last backward pass or step.

Batches that a script slices by hand pass no DataLoader, but they pass the model. torch's global
forward hooks would slow down each call of each layer, warn when a model is compiled, and stop the
compiler. A hook of the model's own would be pickled with it. So `Module.__call__`, through which
all modules are called, is wrapped. While no input is awaited, that costs one check a call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn

from .module_search import note_called

# positional and named
Arguments = tuple[tuple[object, ...], dict[str, object]]

_waiting = [False]
_is_compiling = torch.compiler.is_compiling
_jit: Any = torch.jit
_is_tracing = _jit.is_tracing
_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def await_input() -> None:
    """Observe the next call of a module that is trained."""
    _waiting[0] = True


def install(on_input: Callable[[nn.Module, Arguments], None]) -> None:
    """Call back with the module and the positional and named arguments of such a call."""
    plain: Any = nn.Module.__call__

    def call(self: Any, *args: Any, **named: Any) -> Any:
        # checked first: the compiler takes the answer for a constant and never sees the rest
        if not _is_compiling() and _waiting[0] and _holds_a_batch(self, args, named):
            _waiting[0] = False
            on_input(self, (args, named))
        return plain(self, *args, **named)

    call.__name__ = plain.__name__
    call.__qualname__ = plain.__qualname__
    call.__module__ = plain.__module__
    nn.Module.__call__ = call  # type: ignore[method-assign]
    await_input()


def _holds_a_batch(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a trained module is called with more than numbers and text.

    A learned prompt takes no arguments; the batch enters the module after it. While a graph is
    traced, the arguments are examples, and anything done with them becomes part of the graph.
    """
    passed = any(type(value) not in _PLAIN for value in (*args, *named.values()))
    return passed and not _is_tracing() and torch.is_grad_enabled() and _trained(module)


class _Last:
    """The last observed module, and a parameter of it that requires a gradient."""

    module: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    parameter: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)


def _trained(module: nn.Module) -> bool:
    """Whether the module has a parameter that requires a gradient; an image transform has none."""
    # usually the module of the step before, so its parameters need not be searched again
    if _Last.module() is module and getattr(_Last.parameter(), "requires_grad", False):
        return True
    for parameter in module.parameters():
        if parameter.requires_grad:
            _Last.module, _Last.parameter = weakref.ref(module), weakref.ref(parameter)
            note_called(module)
            return True
    return False
