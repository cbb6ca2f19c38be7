"""The only place where the harness writes: the run's output folder, see docs/harness-protocol.md.

Each write has an open and a close of its own: nothing waits in a buffer of Python's, no descriptor
stays that the script may close, and nothing is shared with a forked child.
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
# `json.dumps` makes one for each line that is to have no NaN
_encoded = json.JSONEncoder(allow_nan=False).encode


class Problems:
    """What went wrong inside the harness: noted in the evidence, never raised into the training.

    Beside it what could not be recorded because of its kind, which is nobody's fault.
    """

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        self._left_out: dict[str, None] = {}
        self._noting: dict[str, Noting] = {}

    def note(self, sentence: str) -> None:
        """Keep a sentence once; beyond `MAX_PROBLEMS` the rest is dropped."""
        _keep(self._sentences, sentence)

    def leave_out(self, sentence: str) -> None:
        """Keep once, within the same limits, what is left out and why."""
        _keep(self._left_out, sentence)

    @property
    def sentences(self) -> list[str]:
        """All of them, in the order in which they were met."""
        return list(self._sentences)

    @property
    def left_out(self) -> list[str]:
        """All that is left out, likewise."""
        return list(self._left_out)

    def noting(self, doing: str) -> Noting:
        """Turn an exception of the body into a problem; the program goes on after the body."""
        # each step enters a dozen of them, all of which were there before
        known = self._noting.get(doing)
        if known is None:
            known = self._noting[doing] = Noting(self, doing)
        return known


class Noting:
    """The context of `Problems.noting`; a class, since one can be entered again and again."""

    __slots__ = ("_doing", "_problems")

    def __init__(self, problems: Problems, doing: str) -> None:
        self._problems = problems
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, place: object
    ) -> bool:
        """Note what is an `Exception`; anything else ends the program as it would without."""
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
        # while a limit on the size of files is set, which counts for these too
        self.silent = False

    def path(self, kind: str, suffix: str) -> Path:
        """For example `steps-r0-4711.jsonl`, absolute."""
        return self._folder / f"{kind}-r{self.rank}-{self.pid}{suffix}"

    def first_to_train(self) -> bool:
        """Whether no other process of this rank has taken a step; the first to ask is the first."""
        mine = str(self.pid)
        try:
            with self._marker("trains").open("x", encoding="ascii") as file:
                file.write(mine)
        except FileExistsError:
            # a process that replaced itself (`os.execv`) has its number still
            return self._marker("trains").read_text(encoding="ascii") == mine
        return True

    def has_trained(self, pid: int | None) -> bool:
        """Whether that process was the first of its rank to take a step."""
        return any(
            marker.read_text(encoding="ascii") == str(pid)
            for marker in self._folder.glob("trains-r*")
        )

    def has_summary(self, pid: int | None) -> bool:
        """Whether that process has written all that it had to."""
        return any(self._folder.glob(f"summary-r*-{pid}.json"))

    def tell_race(self) -> None:
        """Let all processes of this rank know that several of them train."""
        self._marker("races").touch()

    def race_told(self) -> bool:
        """Whether one of them has."""
        return self._marker("races").exists()

    def _marker(self, what: str) -> Path:
        return self._folder / f"{what}-r{self.rank}"

    def append_line(self, kind: str, record: Record) -> None:
        """Add one JSON line; `OSError` when that is impossible."""
        self.append_lines(kind, [record])

    def append_lines(self, kind: str, records: Iterable[Record]) -> None:
        """Add a JSON line for each record, all in one write."""
        if self.silent:
            return
        lines = "".join([f"{_encoded(record)}\n" for record in records])
        with self.path(kind, ".jsonl").open("ab", buffering=0) as file:
            file.write(lines.encode("ascii"))

    def write_document(self, kind: str, record: Record) -> None:
        """Write one JSON file, whole or not at all; `OSError` when that is impossible."""
        if self.silent:
            return
        path = self.path(kind, ".json")
        temporary = path.with_name(f"{path.name}.part")
        temporary.write_bytes(json.dumps(record, allow_nan=False).encode("ascii"))
        temporary.replace(path)

    def document_or_complaint(self, kind: str, record: Record) -> None:
        """As `write_document`; where even that fails, one line on stderr is all that is left."""
        try:
            self.write_document(kind, record)
        except OSError as error:
            with suppress(Exception):  # the script may have closed it
                sys.stderr.write(f"repro-gate: cannot write {self.path(kind, '.json')}: {error}\n")


def exact(value: Any) -> dict[str, str]:
    """`dtype` and `hex` of a one-element tensor, a NumPy scalar or a Python number.

    Every value of the four float types is a float64 exactly, so `float.hex` loses nothing. Reading
    a tensor of a GPU waits for it.
    """
    return {"dtype": _type_name(value), "hex": float(value).hex()}


def _type_name(value: Any) -> str:
    """The float type of a tensor or NumPy scalar; `float64`, Python's own, for all else."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return name if name in FLOAT_TYPES else "float64"
