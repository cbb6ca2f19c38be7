"""The program's first lines: `repro-gate`, and `python -m gate`.

Importing the rest takes up to a second. A signal in that time would end in a traceback.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

# imports nothing but `enum`
from gate.errors import ExitCode

if TYPE_CHECKING:
    from types import FrameType


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
    raise SystemExit(int(ExitCode.CANCELLED))


if __name__ == "__main__":
    main()
