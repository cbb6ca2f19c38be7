"""The command line: arguments in, text and an exit code out.

A verb's module is imported when the verb is called. `digest` and `diff` take a fraction of a second
on a large file, so they read their arguments with the standard library: importing typer, and what
it needs for its first argument, takes as long as reading a gigabyte.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final

from gate.checkpoint.tensor_hashing import gc_paused
from gate.commands.program import INTERRUPTS
from gate.errors import TRACEBACK, GateError, InternalError, StorageError
from gate.system.output_streams import free_of_commands, prepare_streams, unwritten
from gate.system.version import VERSION
from gate.text.untrusted_text import safe_block

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

# Each module has a function `run` that takes the words after the verb.
QUICK_VERBS: Final = {"digest": "gate.commands.digest", "diff": "gate.commands.diff"}
# the verb that has commands of its own to say, and makes each line safe that it quotes
OF_THE_RUNNER: Final = "action"
# What a shell shows for a command that a signal has ended.
SIGNAL_BASE: Final = 128


def main() -> None:
    """Run the command that the program was called with."""
    prepare_streams()
    if sys.argv[1:2] != [OF_THE_RUNNER]:
        free_of_commands()
    try:
        answer(sys.argv[1:], own_process=True)
    finally:
        # the last words are still in a buffer, whose fault would end in an exit code of Python's
        if (fault := unwritten()) is not None:
            raise _ended(fault)


def answer(words: Sequence[str], *, own_process: bool = False) -> None:
    """Run a command; each `GateError` becomes its message and its exit code.

    A process that is there for the command alone looks for no garbage in what it imports.
    """
    try:
        if words and words[0] in QUICK_VERBS:
            if own_process:
                _leave_at_signals()
            _run(words)
            return
        with INTERRUPTS.installed():
            _run(words, own_process=own_process)
    except GateError as error:
        raise _ended(error) from error
    except MemoryError as error:
        raise _ended(
            StorageError(
                "the input needs more memory than this machine has",
                hint="Name fewer or smaller files.",
            )
        ) from error
    except Exception as error:  # the last handler: what was raised may quote a pull request
        if own_process and isinstance(error, OSError):
            fault = unwritten(after_fault=True)
            if fault is not None:
                raise _ended(fault) from error
        if os.environ.get(TRACEBACK) == "1" or "--verbose" in words or "-v" in words:
            sys.stderr.write(f"{safe_block(''.join(traceback.format_exception(error)))}\n")
        raise _ended(InternalError(error)) from error


def _leave_at_signals() -> None:
    """Nothing is to be put in order but the child that reads, see `read_apart`."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(SIGNAL_BASE + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)


def _ended(fault: GateError) -> SystemExit:
    # where nobody can be told, the exit code still tells
    with suppress(OSError):
        sys.stderr.write(f"error: {safe_block(str(fault))}\n")
    return SystemExit(int(fault.exit_code))


def _run(words: Sequence[str], *, own_process: bool = False) -> None:
    if list(words) == ["--version"]:
        sys.stdout.write(f"repro-gate {VERSION}\n")
        return
    if words and words[0] in QUICK_VERBS:
        import_module(QUICK_VERBS[words[0]]).run(words[1:])
        return
    with gc_paused():
        # slow to import
        from gate.commands.verbs import VERBS, Verbs  # noqa: PLC0415

        quick = dict[str, str]()
        if words and words[0] in VERBS:
            import_module(VERBS[words[0]].module)
        else:
            # what the list of all verbs says of these
            quick |= {name: import_module(of).run.__doc__ for name, of in QUICK_VERBS.items()}
        if own_process:
            # it lives as long as the process: looking for garbage in it, now, later and at the
            # end, takes a quarter of a short command's time
            gc.freeze()
    Verbs(quick)(standalone_mode=True)
