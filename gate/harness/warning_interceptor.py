"""Intercepts torch's notices of operators without a deterministic form, whatever a script filters.

In warn-only mode torch gives such a notice as a Python warning, which a script may silence, record
or let through once a line. The notice is therefore caught where `warnings` asks its first filter
whether the text matches: before any filter of the script's, and for every single call. The callback
may raise, and then the operator fails with that error, as it does in strict mode.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

# Sources: at::Context::alertNotDeterministic and ATen's attention_backward.cu.
PHRASES: Final = (
    " does not have a deterministic implementation, but you set",
    " defaults to a non-deterministic algorithm",
)
MAX_NAME_LENGTH = 120
MAX_TEXT_LENGTH = 2000
OnAlert = Callable[[str], None]


def alerting_operator(text: str) -> str | None:
    """The operator that a text of torch's names, or None when it is about something else."""
    for phrase in PHRASES:
        name, separator, _ = text[:MAX_TEXT_LENGTH].partition(phrase)
        if separator and 0 < len(name) <= MAX_NAME_LENGTH and "\n" not in name:
            return name
    return None


class WarningInterceptor:
    """Takes the place of a compiled pattern in the first entry of `warnings.filters`."""

    def __init__(self, on_alert: OnAlert) -> None:
        self._on_alert = on_alert
        # "ignore" is the one action under which `warnings` asks again at every call in silence
        self._entry: Any = ("ignore", self, Warning, None, 0)
        self._on_change: Callable[[], None] = _do_nothing

    def match(self, text: str) -> bool:
        """Whether the text is a notice; it has then been handed on."""
        operator = alerting_operator(text)
        if operator is None:
            return False
        self._on_alert(operator)
        return True

    def install(self) -> None:
        """Go first, and go first again after each change that `warnings` is told of."""
        module: Any = warnings
        plain = module._filters_mutated  # noqa: SLF001 - each of its own functions ends with it

        def keep_first() -> None:
            self._go_first()
            plain()

        self._on_change = keep_first
        # `catch_warnings` and `simplefilter` put filters in front or bring older lists back, and
        # each of them calls this when it is done
        module._filters_mutated = keep_first  # noqa: SLF001 - as above
        keep_first()

    def _go_first(self) -> None:
        filters: Any = warnings.filters
        if not self._is_first():
            filters[:] = [self._entry, *(entry for entry in filters if entry is not self._entry)]

    def _is_first(self) -> bool:
        return bool(warnings.filters) and warnings.filters[0] is self._entry

    def still_first(self) -> bool:
        """Whether nothing has pushed this filter aside, as writing `warnings.filters` would."""
        module: Any = warnings
        return self._is_first() and module._filters_mutated is self._on_change  # noqa: SLF001


def _do_nothing() -> None:
    """Until the interceptor is installed."""
