"""Notices that strict torch refused an operator, even where the script handles the error itself.

Torch raises a plain `RuntimeError` from C++. Python 3.12 and later tell of every error at the time
when it is raised, at no cost to code that raises none. Python 3.11 offers no such hook; there the
error is looked for where it comes by: it leaves the program or a thread, it is printed or logged,
the script exits because of it, or it passes a backward pass.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .user_code import UNKNOWN, CodeLine, failing_line, running_line
from .warning_interceptor import alerting_operator

MAX_CHAIN = 20
# Of the six tools that Python lets register, those that it reserves for no purpose.
FREE_TOOLS = (3, 4)
OnRefusal = Callable[[str, CodeLine], None]


def refused_operator(error: BaseException | None) -> tuple[str, CodeLine] | None:
    """The operator that torch refused, from an error or from one that led to it."""
    for _ in range(MAX_CHAIN):
        if error is None:
            return None
        operator = alerting_operator(str(error)) if isinstance(error, RuntimeError) else None
        if operator is not None:
            return operator, failing_line(error.__traceback__)
        error = error.__cause__ or error.__context__
    return None


class RefusalHooks:
    """Looks at errors as they come by."""

    def __init__(self, on_refusal: OnRefusal) -> None:
        self._on_refusal = on_refusal

    def inspect(self, error: BaseException | None, *, just_raised: bool = False) -> None:
        """Hand on what torch refused; never raises.

        The line of an error that was `just_raised` may be further up than its traceback reaches.
        """
        try:
            refusal = refused_operator(error)
            if refusal is not None:
                operator, place = refusal
                if just_raised and place.file == UNKNOWN:
                    place = running_line()
                self._on_refusal(operator, place)
        except Exception:
            # in the middle of the script's own error: that one must be seen, not ours
            return

    def install(self) -> None:
        """Hook every way out that Python lets a program see."""
        self._hook_raising()
        self._hook_end_of_program()
        self._hook_end_of_thread()
        self._hook_printing()
        self._hook_exit()

    def _hook_raising(self) -> None:
        """From Python 3.12 on, unless two other tools have registered already."""
        monitoring: Any = getattr(sys, "monitoring", None)
        free = FREE_TOOLS if monitoring is not None else ()
        tool = next((number for number in free if monitoring.get_tool(number) is None), None)
        if tool is None:
            return

        def raised(_code: object, _offset: int, error: BaseException) -> None:
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
        """`traceback.print_exc`, `logging.exception` and worker processes all come through here."""
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
