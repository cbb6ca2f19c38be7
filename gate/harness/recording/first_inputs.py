"""What the model is called with: the first call since the last backward pass or step.

Batches that a script cuts by hand pass no DataLoader, but they pass the model. torch's global
forward hooks would make each call of each layer slow, warn where a model is compiled, and stop the
compiler; a hook of the model's own would be pickled with it. So the one method is wrapped through
which all modules are called: while nothing is waited for it costs a question.
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
    """Take the next call of a module that is trained."""
    _waiting[0] = True


def install(on_input: Callable[[nn.Module, Arguments], None]) -> None:
    """Call back with the module and the positional and named arguments of such a call."""
    plain: Any = nn.Module.__call__

    def call(self: Any, *args: Any, **named: Any) -> Any:
        # asked first: the compiler takes the answer for a constant and never sees the rest
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
    """Whether a module that is trained is called with more than numbers and words.

    A learned prompt takes nothing; the batch enters behind it. While a graph is traced, what looks
    like a batch is an example, and whatever is done with it becomes part of the graph.
    """
    passed = any(type(value) not in _PLAIN for value in (*args, *named.values()))
    return passed and not _is_tracing() and torch.is_grad_enabled() and _trained(module)


class _Last:
    """The module that was taken last, and a parameter of it that wanted a gradient."""

    module: ClassVar[Callable[[], object]] = staticmethod(lambda: None)
    parameter: ClassVar[Callable[[], Any]] = staticmethod(lambda: None)


def _trained(module: nn.Module) -> bool:
    """Whether it has a parameter that wants a gradient: a transform of images has none."""
    # nearly always it is the same one as at the step before: its parameters are not gone through
    if _Last.module() is module and getattr(_Last.parameter(), "requires_grad", False):
        return True
    for parameter in module.parameters():
        if parameter.requires_grad:
            _Last.module, _Last.parameter = weakref.ref(module), weakref.ref(parameter)
            note_called(module)
            return True
    return False
