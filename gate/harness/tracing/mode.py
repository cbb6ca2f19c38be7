"""Installs the tracer in front of the dispatcher, in the main thread and in the script's threads.

The inside of a compiled region is not visible. Calls of ordinary operators that its code makes are
traced, and marked as compiled.
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
    """Passes each call to the tracer; `thread` is 0 for the main thread and autograd's threads."""

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
        """Record the inputs, run the operator, record the outputs."""
        del types
        named = dict(kwargs or {})
        call = None
        # the tracer's own Python must not be reported as executed lines
        paused = pause_lines()
        try:
            # an error here costs the trace one call and never reaches the training
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
    """Trace this process from step `first` on, with the executed lines if `lines` is true."""
    global _tracer
    modules = RunningModules()
    modules.install()
    tracer = Tracer(output, step, first, modules, ExecutedLines() if lines else None)
    _tracer = tracer
    # never left: the mode is active for the rest of the process
    TracingMode(tracer, 0).__enter__()  # type: ignore[no-untyped-call] # as above
    _hook_threads(tracer)
    if lines:
        watch(tracer.line_seen)


def finish() -> None:
    """End the trace: the run is over, or stopped after its last step."""
    if _tracer is not None:
        unwatch()
        _tracer.finish("done")


def _hook_threads(tracer: Tracer) -> None:
    """Give each thread that the script starts a mode of its own: a mode applies to one thread."""
    plain: Any = threading.Thread._bootstrap_inner  # type: ignore[attr-defined] # noqa: SLF001 - subclasses replace `run`

    def bootstrap(thread: threading.Thread) -> None:
        with TracingMode(tracer, next(_threads)):
            plain(thread)

    threading.Thread._bootstrap_inner = bootstrap  # type: ignore[attr-defined] # noqa: SLF001 - as above
