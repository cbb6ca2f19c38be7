"""Handles operators that the determinism flag refuses or does not cover.

The mode decides how. *Strict:* torch refuses, and the harness records what. *Strict with an
allow-list:* torch only warns, and the harness refuses what is not on the list. *Operator audit:*
nothing is refused, everything is counted. The gate passes the names to look for, and knows what to
say about each.

In warn-only mode torch's notice is a Python warning. A script may silence it, record it, or let it
through once a line. So the notice is caught where `warnings` asks its first filter whether the text
matches: before any filter of the script's, and at every single call. The callback may raise. Then
the operator fails with that error, as in strict mode.

A refusal is a plain `RuntimeError` from C++. Python 3.12 and later report every error when it is
raised (`sys.monitoring`), at no cost to code that raises none. Python 3.11 has no such hook. There
the error is looked for at the places it passes: it leaves the program or a thread, is printed or
logged, makes the script exit, or passes a backward pass.
"""

from __future__ import annotations

import functools
import gc
import mmap
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import torch

from .operator_audit import DispatchRecorder, OperatorCounts
from .output import Output, Problems
from .settings import HarnessSettings
from .user_code import UNKNOWN, CodeLine, failing_line, running_line

# sources of the texts: at::Context::alertNotDeterministic, and ATen's attention_backward.cu
PHRASES: Final = (
    " does not have a deterministic implementation, but you set",
    " defaults to a non-deterministic algorithm",
)
MAX_NAME_LENGTH = 120
MAX_TEXT_LENGTH = 2000
OnAlert = Callable[[str], None]


def alerting_operator(text: str) -> str | None:
    """Return the operator that a text of torch names, or None if it is about something else."""
    for phrase in PHRASES:
        name, separator, _ = text[:MAX_TEXT_LENGTH].partition(phrase)
        if separator and 0 < len(name) <= MAX_NAME_LENGTH and "\n" not in name:
            return name
    return None


class WarningInterceptor:
    """Stands in for the compiled pattern of the first entry of `warnings.filters`."""

    def __init__(self, on_alert: OnAlert) -> None:
        self._on_alert = on_alert
        # with the action "ignore", `warnings` remembers nothing, so it asks at every call, silently
        self._entry: Any = ("ignore", self, Warning, None, 0)
        self._on_change: Callable[[], None] = _do_nothing

    def match(self, text: str) -> bool:
        """Return whether the text is a notice; if so, report the operator first."""
        operator = alerting_operator(text)
        if operator is None:
            return False
        self._on_alert(operator)
        return True

    def install(self) -> None:
        """Put this filter first, and again after each change of the filters."""
        module: Any = warnings
        plain = module._filters_mutated  # noqa: SLF001 - each of its own functions ends with it

        def keep_first() -> None:
            self._go_first()
            plain()

        self._on_change = keep_first
        # `catch_warnings` and `simplefilter` insert filters or restore older lists. Each of them
        # calls this function at its end.
        module._filters_mutated = keep_first  # noqa: SLF001 - as above
        keep_first()

    def _go_first(self) -> None:
        filters: Any = warnings.filters
        if not self._is_first():
            filters[:] = [self._entry, *(entry for entry in filters if entry is not self._entry)]

    def _is_first(self) -> bool:
        return bool(warnings.filters) and warnings.filters[0] is self._entry

    def still_first(self) -> bool:
        """Whether this filter is still first; assigning `warnings.filters` would displace it."""
        module: Any = warnings
        return self._is_first() and module._filters_mutated is self._on_change  # noqa: SLF001


def _do_nothing() -> None:
    """Do nothing: the interceptor is not installed yet."""


# causes of an error may form a cycle
MAX_CHAIN = 20
# of Python's six monitoring tools, the two ids without a predefined purpose
FREE_TOOLS = (3, 4)
OnRefusal = Callable[[str, CodeLine], None]


def refused_operator(error: BaseException | None) -> tuple[str, CodeLine] | None:
    """Return the operator that torch refused, from an error or one of its causes."""
    for _ in range(MAX_CHAIN):
        if error is None:
            return None
        operator = alerting_operator(str(error)) if isinstance(error, RuntimeError) else None
        if operator is not None:
            return operator, failing_line(error.__traceback__)
        error = error.__cause__ or error.__context__
    return None


