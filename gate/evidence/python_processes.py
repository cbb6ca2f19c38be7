"""Which Python a command starts, what keeps the harness out, one process for each rank.

A command line is anybody's text. A shell's line is taken apart at its separators and no further, so
Python behind any word counts (`nice python`, `then python`) but those of `NAMING`.
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
# What follows a script, -c or -m is no longer Python's; W and X take a value.
OPTION = re.compile(r"-([A-Za-z?].*)\Z")
WITH_VALUE = "WX"
ENDS_OPTIONS = "cm"
SHUTTING = "IES"
EMPTYING = frozenset(("-i", "-", "--ignore-environment"))
UNSETTING = frozenset(("unset", "-u"))
SEPARATORS = re.compile(r"[;&|()`\n]+")
# A line that goes on, and what redirects, only part words.
GAPS = re.compile(r"\\\n|[<>]")
PATH = "PYTHONPATH"
# Behind these a Python is named and not started.
NAMING = frozenset(("-I", "echo", "which"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonCommand:
    """A Python and what it runs: `python -I train.py`, without the script's own arguments.

    `option` is the letter that shuts the harness out or empty; `cleared` says that the environment
    was emptied or PYTHONPATH replaced on the way.
    """

    shown: str
    option: str
    cleared: bool


def python_commands(words: tuple[str, ...], *, for_shell: bool = False) -> Iterator[PythonCommand]:
    """Every Python that these words name; `for_shell`: a shell reads the first of them."""
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
            # without a program, as in `unset PYTHONPATH; ...`, it counts for the rest of the line
            cleared = lost
        else:
            yield _python(words_here[place:], cleared=lost)


def _place(words: tuple[str, ...]) -> int | None:
    """Where the first Python stands that is started."""
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
    """Python's own options: their letters, their number of words, `c` or `m` if that ends them."""
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
    """Whether PYTHONPATH is emptied, or given a value that does not go on with the one it had."""
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
    """What in the words themselves keeps the harness out; empty when nothing does."""
    return REASONS[command.option] if command.option else CLEARED if command.cleared else ""


def shut_out_reason(argv: tuple[str, ...]) -> str:
    """What in the command itself keeps the harness out; empty when nothing does."""
    return next(filter(None, map(reason_of, python_commands(argv))), "")


def shut_out_by(argv: tuple[str, ...], children: tuple[UnattestedChild, ...] = ()) -> str:
    """A hint that names what keeps the harness out, or all that may.

    `children` are those that the training's own processes wrote down.
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
    """Several processes left the record of one rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSpan:
    """When a process made its first and its last step, by the machine's clock; None: not known."""

    pid: int
    first: float | None = None
    last: float | None = None


def several_processes(rank: int, spans: Sequence[TrainingSpan]) -> SeveralTrainedError:
    """The fault that several processes trained as one rank: at once, or one after the other."""
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
    """Whether each made its first step after the last one of those before."""
    known = sorted((s.first, s.last) for s in spans if s.first is not None and s.last is not None)
    return len(known) == len(spans) and all(
        before[1] < after[0] for before, after in pairwise(known)
    )


# What belongs to all optimizers that step after one backward pass, and stands on the first line.
OF_ALL = ("loss", "losses", "backwards", "seconds")


def in_order(
    lines: tuple[StepLine, ...], numbers: tuple[int, ...], name: str
) -> tuple[StepLine, ...]:
    """The lines with their optimizers renumbered: `numbers` has one for each, in the given order.

    Lines of one step without a backward pass in between are in the order of those numbers, and
    the loss on the first of them. Without numbers nothing is changed. Raises `EvidenceError` when
    they are no order of the optimizers that the lines name.
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
    # a copy of a hundred thousand lines takes as long as reading some of them
    return line if line.optimizer == number else line.model_copy(update={"optimizer": number})


def _bursts(lines: tuple[StepLine, ...]) -> Iterator[list[StepLine]]:
    """Lines of one step each, without a backward pass but before the first of them."""
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
    # the harness wrote loss and time on the line that came first; they belong to the step as a
    # whole
    moved = {first.optimizer: mine, lowest.optimizer: theirs}
    return [line.model_copy(update=moved.get(line.optimizer, {})) for line in ordered]
