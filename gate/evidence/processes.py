"""Which Python the words of a command name, and what in them keeps the harness out.

A command line is anybody's text. A shell's line is taken apart at its separators and no further, so
Python behind any word counts (`nice python`, `then python`) but those of `NAMING`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
