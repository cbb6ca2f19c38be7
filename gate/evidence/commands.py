"""Which Python a command line starts, and what in it keeps the harness out: read, never run.

A command line is anybody's text. What cannot be told from its words (a script of the shell, a
Makefile) is passed over.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*\Z")
# Options that take the next word, or the rest of their own, as their value: what follows a script,
# -c or -m is no longer Python's.
SHORT_OPTION = re.compile(r"-([A-Za-z?].*)\Z")
WITH_VALUE = "WX"
ENDS_OPTIONS = "cm"
SHUTTING = "IES"
SHELLS = ("sh", "bash", "dash", "zsh")
# What runs the program that its own arguments name; the harness has the same list with the shells.
STARTERS = (
    *("env", "exec", "nice", "nohup", "setsid", "stdbuf", "sudo", "taskset", "time"),
    *("timeout", "numactl"),
)
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
AMOUNT = re.compile(r"[0-9][0-9.,a-z-]*\Z")
EMPTYING = ("-i", "-", "--ignore-environment")
SEPARATORS = frozenset("();<>|&")
MAX_DEPTH = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonCommand:
    """A Python and what it runs: `python -I train.py`, without the script's own arguments.

    `option` is the letter that shuts the harness out or empty; `cleared` says that the environment
    was emptied or PYTHONPATH replaced on the way.
    """

    shown: str
    option: str
    cleared: bool


def python_commands(
    words: tuple[str, ...], *, for_shell: bool = False, cleared: bool = False, depth: int = 0
) -> Iterator[PythonCommand]:
    """Every Python that these words start by themselves.

    `for_shell`: a shell reads the first of them; `cleared`: PYTHONPATH is lost already.
    """
    if for_shell:
        for part in _shell_parts(words[0] if words else ""):
            cleared = cleared or _clears_for_all(part)
            yield from python_commands(part, cleared=cleared, depth=depth + 1)
        return
    starter = ""
    for place, word in enumerate(words):
        name = word.rpartition("/")[2]
        if PYTHON.match(word) and not word.startswith("-"):
            yield _python(words[place:], cleared=cleared)
            return
        if name in SHELLS and depth < MAX_DEPTH:
            inner = _after_option_c(words[place + 1 :])
            yield from python_commands(inner, for_shell=True, cleared=cleared, depth=depth + 1)
            return
        cleared = cleared or _replaces_path(word) or (starter == "env" and word in EMPTYING)
        starter = name if name in STARTERS else starter
        if not (starter == name or word.startswith("-") or _is_argument(word)):
            return


def shutting_option(words: tuple[str, ...]) -> str:
    """The first of I, E and S among the options of an interpreter that is given these words."""
    letters, _, _ = _options(words)
    return next((letter for letter in letters if letter in SHUTTING), "")


def _options(words: tuple[str, ...]) -> tuple[str, int, str]:
    """Python's own options: their letters, their number of words, `c` or `m` if that ends them."""
    letters, used = "", 0
    while used < len(words) and (option := SHORT_OPTION.match(words[used])) is not None:
        used += 1
        for place, letter in enumerate(option[1]):
            if letter in ENDS_OPTIONS:
                return letters, used, letter
            if letter in WITH_VALUE:
                used += place == len(option[1]) - 1
                break
            letters += letter
    return letters, used, ""


def _python(words: tuple[str, ...], *, cleared: bool) -> PythonCommand:
    letters, used, ending = _options(words[1:])
    shown = [words[0].rpartition("/")[2], *([f"-{letters}"] if letters else [])]
    if ending == "c":
        shown.append("-c ...")
    else:
        shown += [*(["-m"] if ending else []), *words[1 + used : 2 + used]]
    return PythonCommand(shown=" ".join(shown), option=shutting_option(words[1:]), cleared=cleared)


def _replaces_path(word: str) -> bool:
    """Whether PYTHONPATH is given a value that does not go on with the one that it had."""
    return word.startswith("PYTHONPATH=") and "$" not in word


def _clears_for_all(part: tuple[str, ...]) -> bool:
    """Whether the rest of a shell's line goes without PYTHONPATH."""
    if part[:1] == ("unset",):
        return "PYTHONPATH" in part
    return part[:1] == ("export",) and any(map(_replaces_path, part))


def _is_argument(word: str) -> bool:
    return bool(ASSIGNMENT.match(word) or AMOUNT.match(word))


def _after_option_c(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command line that a shell is given with `-c`, or nothing."""
    for place, word in enumerate(words):
        if not word.startswith("-"):
            return ()
        if not word.startswith("--") and word.endswith("c"):
            return words[place + 1 :]
    return ()


def _shell_parts(line: str) -> Iterator[tuple[str, ...]]:
    """The single commands of a shell's line, as far as its words tell them."""
    reader = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    part: list[str] = []
    try:
        for word in reader:
            if set(word) <= SEPARATORS:
                yield tuple(part)
                part = []
            else:
                part.append(word)
    except ValueError:
        # a quotation that never ends, as in a line that was cut: what came before it still counts
        pass
    yield tuple(part)
