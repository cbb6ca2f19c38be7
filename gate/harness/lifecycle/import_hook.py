"""Calls functions once, right after a module has been imported for the first time.

The finder stays installed and only ever shadows `exec_module` of the loader that the ordinary
finders chose: `find_spec` probes, which libraries use to ask whether torch exists, do not disarm
it. Imported by every Python process of a training, so nothing heavy is imported here.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _frozen_importlib import ModuleSpec
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

    AfterImport = Callable[[], None]


class ImportHook:
    """A meta path finder that runs each `callbacks[name]` after the import of `name`, in order.

    A callback must not raise: it would look like a failed import of the user's library.
    """

    def __init__(self, *callbacks: Mapping[str, AfterImport]) -> None:
        names = dict.fromkeys(name for each in reversed(callbacks) for name in each)
        self._waiting = {name: [each[name] for each in callbacks if name in each] for name in names}
        self._asking: set[tuple[str, int]] = set()

    def install(self) -> None:
        """Go first on the meta path; call back at once for what has been imported already."""
        for name in list(self._waiting):
            if name in sys.modules:
                self._fire(name)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders answer, and note when their loader runs the module."""
        question = (name, get_ident())
        # other finders may come back to this one with the same question; another thread may ask it
        # for itself at the same time, and has to be answered
        if name not in self._waiting or question in self._asking:
            return None
        self._asking.add(question)
        try:
            spec = self._ask_others(name, path, target)
        finally:
            self._asking.discard(question)
        if spec is not None and spec.loader is not None:
            self._shadow(name, spec.loader)
        return spec

    def _ask_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                return spec
        return None

    def _shadow(self, name: str, loader: object) -> None:
        """Replace `exec_module` on this one loader object until it is called."""
        run_module: Callable[[ModuleType], None] = loader.exec_module  # type: ignore[attr-defined]

        def run_then_call_back(module: ModuleType) -> None:
            # the object's own attribute: from here on the loader's class answers again
            del loader.exec_module  # type: ignore[attr-defined]
            run_module(module)
            self._fire(name)

        loader.exec_module = run_then_call_back  # type: ignore[attr-defined]

    def _fire(self, name: str) -> None:
        for callback in self._waiting.pop(name, ()):
            callback()
