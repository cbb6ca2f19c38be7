"""Records how this process ends, keeps TensorBoard's files whole, and reports runs without a step.

*The end.* A launcher may take the gate's stop for a failure and raise an exception of its own. A
crash of the script gives the command the same exit code. Each process records its exceptions at its
end, which shows which of the two happened.

*TensorBoard.* Its writer passes events to a daemon thread, which dies with the interpreter. How
much of the tail is on disk would differ from run to run.

Every Python process of a training imports this module at its exit, also without torch, so it
imports nothing heavy.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from typing import Any, Final

from ..settings import current_rank, process_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


MAX_EXCEPTIONS = 20
MAX_NAME = 200
# files in the run's folder; a script may start thousands of small programs that fail
MAX_FILES = 500


class TrainingStopped(SystemExit):
    """Raised into the script after the last step that the gate asked for.

    It is a `SystemExit`, so `except Exception` lets it pass. `finally` blocks, context managers and
    exit handlers run as at any other end. A launcher may unpickle it in a process without torch. So
    the class is in this module, and takes the argument that pickle passes.
    """

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)


def tell_end(folder: str, rank: int, *, trained: bool) -> None:
    """Write how this process ends; a process without a step writes only after an exception.

    Raises `OSError` when the file cannot be written.
    """
    errors = list(_held(_uncaught()))
    if not trained and (not errors or len(os.listdir(folder)) >= MAX_FILES):  # noqa: PTH208 - pathlib is slow to import
        return
    import json

    kinds = [type(error) for error in errors if not isinstance(error, TrainingStopped)]
    names = (f"{kind.__module__}.{kind.__qualname__}"[:MAX_NAME] for kind in kinds)
    end = {
        "pid": process_id(),
        "rank": rank,
        "trained": trained,
        "stopped": any(isinstance(error, TrainingStopped) for error in errors),
        "exceptions": list(dict.fromkeys(names)),
    }
    path = f"{folder}/ended-r{rank}-{process_id()}.json"
    with open(f"{path}.part", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
        json.dump(end, file)
    os.replace(f"{path}.part", path)  # noqa: PTH105 - as above


def _uncaught() -> BaseException | None:
    """Return the exception that ends the program, or is about to end a worker."""
    # `last_exc` exists from Python 3.12 on
    shown = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    error: BaseException | None = shown or sys.exc_info()[1]
    if type(error) is SystemExit and not error.code:
        return None
    return error


def _held(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, its causes, and exceptions in its attributes, such as a worker's.

    What the script was handling when the gate stopped it is not a cause of the stop.
    """
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting and len(seen) < MAX_EXCEPTIONS:
        item = waiting.pop(0)
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if isinstance(item, TrainingStopped):
            continue
        # as in a traceback: `raise ... from` replaces the exception that was being handled (PEP
        # 415)
        waiting.append(item.__cause__ if item.__suppress_context__ else item.__context__)
        for value in (*item.args, *getattr(item, "__dict__", {}).values()):
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, list | tuple):
                waiting.extend(value)
            else:
                waiting.append(value)


MODULE: Final = "tensorboard.summary.writer.event_file_writer"

_writers: list[tuple[int, Any]] = []


def hook_writers() -> None:
    """Remember each `EventFileWriter` that is created from now on."""
    writer_class: Any = sys.modules[MODULE].EventFileWriter
    plain_init = writer_class.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(self, *args, **kwargs)
        _writers.append((os.getpid(), self))

    writer_class.__init__ = init


def flush_all() -> None:
    """Write queued events to disk.

    A forked child skips its parent's writers, since the thread that empties the queue stayed with
    the parent. A writer that is closed, or whose folder is gone, has nothing to lose.
    """
    for pid, writer in _writers:
        if pid == os.getpid():
            with suppress(Exception):
                writer.flush()


# can train or fit without an optimizer of torch
TRAINERS = (
    *("jax", "keras", "lightgbm", "scipy.optimize", "sklearn", "tensorflow", "xgboost"),
    "numpy",
)
# a script may start thousands of small programs, and the first files are enough
MAX_UNTRAINED_FILES = 200


def trainers() -> list[str]:
    """Return the imported libraries that can train without torch's optimizers."""
    return [name for name in TRAINERS if name in sys.modules]


def tell_without_torch(folder: str) -> None:
    """Write that this process never imported torch.

    Raises `OSError` when the file cannot be written.
    """
    if len(os.listdir(folder)) >= MAX_UNTRAINED_FILES:  # noqa: PTH208 - pathlib is slow to import
        return
    rank, pid = current_rank(), process_id()
    # written by hand, from numbers and the names above: json is slow to import
    names = ", ".join(f'"{name}"' for name in trainers())
    text = (
        f'{{"pid": {pid}, "rank": {rank}, "torch": false, "backwards": 0, "stopped": false, '
        f'"imported": [{names}]}}'
    )
    with open(f"{folder}/untrained-r{rank}-{pid}.json", "w", encoding="ascii") as file:  # noqa: PTH123 - as above
        file.write(text)
