"""Reads untrusted files in a child of this process that has the reader's limits (rule T5).

This serves commands that a person types, whose checkpoint, package, bundle or settings file may
come from anybody. The gate's reader is a separate program under another account and takes half a
second to start. This child is a fork that limits itself before it reads, which costs milliseconds.
The parent alone writes, prints and reads private keys, and it reads no key before the child ends.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from gate.errors import (
    TRACEBACK,
    AttestationError,
    BaselineError,
    CommitError,
    DataError,
    DocumentError,
    EvidenceError,
    GateError,
    InternalError,
    KeyFileError,
    KeyServiceDownError,
    RepositoryError,
    SettingsError,
    StorageError,
)
from gate.isolation.confinement import CPU_SECONDS, confine_child
from gate.isolation.kernel_calls import library
from gate.text.untrusted_text import safe_block

T = TypeVar("T")
SECONDS: Final = 120.0
# reading a checkpoint from a slow disk, on a processor without instructions for SHA-256
SLOWEST_BYTES_A_SECOND: Final = 20_000_000
# all files of a sharded checkpoint are open at once; the system's own limit applies too
MOST_SHARDS: Final = 65_536
MAX_SIZED: Final = 100_000
MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
# for a million leaves with their paths, or all that a call of hundreds of runs kept
LARGE_ANSWER_BYTES: Final = 1024**3
PIECE_BYTES: Final = 1024 * 1024
ANSWERED, FAULT, TOO_LARGE = 0, 1, 2
# signals that end a command; the parent handles them and kills the child
STOPPING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# linux/prctl.h
PR_SET_PDEATHSIG: Final = 1
BAD_ANSWER: Final = (
    "The file may be crafted to break its reader: create it again, or get it from its source."
)
KINDS: Final[dict[str, type[GateError]]] = {
    kind.__name__: kind
    for kind in (
        AttestationError,
        BaselineError,
        CommitError,
        DataError,
        DocumentError,
        EvidenceError,
        InternalError,
        KeyFileError,
        KeyServiceDownError,
        RepositoryError,
        SettingsError,
        StorageError,
    )
}
HINT: Final = "Name fewer or smaller files."


class Form(Protocol[T]):
    """How an answer is serialised and checked: pydantic's `TypeAdapter`, or a `PlainForm`."""

    def dump_json(self, instance: T, /) -> bytes:
        """Return the answer as JSON."""
        ...

    def validate_json(self, data: bytes, /) -> T:
        """Parse an answer; raises `ValueError` if it has another form."""
        ...


def read_apart(  # noqa: PLR0913 - what is read, how much of it, and how it is reported differ
    form: Form[T],
    look: Callable[[], T],
    *,
    what: str,
    seconds: float = SECONDS,
    answer_bytes: int = MAX_ANSWER_BYTES,
    hint: str = HINT,
    confined: bool = True,
) -> T:
    """Run `look` in a confined child and return its result, checked against `form`.

    `what` names the input in errors. The child can start no process, write no file, use no network
    and take 4 GiB at most. Raises the `GateError` that `look` raised, and `EvidenceError` if the
    child takes too much time or memory, or crashes. The calling process must have no other threads.

    With `confined` False the child may start programs and use the network, as a key service
    requires. It then reads no untrusted input. Its memory ends with it, so the parent never holds
    the key (rule T1).
    """
    reading, writing = os.pipe()
    try:
        # block signals until the child's number is known, so that no exception leaves a child
        # behind
        with _held_back() as before:
            child = os.fork()
            if child == 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                _look(form, look, writing, max(CPU_SECONDS, int(seconds)) if confined else None)
        try:
            os.close(writing)
            answer = _answer(reading, time.monotonic() + seconds, answer_bytes)
        finally:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
    finally:
        os.close(reading)
    if answer is None:
        raise EvidenceError(f"{what} takes longer than {seconds:g} s to read", hint=hint)
    # the last byte is the kind: an answer that was cut short ends in a character of JSON instead
    code = answer[-1] if answer else -1
    if code == FAULT:
        raise _raised(answer[:-1])
    if code == ANSWERED:
        try:
            return form.validate_json(answer[:-1])
        except ValueError as error:
            raise EvidenceError(
                f"the reading of {what} returned an invalid answer", hint=BAD_ANSWER
            ) from error
    if code == TOO_LARGE:
        raise EvidenceError(f"{what} takes too much memory to read", hint=hint)
    raise _crashed(what, os.waitstatus_to_exitcode(status), hint)


