"""Hook integrity: notices a script that replaces the harness's own functions.

No defence against malice, which can replace this one too: a test helper that patches everything
in sight, or a script that silences what it takes for a debugger, must not look like a training
without steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType

# of this package and its subpackages, by whichever name the training's process knows it
_OURS = str(__package__).removesuffix("lifecycle")

_remembered: dict[str, object] = {}


def remember_functions() -> None:
    """Take the harness's functions and methods, as they are now, for the right ones."""
    _remembered.update(_functions())


def replaced_functions() -> list[str]:
    """One sentence for each of them that is another one now."""
    now = dict(_functions())
    return [
        f"the script replaced the harness's {name}"
        for name, function in _remembered.items()
        if now.get(name) is not function
    ]


def _functions() -> Iterator[tuple[str, object]]:
    for module_name, module in list(sys.modules.items()):
        if not module_name.startswith(_OURS):
            continue
        short = module_name.rpartition(".")[2]
        for name, value in list(vars(module).items()):
            # what a module only imported is not its own, and torch replaces parts of itself
            if not str(getattr(value, "__module__", "")).startswith(_OURS):
                continue
            if isinstance(value, FunctionType):
                yield f"{short}.{name}", value
            elif isinstance(value, type):
                yield from _methods(f"{short}.{name}", value)


def _methods(owner: str, kind: type) -> Iterator[tuple[str, object]]:
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield f"{owner}.{name}", value
