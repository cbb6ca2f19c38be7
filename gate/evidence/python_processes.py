"""Find the Python that a command starts, what keeps the harness out, and processes of one rank.

A command line is free text. The line of a shell is only split at its separators. So a Python after
any word counts (`nice python`, `then python`), except after a word in `NAMING`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gate.errors import EvidenceError
from gate.evidence.harness_files import StepLine
from gate.evidence.observations import UnattestedChild, started_without

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*\Z")
# Arguments after a script, `-c` or `-m` are not Python's own options. `-W` and `-X` take a value.
OPTION = re.compile(r"-([A-Za-z?].*)\Z")
WITH_VALUE = "WX"
ENDS_OPTIONS = "cm"
SHUTTING = "IES"
EMPTYING = frozenset(("-i", "-", "--ignore-environment"))
UNSETTING = frozenset(("unset", "-u"))
SEPARATORS = re.compile(r"[;&|()`\n]+")
# continued lines and redirections only separate words
GAPS = re.compile(r"\\\n|[<>]")
PATH = "PYTHONPATH"
# after one of these words, a Python is only named and not started
NAMING = frozenset(("-I", "echo", "which"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonCommand:
    """A Python and what it runs, such as `python -I train.py`, without the script's arguments.

    `option` is the letter of the option that keeps the harness out, or empty. `cleared` is true if
    the environment was emptied or PYTHONPATH replaced before.
    """

    shown: str
    option: str
    cleared: bool


def python_commands(words: tuple[str, ...], *, for_shell: bool = False) -> Iterator[PythonCommand]:
    """Yield every Python that these words start.

    With `for_shell`, a shell reads the first word as a whole line.
    """
    if words and not for_shell and PYTHON.match(words[0]):
        yield _python(words, cleared=False)
        return
    cleared = False
    line = GAPS.sub(" ", " ".join(words[:1] if for_shell else words))
    for part in SEPARATORS.split(line):
        words_here = tuple(word.strip("'\"") for word in part.split())
        place = _place(words_here)
        lost = cleared or _loses_path(words_here[:place])
        if place is None:
            # `unset PYTHONPATH; ...` starts no program, so it applies to the rest of the line
            cleared = lost
        else:
            yield _python(words_here[place:], cleared=lost)


def _place(words: tuple[str, ...]) -> int | None:
    """Return the index of the first Python that is started, or None."""
    before = ("", *words)
    pythons = (place for place, word in enumerate(words) if PYTHON.match(word))
    return next((place for place in pythons if before[place] not in NAMING), None)


def _python(words: tuple[str, ...], *, cleared: bool) -> PythonCommand:
    letters, used, ending = _options(words[1:])
    shown = [words[0].rpartition("/")[2], *([f"-{letters}"] if letters else [])]
    if ending == "c":
        shown.append("-c ...")
    else:
        shown += [*(["-m"] if ending else []), *words[1 + used : 2 + used]]
    option = next((letter for letter in letters if letter in SHUTTING), "")
    return PythonCommand(shown=" ".join(shown), option=option, cleared=cleared)


def _options(words: tuple[str, ...]) -> tuple[str, int, str]:
    """Return the letters of Python's own options, their number of words, and `c` or `m`.

    The last is the option that ends them, or an empty text.
    """
    letters, used = "", 0
    while used < len(words) and (option := OPTION.match(words[used])) is not None:
        used += 1
        for place, letter in enumerate(option[1]):
            if letter in ENDS_OPTIONS:
                return letters, used, letter
            if letter in WITH_VALUE:
                used += place == len(option[1]) - 1
                break
            letters += letter
    return letters, used, ""


def _loses_path(words: tuple[str, ...]) -> bool:
    """Return whether PYTHONPATH is removed, or replaced by a value without the old one."""
    names = {word.rpartition("/")[2] for word in words}
    if ("env" in names and EMPTYING & names) or (PATH in names and UNSETTING & names):
        return True
    return any(word.startswith(f"{PATH}=") and word.count(PATH) == 1 for word in words)


REASONS = {
    "I": "runs in isolated mode and ignores PYTHONPATH",
    "E": "ignores PYTHONPATH and every other PYTHON* variable",
    "S": "does not run sitecustomize",
}
CLEARED = "gets an empty environment or a different PYTHONPATH"
GENERAL = (
    "The command must start Python, import torch, and keep PYTHONPATH: python -I, -E or -S and a "
    "cleared environment keep the harness from loading, and so does a script that replaces "
    "PYTHONPATH. Let it add to the old value: PYTHONPATH=src:$PYTHONPATH."
)


def reason_of(command: PythonCommand) -> str:
    """Return what in the command itself keeps the harness out, or an empty text."""
    return REASONS[command.option] if command.option else CLEARED if command.cleared else ""


def shut_out_reason(argv: tuple[str, ...]) -> str:
    """Return what in the run's command line keeps the harness out, or an empty text."""
    return next(filter(None, map(reason_of, python_commands(argv))), "")