class RefusalHooks:
    """Looks at errors wherever Python shows them to a program."""

    def __init__(self, on_refusal: OnRefusal) -> None:
        self._on_refusal = on_refusal

    def inspect(self, error: BaseException | None, *, just_raised: bool = False) -> None:
        """Report an operator that torch refused; never raises.

        If the error was `just_raised`, its traceback may not reach the script's line yet. Then the
        running frames give it.
        """
        try:
            refusal = refused_operator(error)
            if refusal is not None:
                operator, place = refusal
                if just_raised and place.file == UNKNOWN:
                    place = running_line()
                self._on_refusal(operator, place)
        except Exception:
            # the script's own error is in progress: that one must be seen, not the harness's
            return

    def install(self) -> None:
        """Hook every place where Python lets a program see an error."""
        self._hook_raising()
        self._hook_end_of_program()
        self._hook_end_of_thread()
        self._hook_printing()
        self._hook_exit()

    def _hook_raising(self) -> None:
        """Hook raising itself, from Python 3.12 on, unless both free tool ids are in use."""
        monitoring: Any = getattr(sys, "monitoring", None)
        free = FREE_TOOLS if monitoring is not None else ()
        tool = next((number for number in free if monitoring.get_tool(number) is None), None)
        if tool is None:
            return

        def raised(_code: object, _offset: int, error: BaseException) -> None:
            # the exact type, as torch raises it: a cheap check, since every error of the script
            # comes here
            if type(error) is RuntimeError:
                self.inspect(error, just_raised=True)

        monitoring.use_tool_id(tool, str(__package__).partition(".")[0])
        monitoring.register_callback(tool, monitoring.events.RAISE, raised)
        monitoring.set_events(tool, monitoring.events.RAISE)

    def _hook_end_of_program(self) -> None:
        plain = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.inspect(error)
            plain(kind, error, trace)

        sys.excepthook = excepthook

    def _hook_end_of_thread(self) -> None:
        plain = threading.excepthook

        def excepthook(args: Any) -> None:
            self.inspect(args.exc_value)
            plain(args)

        threading.excepthook = excepthook

    def _hook_printing(self) -> None:
        """Hook the class by which `traceback`, `logging.exception` and workers print errors."""
        shown: Any = traceback.TracebackException
        plain = shown.__init__

        @functools.wraps(plain)
        def remember(itself: Any, kind: Any, error: Any, *args: Any, **kwargs: Any) -> None:
            self.inspect(error if isinstance(error, BaseException) else None)
            plain(itself, kind, error, *args, **kwargs)

        shown.__init__ = remember

    def _hook_exit(self) -> None:
        plain: Any = sys.exit

        @functools.wraps(plain)
        def leave(*args: Any) -> None:
            self.inspect(sys.exc_info()[1])
            plain(*args)

        sys.exit = leave  # type: ignore[assignment]


MAX_NAMES = 200
AUTOTUNER_MODULE: Final = "triton.runtime.autotuner"
# every compiled extension that can use a tensor is linked with one of these
LIBRARIES: Final = (b"libc10.so", b"libtorch.so", b"libtorch_cpu.so", b"libtorch_python.so")


def imported(names: tuple[str, ...]) -> list[str]:
    """Return the watched modules that the process has imported."""
    return [name for name in names if sys.modules.get(name) is not None]


def autotuned_kernels() -> list[dict[str, Any]]:
    """Return Triton kernels that ran and chose among several configurations by timing them.

    torch's own compiler uses autotuners of another class, which the determinism flag covers.
    """
    autotuner = getattr(sys.modules.get(AUTOTUNER_MODULE), "Autotuner", None)
    if not isinstance(autotuner, type):
        return []
    kernels: dict[str, dict[str, Any]] = {}
    for tuner in filter(lambda item: type(item) is autotuner, gc.get_objects()):
        choices = len(getattr(tuner, "configs", ()))
        # an empty cache means that the kernel has not run, so nothing was chosen
        if choices > 1 and getattr(tuner, "cache", None):
            kernel = getattr(getattr(tuner, "base_fn", None), "__name__", "unknown")
            kernels[kernel] = {"kernel": str(kernel)[:MAX_NAME_LENGTH], "configurations": choices}
    return list(kernels.values())[:MAX_NAMES]


def compiled_extensions(torch_folder: Path) -> list[str]:
    """Return names of imported extension modules outside torch that are linked with torch."""
    names = []
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if file.endswith(".so") and not file.startswith(str(torch_folder)) and _uses_torch(file):
            names.append(name[:MAX_NAME_LENGTH])
    return sorted(names)[:MAX_NAMES]


