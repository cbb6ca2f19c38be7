"""The only place where the harness writes: the run's output folder (docs/harness-protocol.md).

Each write opens and closes its file. So nothing waits in a buffer of Python, and nothing is shared
with a forked child. No descriptor stays open that the script may close.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FLOAT_TYPES = ("float64", "float32", "float16", "bfloat16")
MAX_PROBLEMS = 100
MAX_PROBLEM_LENGTH = 300

Record = Mapping[str, object]
# one encoder for all lines: `json.dumps` creates a new one for each call with `allow_nan=False`
_encoded = json.JSONEncoder(allow_nan=False).encode


class Problems:
    """Errors inside the harness: recorded in the evidence, never raised into the training.

    Also keeps what could not be recorded because of its kind, which is no error.
    """

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        self._left_out: dict[str, None] = {}
        self._noting: dict[str, Noting] = {}

    def note(self, sentence: str) -> None:
        """Keep a sentence once; beyond `MAX_PROBLEMS`, new ones are dropped."""
        _keep(self._sentences, sentence)

    def leave_out(self, sentence: str) -> None:
        """Keep once, within the same limits, what is left out and why."""
        _keep(self._left_out, sentence)

    @property
    def sentences(self) -> list[str]:
        """All problems, in the order in which they occurred."""
        return list(self._sentences)

    @property
    def left_out(self) -> list[str]:
        """Everything that is left out, in the order in which it was met."""
        return list(self._left_out)

    def noting(self, doing: str) -> Noting:
        """Return a context that turns an exception into a problem; the program goes on after it."""
        # kept for reuse: each step enters a dozen of these contexts
        known = self._noting.get(doing)
        if known is None:
            known = self._noting[doing] = Noting(self, doing)
        return known


class Noting:
    """The context of `Problems.noting`; a class, since it can be entered many times."""

    __slots__ = ("_doing", "_problems")

    def __init__(self, problems: Problems, doing: str) -> None:
        self._problems = problems
        self._doing = doing

    def __enter__(self) -> None:
        """Do nothing; the work is in `__exit__`."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: object
    ) -> bool:
        """Record an `Exception`; let `SystemExit`, `KeyboardInterrupt` and the like pass."""
        if not isinstance(error, Exception):
            return False
        self._problems.note(f"{self._doing}: {type(error).__name__}: {error}")
        return True


def _keep(sentences: dict[str, None], sentence: str) -> None:
    if len(sentences) < MAX_PROBLEMS:
        sentences[sentence[:MAX_PROBLEM_LENGTH]] = None


class Output:
    """Files of one process, named by kind, rank and process id."""

    def __init__(self, folder: str, rank: int, pid: int) -> None:
        self._folder = Path(folder).absolute()  # the script may change its directory
        self.rank = rank
        self.pid = pid
        # set while RLIMIT_FSIZE is low (`killed_save.py`): the limit applies to the harness's files
        # too
        self.silent = False

    def path(self, kind: str, suffix: str) -> Path:
        """Return the absolute path of this process's file, such as `steps-r0-4711.jsonl`."""
        return self._folder / f"{kind}-r{self.rank}-{self.pid}{suffix}"

    def first_to_train(self) -> bool:
        """Whether this process takes its rank's first step; the first process to ask gets True."""
        mine = str(self.pid)
        try:
            # "x" creates the file or fails, so of two processes at the same moment only one wins
            with self._marker("trains").open("x", encoding="ascii") as file:
                file.write(mine)
        except FileExistsError:
            # a process that replaced itself (`os.execv`) keeps its process id
            return self._marker("trains").read_text(encoding="ascii") == mine
        return True

    def has_trained(self, pid: int | None) -> bool:
        """Whether the process was the first of its rank to take a step."""
        return any(
            marker.read_text(encoding="ascii") == str(pid)
            for marker in self._folder.glob("trains-r*")
        )

    def has_summary(self, pid: int | None) -> bool:
        """Whether the process has written its summary, which is its last file."""
        return any(self._folder.glob(f"summary-r*-{pid}.json"))

    def tell_race(self) -> None:
        """Leave a mark for all processes of this rank: several of them train."""
        self._marker("races").touch()

    def race_told(self) -> bool:
        """Whether a process of this rank has left that mark."""
        return self._marker("races").exists()

    def _marker(self, what: str) -> Path:
        return self._folder / f"{what}-r{self.rank}"

    def append_line(self, kind: str, record: Record) -> None:
        """Add one JSON line; raises `OSError` when that is impossible."""
        self.append_lines(kind, [record])

    def append_lines(self, kind: str, records: Iterable[Record]) -> None:
        """Add a JSON line for each record, all in one write."""
        if self.silent:
            return
        lines = "".join([f"{_encoded(record)}\n" for record in records])
        with self.path(kind, ".jsonl").open("ab", buffering=0) as file:
            file.write(lines.encode("ascii"))

    def write_document(self, kind: str, record: Record) -> None:
        """Write one JSON file completely or not at all; raises `OSError` if impossible."""
        if self.silent:
            return
        path = self.path(kind, ".json")
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_bytes(json.dumps(record, allow_nan=False).encode("ascii"))
        temporary.replace(path)

    def document_or_complaint(self, kind: str, record: Record) -> None:
        """Write one JSON file; if that is impossible, complain in one line on stderr."""
        try:
            self.write_document(kind, record)
        except OSError as error:
            with suppress(Exception):  # the script may have closed it
                sys.stderr.write(f"repro-gate: cannot write {self.path(kind, '.json')}: {error}\n")


def exact(value: Any) -> dict[str, str]:
    """Return `dtype` and `hex` of a one-element tensor, a NumPy scalar or a Python number.

    Every value of the four float types is exactly a float64, so `float.hex` loses nothing. Reading
    a tensor of a GPU waits for the device.
    """
    return {"dtype": _type_name(value), "hex": float(value).hex()}


def _type_name(value: Any) -> str:
    """Return the float type of a tensor or NumPy scalar; `float64` for all else, as Python's."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return name if name in FLOAT_TYPES else "float64"
