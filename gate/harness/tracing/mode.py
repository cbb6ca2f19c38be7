"""Puts the tracer before the dispatcher, in the main thread and in every thread of the script's.

What a compiled region consists of is not seen: its calls of ordinary operators are, and marked.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..operator_audit import DispatchMode
from ..output import Output
from .places import ExecutedLines, RunningModules, pause_lines, resume_lines, unwatch, watch
from .tracer import Tracer

_tracer: Tracer | None = None
_threads = itertools.count(1)


class TracingMode(DispatchMode):  # type: ignore[no-untyped-call] # torch's own lacks types
    """Hands each call to the tracer; `thread` is 0 for the main thread and those of the engine."""

    def __init__(self, tracer: Tracer, thread: int) -> None:
        super().__init__()
        self._tracer = tracer
        self._thread = thread

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Look at what goes in, let the operator run, look at what comes out."""
        del types
        named = dict(kwargs or {})
        call = None
        paused = pause_lines()
        try:
            # a fault here is a call that is missing in the trace, never one of the training
            call = self._tracer.begin(func, args, named)
        except Exception:
            self._tracer.failed()
        resume_lines(paused)
        result = func(*args, **named)
        if call is not None:
            paused = pause_lines()
            try:
                self._tracer.end(call, result, self._thread)
            except Exception:
                self._tracer.failed()
            resume_lines(paused)
        return result


def install(output: Output, step: Callable[[], int], *, first: int, lines: bool) -> None:
    """Trace this process from the step `first` on, with the executed lines where asked for."""
    global _tracer
    modules = RunningModules()
    modules.install()
    tracer = Tracer(output, step, first, modules, ExecutedLines() if lines else None)
    _tracer = tracer
    TracingMode(tracer, 0).__enter__()  # type: ignore[no-untyped-call] # as above
    _hook_threads(tracer)
    if lines:
        watch(tracer.line_seen)


def finish() -> None:
    """The run is over, or stopped after the last step."""
    if _tracer is not None:
        unwatch()
        _tracer.finish("done")


def _hook_threads(tracer: Tracer) -> None:
    """A mode counts for one thread; each that the script starts gets one of its own."""
    plain: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined] # noqa: SLF001 - subclasses replace `run`

    def bootstrap(thread: threading.Thread) -> None:
        with TracingMode(tracer, next(_threads)):
            plain(thread)

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined] # noqa: SLF001 - as above