def _uses_torch(file: str) -> bool:
    """Whether the file contains the name of one of torch's libraries; False if unreadable."""
    try:
        with Path(file).open("rb") as opened, _mapped(opened.fileno()) as content:
            return any(content.find(library) >= 0 for library in LIBRARIES)
    except (OSError, ValueError):
        return False


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


_interceptor: WarningInterceptor | None = None
_refusal_hooks: RefusalHooks | None = None
_dispatch_recorder: DispatchRecorder | None = None


class Operators:
    """Records what one process learns about operators."""

    def __init__(
        self,
        settings: HarnessSettings,
        output: Output,
        problems: Problems,
        step: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._output = output
        self._problems = problems
        self._operator_audit = OperatorCounts(step)

    def on_alert(self, operator: str) -> None:
        """Handle torch's notice about an operator: count it if allowed, refuse it otherwise.

        Raises `RuntimeError` for an operator that strict mode does not allow.
        """
        place = running_line()
        if not self._settings.strict or operator in self._settings.allowed:
            with self._problems.noting("counting an operator"):
                self._operator_audit.count("alert", operator, "any", place)
            return
        self.refused(operator, place)
        raise RuntimeError(_refusal(operator, place))

    def refused(self, operator: str, place: CodeLine) -> None:
        """Record a refusal, and write at once since the process may be about to end."""
        if self._operator_audit.refuse(operator, place):
            self.write()

    def on_call(self, operator: str, device: str, place: CodeLine) -> None:
        """Count a call that the operator audit saw."""
        self._operator_audit.count("call", operator, device, place)

    def guarded(self, look: Callable[[], None]) -> None:
        """Run `look`; an error becomes a problem of the run."""
        with self._problems.noting("counting an operator"):
            look()

    def after_step(self) -> None:
        """Note a problem if the script has displaced the filter that catches torch's notices."""
        if _interceptor is not None and not _interceptor.still_first():
            self._problems.note(
                "the script replaced Python's list of warning filters, so operators without a "
                "deterministic form could run unnoticed"
            )

    def write(self) -> None:
        """Write the document; without the operator audit, only if there is something in it."""
        with self._problems.noting("writing the operator audit"):
            counted = self._counted()
            if self._settings.operator_audit or any(counted.values()):
                document = {"pid": self._output.pid, "rank": self._output.rank, **counted}
                self._output.document_or_complaint("operators", document)

    def _counted(self) -> dict[str, Any]:
        operator_audit = self._settings.operator_audit
        folder = Path(torch.__file__).parent
        return {
            "refused": self._operator_audit.refusals,
            "uses": self._operator_audit.uses,
            "modules": imported(self._settings.modules),
            "autotuners": autotuned_kernels(),
            "extensions": compiled_extensions(folder) if operator_audit else [],
            "dropped": self._operator_audit.dropped,
        }


def _refusal(operator: str, place: CodeLine) -> str:
    """Return the text of torch's own refusal, with the line and how to allow the operator."""
    return (
        f"{operator} does not have a deterministic implementation, but you set strict mode "
        f"(repro-gate, at {place}). To allow it at a weaker level, add it to "
        "determinism.allow_operators."
    )


def install(settings: HarnessSettings, operators: Callable[[], Operators | None]) -> None:
    """Install the hooks for the mode; `operators` returns the record of the current process."""
    global _interceptor, _refusal_hooks, _dispatch_recorder
    if settings.warn_only:
        # torch shows some notices once a process, which would leave later calls uncounted
        torch.set_warn_always(True)
        _interceptor = WarningInterceptor(
            lambda name: _with(operators(), lambda current: current.on_alert(name))
        )
        _interceptor.install()
    elif settings.strict:
        _refusal_hooks = RefusalHooks(
            lambda name, at: _with(operators(), lambda current: current.refused(name, at))
        )
        _refusal_hooks.install()
    if settings.operator_audit:
        _dispatch_recorder = DispatchRecorder(
            settings.operators,
            lambda name, device, place: _with(
                operators(), lambda current: current.on_call(name, device, place)
            ),
            lambda look: _with(operators(), lambda current: current.guarded(look)),
        )
        _dispatch_recorder.__enter__()  # type: ignore[no-untyped-call] # torch's own lacks types


def inspect_error(error: RuntimeError) -> None:
    """Look at the error of a backward pass: in strict mode torch may have refused an operator."""
    if _refusal_hooks is not None:
        _refusal_hooks.inspect(error, just_raised=True)


def _with(operators: Operators | None, do: Callable[[Operators], None]) -> None:
    if operators is not None:
        do(operators)
