"""One look at a stranger's files in a child of this process, with the limits of the reader.

For a command that a person types, which holds no key: the reader itself is a program of its own,
under another account, and takes half a second to start.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Final, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from gate.adapters.process.answering.confinement import confine_child
from gate.errors import DocumentError, EvidenceError, GateError, SettingsError, StorageError

T = TypeVar("T")
SECONDS: Final = 120.0
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
PIECE_BYTES: Final = 1024 * 1024
ANSWERED, FAULT, TOO_LARGE = 0, 1, 2
KINDS: Final[dict[str, type[GateError]]] = {
    kind.__name__: kind for kind in (DocumentError, EvidenceError, SettingsError, StorageError)
}
_FAULT: Final = TypeAdapter(tuple[str, str, str, tuple[str, ...]])
HINT: Final = "Take what was generated out of it, or name a smaller folder."


def read_apart(
    form: TypeAdapter[T], look: Callable[[], T], *, what: str, seconds: float = SECONDS
) -> T:
    """What `look` finds in a confined child, checked against `form`; `what` names it in faults.

    The child can start no process, write no file and take 4 GiB at most. Raises the `GateError`
    that `look` raised, and `EvidenceError` when it takes too long or too much, or crashes. Only for
    a process without other threads.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _look(form, look, writing)
    os.close(writing)
    try:
        answer = _answer(reading, time.monotonic() + seconds)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if answer is None:
        raise EvidenceError(f"{what} takes longer than {seconds:g} s to read", hint=HINT)
    code = answer[-1] if answer else -1
    if code == FAULT:
        raise _raised(answer[:-1])
    if code == ANSWERED:
        try:
            return form.validate_json(answer[:-1])
        except ValidationError as error:
            raise EvidenceError(f"the reading of {what} gave no sound answer") from error
    if code == TOO_LARGE:
        raise EvidenceError(f"{what} takes too much memory to read", hint=HINT)
    raise EvidenceError(
        f"the process that reads {what} ended early ({os.waitstatus_to_exitcode(status)})",
        hint=HINT,
    )


def _look(form: TypeAdapter[T], look: Callable[[], T], writing: int) -> NoReturn:
    """In the child: an answer and its kind; whatever happens, nothing of the parent goes on."""
    try:
        confine_child()
        try:
            told = form.dump_json(look()) + bytes((ANSWERED,))
        except MemoryError:
            told = bytes((TOO_LARGE,))
        except GateError as fault:
            parts = (type(fault).__name__, fault.message, fault.hint, fault.details)
            told = _FAULT.dump_json(parts) + bytes((FAULT,))
        view = memoryview(told)
        while view:
            view = view[os.write(writing, view) :]
    finally:
        os._exit(0)


def _answer(reading: int, ends_at: float) -> bytes | None:
    """All that comes; None where it takes too long."""
    poller, size = select.poll(), 0
    pieces: list[bytes] = []
    poller.register(reading, select.POLLIN)
    while size <= MAX_ANSWER_BYTES:
        left = ends_at - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        piece = os.read(reading, PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return bytes((TOO_LARGE,))


def _raised(told: bytes) -> GateError:
    try:
        kind, message, hint, details = _FAULT.validate_json(told)
    except ValidationError:
        return EvidenceError("the process that reads gave no sound answer")
    return KINDS.get(kind, EvidenceError)(message, hint=hint, details=details)
