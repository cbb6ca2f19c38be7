"""Why no process loaded the guest, as far as the command itself shows it."""

from __future__ import annotations

import re

PYTHON = re.compile(r"(?:.*/)?(?:python|pypy)[0-9.]*\Z")
# Options that take the next word, or the rest of their own, as their value: what follows a script,
# -c or -m is no longer Python's.
SHORT_OPTION = re.compile(r"-([A-Za-z?].*)\Z")
WITH_VALUE = "WX"
ENDS_OPTIONS = "cm"
REASONS = {
    "I": "runs isolated and ignores PYTHONPATH",
    "E": "ignores PYTHONPATH and every other PYTHON* variable",
    "S": "does not run sitecustomize",
}
GENERAL = (
    "The command must start Python, import torch, and keep PYTHONPATH: python -I, -E or -S and a "
    "cleared environment shut the guest out."
)


def shut_out_by(argv: tuple[str, ...]) -> str:
    """A hint that names what keeps the guest out, or all that may."""
    if (cleared := _clears_environment(argv)) is not None:
        return f"{cleared} clears the environment, PYTHONPATH too: set variables without it."
    for place, word in enumerate(argv):
        if PYTHON.match(word):
            letter = _shutting_option(argv[place + 1 :])
            if letter:
                return (
                    f"{word} -{letter} {REASONS[letter]}, so the guest stays out: drop -{letter}."
                )
    return GENERAL


def _clears_environment(argv: tuple[str, ...]) -> str | None:
    first = argv[0].rpartition("/")[2] if argv else ""
    if first == "env" and any(word in {"-i", "-", "--ignore-environment"} for word in argv[1:]):
        return "env -i"
    return None


def _shutting_option(words: tuple[str, ...]) -> str:
    """The first of I, E and S among the interpreter's own options."""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        option = SHORT_OPTION.match(word)
        if option is None:
            return ""
        letters: str = option[1]
        for position, letter in enumerate(letters):
            if letter in REASONS:
                return letter
            if letter in ENDS_OPTIONS:
                return ""
            if letter in WITH_VALUE:
                skip = position == len(letters) - 1
                break
    return ""