def reading_seconds(*paths: Path) -> float:
    """Return the time limit for reading these files and folders, in seconds.

    It is a fixed time plus the total size over the slowest expected rate. Links are not followed.
    """
    size_bytes = 0
    for path in paths:
        for place in (path, *islice(_files_below(path), MAX_SIZED)):
            # the reader reports what is wrong with the file
            with suppress(OSError):
                size_bytes += place.lstat().st_size
    # the fixed part is for unpacking and comparing numbers, and for the time of all the child's
    # threads
    return CPU_SECONDS + size_bytes / SLOWEST_BYTES_A_SECOND


def _files_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names)


@contextmanager
def _held_back() -> Iterator[set[signal.Signals]]:
    """Block the signals that end a command while the body runs; yield the mask from before."""
    before = {
        signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    }
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _look(form: Form[T], look: Callable[[], T], writing: int, cpu_seconds: int | None) -> NoReturn:
    """In the child: write an answer and its kind, then end; never return into the parent's code."""
    try:
        # if the parent is killed, nobody waits for the answer
        if hasattr(library, "prctl"):
            library.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        if cpu_seconds is not None:
            confine_child(cpu_seconds, MOST_SHARDS)
        view = memoryview(_answered(form, look))
        while view:
            view = view[os.write(writing, view) :]
    finally:
        # after a fault that wrote no answer the parent reports a crash
        os._exit(0)


def _answered(form: Form[T], look: Callable[[], T]) -> bytes:
    try:
        return form.dump_json(look()) + bytes((ANSWERED,))
    except MemoryError:
        return bytes((TOO_LARGE,))
    except GateError as fault:
        return _fault(fault)
    except Exception as error:  # noqa: BLE001 - the parent's last handler cannot see it
        if os.environ.get(TRACEBACK) == "1":
            sys.stderr.write(f"{safe_block(''.join(traceback.format_exception(error)))}\n")
            sys.stderr.flush()
        return _fault(InternalError(error))


def _fault(fault: GateError) -> bytes:
    # take the nearest known class: a class outside `KINDS` would lose its exit code
    known = next((kind.__name__ for kind in type(fault).mro() if kind.__name__ in KINDS), "")
    parts = (known, fault.message, fault.hint, *fault.details)
    return json.dumps(parts).encode("ascii") + bytes((FAULT,))


def _raised(answer: bytes) -> GateError:
    try:
        parts = json.loads(answer)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) < 3 or not all(isinstance(x, str) for x in parts):  # noqa: PLR2004 - kind, message, hint
        return EvidenceError("the reading process returned an invalid answer", hint=BAD_ANSWER)
    name, message, hint, *details = parts
    kind = KINDS.get(name, EvidenceError)
    # bypass the class's own constructor: `InternalError` takes the original exception
    fault = kind.__new__(kind)
    GateError.__init__(fault, message, hint=hint, details=tuple(details))
    return fault


def _crashed(what: str, code: int, hint: str) -> EvidenceError:
    if code == -signal.SIGBUS:
        # the kernel sends SIGBUS when another process truncates a mapped file
        return EvidenceError(
            "a file became shorter, or its disk failed, while it was read",
            hint="Wait until the program that writes the file has ended, then run the command "
            "again.",
        )
    return EvidenceError(f"the process that reads {what} ended early ({code})", hint=hint)


def _answer(reading: int, ends_at: float, most_bytes: int) -> bytes | None:
    """Return all that the child writes, or None if it takes too long."""
    poller, size = select.poll(), 0
    pieces: list[bytes] = []
    poller.register(reading, select.POLLIN)
    while size <= most_bytes:
        left = ends_at - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            return None
        piece = os.read(reading, PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    return bytes((TOO_LARGE,))
