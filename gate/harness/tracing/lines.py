"""Which lines of the script ran, and before which call of the trace each ran for the first time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from ..user_code import in_library, in_machinery, shown_file

MAX_LINES: Final = 20_000
A_DOCUMENT: Final = 300
OnLine = Callable[[str, int], None]


class ExecutedLines:
    """File and line, with the number of the call that came next."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], int] = {}

    def note(self, file: str, line: int, call: int) -> None:
        """Only the first time counts; beyond `MAX_LINES` the rest is dropped."""
        if len(self._first) < MAX_LINES:
            self._first.setdefault((file, line), call)

    def documents(self) -> Iterator[dict[str, Any]]:
        """All of them, in parts of bounded size."""
        rows = [[file, line, call] for (file, line), call in self._first.items()]
        for start in range(0, len(rows), A_DOCUMENT):
            yield {"kind": "lines", "lines": rows[start : start + A_DOCUMENT]}


def watch(on_line: OnLine) -> None:
    """Call back for each line of this thread's user code that runs, the running script's too.

    A debugger of the script's own takes the place of this, and then lines are missing.
    """
    names: dict[str, str] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            on_line(names[frame.f_code.co_filename], frame.f_lineno)
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        known = names.get(file)
        if known is None:
            known = "" if in_machinery(file) or in_library(file) else shown_file(file)
            names[file] = known
        return local if known else None

    # frames that run already have no tracer of their own: the script's module is one of them
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect offers only slower copies
    while frame is not None:
        frame.f_trace = entered(frame, "call", None)
        if frame.f_trace is not None:
            for line in _ran_before(frame):
                on_line(names[frame.f_code.co_filename], line)
        frame = frame.f_back
    sys.settrace(entered)


def _ran_before(frame: FrameType) -> list[int]:
    """Lines of a module's own level up to the one that imports torch; branches are not told apart.

    The harness sees nothing before torch is there. Of a function only the line itself is known.
    """
    now = frame.f_lineno or 0
    if frame.f_code.co_name != "<module>":
        return [now]
    lines = {line for _, _, line in frame.f_code.co_lines() if line}
    return sorted(line for line in lines if line <= now)
