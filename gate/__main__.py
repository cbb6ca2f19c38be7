"""The program's first lines: `repro-gate`, and `python -m gate`.

What it imports takes up to a second, in which a signal would end in a traceback of Python's.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

# `gate.errors` has it by its name, and is not imported yet
CANCELLED = 4


def main() -> None:
    """Run the program; until it has handlers of its own, a signal ends it in one line."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # `nohup` and a shell's `&` ask for this
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from gate.cli import main as run  # noqa: PLC0415 - see above

    run()


def _leave(number: int, frame: FrameType | None) -> None:
    del frame
    sys.stderr.write(f"error: cancelled by {signal.Signals(number).name}\n")
    raise SystemExit(CANCELLED)


if __name__ == "__main__":
    main()
