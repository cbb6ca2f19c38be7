"""Run the repro-gate program as a separate process: arguments in, JSON out, errors raised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

# The folder that contains this package also contains the program. `-I` ignores PYTHONPATH and the
# current folder, so that no other package named `gate` is imported instead.
ROOT: Final = str(Path(__file__).resolve().parents[1])
START: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gate.cli import main; main()"
# long enough for the program to stop its trainings and report the cancellation
STOP_SECONDS: Final = 60.0
REFUSED: Final = 1


class ReproGateError(Exception):
    """The program reported an error, or a package does not verify; `hint` says what to do.

    `exit_code` is the exit code of the command line: 1 refused, 2 usage, 3 error, 4 cancelled.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 3) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def started(words: list[str], call: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a command and return the JSON document that it prints.

    `call` is the JSON sent to its standard input. With a call the program trains, so its progress
    goes to this process's standard error. Raises `ReproGateError` for an error that the command
    reports.
    """
    __tracebackhide__ = True
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", START, ROOT, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # inherited for a call: a training takes minutes, and the user wants to see its progress
        stderr=None if call is not None else subprocess.PIPE,
    )
    try:
        out, said = process.communicate(None if call is None else json.dumps(call).encode())
    except BaseException:
        # SIGTERM first: the trainings run in process groups of their own, and only the program
        # knows them. Killed at once, it would leave them running.
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    return _answer(out, (said or b"").decode(errors="replace"), process.returncode)


def _answer(out: bytes, said: str, code: int) -> dict[str, Any]:
    __tracebackhide__ = True
    try:
        answer = json.loads(out)
    except ValueError:
        answer = None
    # The exit code does not decide: a command that finds a difference ends with 1 too, and prints a
    # document.
    if not isinstance(answer, dict):
        # Notes may come before the error, so cut at the first `error: `. Everything after it is the
        # message, which may quote another error.
        text = (f"\n{said}".partition("\nerror: ")[2] or said).strip()
        message, _, hint = text.partition("\nhint: ")
        raise ReproGateError(
            message or f"the program ended with {code}", hint=hint, exit_code=code or 3
        )
    fault = answer.get("fault")
    if fault is not None:
        raise ReproGateError(fault["message"], hint=fault["hint"], exit_code=fault["exit_code"])
    return answer
