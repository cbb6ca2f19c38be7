"""The program in a process of its own: words in, JSON out, its errors as exceptions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

# The folder that has this package has the program too; isolated mode keeps every other `gate` out.
ROOT: Final = str(Path(__file__).resolve().parents[1])
START: Final = "import sys; sys.path.insert(0, sys.argv.pop(1)); from gate.cli import main; main()"
# a training that is told to stop, and the report of that
STOP_SECONDS: Final = 60.0
REFUSED: Final = 1


class ReproGateError(Exception):
    """Something could not be done, or a package does not verify; `hint` says what to do.

    `exit_code` is that of the command line: 1 refused, 2 usage, 3 error, 4 cancelled.
    """

    def __init__(self, message: str, *, hint: str = "", exit_code: int = 3) -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def started(words: list[str], call: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON that a command prints; progress goes to standard error where `call` is given.

    Raises `ReproGateError` for what the command reports as an error.
    """
    __tracebackhide__ = True
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", START, ROOT, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # a training takes its time: who waits sees how far it is
        stderr=None if call is not None else subprocess.PIPE,
    )
    try:
        out, said = process.communicate(None if call is None else json.dumps(call).encode())
    except BaseException:
        # the trainings live in groups of their own, which the program alone can end
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
    # a difference ends with 1 as well, and has its document
    if not isinstance(answer, dict):
        # before it are notes; what follows belongs to it, whatever it quotes
        text = (f"\n{said}".partition("\nerror: ")[2] or said).strip()
        message, _, hint = text.partition("\nhint: ")
        raise ReproGateError(
            message or f"the program ended with {code}", hint=hint, exit_code=code or 3
        )
    fault = answer.get("fault")
    if fault is not None:
        raise ReproGateError(fault["message"], hint=fault["hint"], exit_code=fault["exit_code"])
    return answer
