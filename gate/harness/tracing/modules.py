"""The path of the module that is running, by torch's global forward hooks.

`fc.0` is the name that the outermost module has for it; that one itself is named by its class.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

MAX_PATH: Final = 200
MAX_MODULES: Final = 20_000


class RunningModules(threading.local):
    """The stack of modules under way in this thread."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._names: dict[int, str] = {}

    def install(self) -> None:
        """Follow every forward pass of every module; what the hooks see is not changed."""
        register_module_forward_pre_hook(self._enter)
        register_module_forward_hook(self._leave, always_call=True)

    @property
    def path(self) -> str:
        """The innermost module's path; empty outside all modules."""
        return self._paths[-1] if self._paths else ""

    def _enter(self, module: nn.Module, _args: Any) -> None:
        if not self._paths:
            # anew at each pass: an identity may be another module's by now
            self._names = {}
            for count, (name, part) in enumerate(module.named_modules()):
                if count >= MAX_MODULES:
                    break
                self._names[id(part)] = name
        own = self._names.get(id(module)) or type(module).__name__
        self._paths.append(own[-MAX_PATH:])

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._paths:
            self._paths.pop()