def shut_out_by(argv: tuple[str, ...], children: tuple[UnattestedChild, ...] = ()) -> str:
    """Return a hint that names what keeps the harness out, or everything that may.

    `children` are the processes that the training's own processes reported.
    """
    if children:
        return f"{started_without(children)}. {GENERAL}"
    for command in python_commands(argv):
        if reason := reason_of(command):
            advice = f"drop -{command.option}" if command.option else "add to it, do not replace it"
            return f"{command.shown} {reason}, so the harness is not loaded: {advice}."
    return GENERAL


MAX_SHOWN_PIDS = 100  # characters; they are digits
ONE_A_RANK = (
    "Processes that update shared weights race, and their result is not reproducible. Set RANK "
    "in each process of a distributed training, or train in one process only."
)
ONE_TRAINING = (
    "The gate judges one training a call. Give each stage a settings file of its own (--config), "
    "or run the first stage under `preprocess`."
)


class SeveralTrainedError(EvidenceError):
    """Several processes left the records of one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpan:
    """When a process took its first and its last step, by the machine's clock; None if unknown."""

    pid: int
    first: float | None = None
    last: float | None = None


def several_processes(rank: int, spans: Sequence[TrainingSpan]) -> SeveralTrainedError:
    """Return the error for several processes of one rank, at the same time or one after another."""
    shown = ", ".join(str(span.pid) for span in spans)[:MAX_SHOWN_PIDS]
    if _one_after_the_other(spans):
        who = "" if rank == 0 else f" as rank {rank}"
        return SeveralTrainedError(
            f"{len(spans)} processes trained{who} one after the other (pids {shown})",
            hint=ONE_TRAINING,
        )
    alike = "without ranks" if rank == 0 else f"as rank {rank}"
    return SeveralTrainedError(
        f"{len(spans)} processes trained {alike} (pids {shown})", hint=ONE_A_RANK
    )


def _one_after_the_other(spans: Sequence[TrainingSpan]) -> bool:
    """Return whether each process took its first step after the last step of the one before."""
    known = sorted((s.first, s.last) for s in spans if s.first is not None and s.last is not None)
    return len(known) == len(spans) and all(
        before[1] < after[0] for before, after in pairwise(known)
    )


# these fields belong to all optimizers that step after one backward pass; the first line has them
OF_ALL = ("loss", "losses", "backwards", "seconds")


def renumbered_lines(
    lines: tuple[StepLine, ...], numbers: tuple[int, ...], name: str
) -> tuple[StepLine, ...]:
    """Return the lines with renumbered optimizers: `numbers` maps each number to the new one.

    The lines of one step without a backward pass in between are sorted by the new numbers, and the
    loss stays on the first of them. Without `numbers` nothing changes. Raises `EvidenceError` if
    the numbers are not a permutation of the optimizers in the lines.
    """
    if not numbers:
        return lines
    known = max((line.optimizer for line in lines), default=0) < len(numbers)
    if sorted(numbers) != list(range(len(numbers))) or not known:
        raise EvidenceError(
            f"{name}: the summary's optimizer_numbers are not an order of its optimizers",
            hint="Only the harness may write into its output folder.",
        )
    ordered: list[StepLine] = []
    for burst in _bursts(lines):
        ordered += _arranged([_renumbered(line, numbers[line.optimizer]) for line in burst])
    return tuple(ordered)


def _renumbered(line: StepLine, number: int) -> StepLine:
    # copying a hundred thousand lines takes as long as reading some of them
    return line if line.optimizer == number else line.model_copy(update={"optimizer": number})


def _bursts(lines: tuple[StepLine, ...]) -> Iterator[list[StepLine]]:
    """Yield groups of lines of one step, with a backward pass only before each group."""
    burst: list[StepLine] = []
    for line in lines:
        if burst and (line.step != burst[0].step or line.backwards or line.loss is not None):
            yield burst
            burst = []
        burst.append(line)
    if burst:
        yield burst


def _arranged(burst: list[StepLine]) -> list[StepLine]:
    ordered = sorted(burst, key=lambda line: line.optimizer)
    first, lowest = burst[0], ordered[0]
    if first is lowest:
        return ordered
    theirs = {name: getattr(first, name) for name in OF_ALL}
    mine = {name: getattr(lowest, name) for name in OF_ALL}
    # The harness wrote loss and time on the line that came first. They belong to the whole step, so
    # the two lines swap them.
    moved = {first.optimizer: mine, lowest.optimizer: theirs}
    return [line.model_copy(update=moved.get(line.optimizer, {})) for line in ordered]
