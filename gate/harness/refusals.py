"""Notices that strict torch refused an operator, even where the script handles the error itself.

Torch raises a plain `RuntimeError` from C++, which Python offers no hook for at the moment when it
is raised. It is looked for where such an error comes by, none of which costs a training step
anything: it leaves the program or a thread, it is printed or logged, the script exits because of
it, or it passes `Tensor.backward`.
"""

from __future__ import annotations

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .alerts import alerting_operator
from .places import Place, place_of

MAX_CHAIN = 20
OnRefusal = Callable[[str, Place], None]


def refused_operator(error: BaseException | None) -> tuple[str, Place] | None:
    """The operator that torch refused, from an error or from one that led to it."""
    for _ in range(MAX_CHAIN):
        if error is None:
            return None
        operator = alerting_operator(str(error)) if isinstance(error, RuntimeError) else None
        if operator is not None:
            return operator, place_of(error.__traceback__)
        error = error.__cause__ or error.__context__
    return None


class Watch:
    """Looks at errors as they come by."""

    def __init__(self, on_refusal: OnRefusal) -> None:
        self._on_refusal = on_refusal

    def look_at(self, error: BaseException | None) -> None:
        """Hand on what torch refused; never raises."""
        try:
            found = refused_operator(error)
            if found is not None:
                self._on_refusal(*found)
        except Exception:
            # in the middle of the script's own error: that one must be seen, not ours
            return

    def install(self) -> None:
        """Stand at every way out that Python lets a program watch."""
        self._at_the_end_of_the_program()
        self._at_the_end_of_a_thread()
        self._where_errors_are_printed()
        self._where_the_script_exits()

    def _at_the_end_of_the_program(self) -> None:
        plain = sys.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self.look_at(error)
            plain(kind, error, trace)

        sys.excepthook = excepthook

    def _at_the_end_of_a_thread(self) -> None:
        plain = threading.excepthook

        def excepthook(args: Any) -> None:
            self.look_at(args.exc_value)
            plain(args)

        threading.excepthook = excepthook

    def _where_errors_are_printed(self) -> None:
        """`traceback.print_exc`, `logging.exception` and worker processes all come through here."""
        shown: Any = traceback.TracebackException
        plain = shown.__init__

        @functools.wraps(plain)
        def remember(itself: Any, kind: Any, error: Any, *args: Any, **kwargs: Any) -> None:
            self.look_at(error if isinstance(error, BaseException) else None)
            plain(itself, kind, error, *args, **kwargs)

        shown.__init__ = remember

    def _where_the_script_exits(self) -> None:
        plain: Any = sys.exit

        @functools.wraps(plain)
        def leave(*args: Any) -> None:
            self.look_at(sys.exc_info()[1])
            plain(*args)

        sys.exit = leave  # type: ignore[assignment]
