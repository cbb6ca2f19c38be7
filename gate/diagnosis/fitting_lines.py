"""Match changed lines with numbers: a setting's old and new one, or those of two calls."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable
from pathlib import PurePosixPath
from typing import Final

from gate.comparison.differences import OptimizerSettingChange
from gate.comparison.work import CLASS
from gate.diagnosis.diagnosis import Diagnosis
from gate.evidence.trace import ChangedNumber
from gate.system.git.changes import Change, ChangedLines

DOCUMENTS: Final = (".md", ".rst")
BESIDE: Final = (".github/", ".repro-gate/", "docs/")
NO_CODE: Final = frozenset(("LICENSE", "CHANGELOG", ".gitignore", "CODEOWNERS"))
NUMBER: Final = re.compile(
    r"(?<![\w.])-?(?:\d[\d_]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+(?![\w.])", re.ASCII
)
WORD: Final = re.compile(r"\w+")
TYPE: Final = re.compile(r"\b(?:b?float|u?int|complex)\d+\b", re.ASCII)
# the minus of a shell's `${NAME:-8}` is no sign
OR_ELSE: Final = re.compile(r"\$\{\w++:?-", re.ASCII)
# Schedules multiply, so the last digits of a product may differ from those of its factors.
NEAR: Final = 1e-9


def can_matter(file: str) -> bool:
    """Return whether a training may read a repository file, judging by its name."""
    path = PurePosixPath(file)
    # Python recompiles a source whose copy has a different time than its cache says.
    beside = file.startswith(BESIDE) or "__pycache__" in path.parts
    return not (path.suffix in DOCUMENTS or path.name in NO_CODE or beside)


def fitting_hunks(
    change: Change, settings: tuple[OptimizerSettingChange, ...]
) -> list[ChangedLines]:
    """Return the hunks that contain a setting's two numbers, two of the same ratio, or its name.

    Only a unique match counts for each setting.
    """
    fitting: list[ChangedLines] = []
    for setting in settings:
        able = [hunk for hunk in change.hunks if can_matter(hunk.file) and _fits(hunk, setting)]
        # The exact numbers are stronger evidence than two numbers of the same ratio.
        exact = [hunk for hunk in able if replaces(hunk, setting)]
        candidates = exact or able
        fitting += candidates if len(candidates) == 1 else []
    return list(dict.fromkeys(fitting))


def replaces(hunk: ChangedLines, change: OptimizerSettingChange | ChangedNumber) -> bool:
    """Return whether the hunk removes the old number or number type and adds the new one."""
    old, new = _gone(hunk.before, hunk.after), _gone(hunk.after, hunk.before)
    return is_in(change.before, old) and is_in(change.after, new)


def with_numbers(
    hunks: Iterable[ChangedLines], numbers: tuple[ChangedNumber, ...]
) -> list[ChangedLines]:
    """Return the one hunk that replaces some of the old numbers by the new ones, else []."""
    able = [hunk for hunk in hunks if any(replaces(hunk, number) for number in numbers)]
    return able if len(able) == 1 else []


def _gives(hunk: ChangedLines, setting: OptimizerSettingChange) -> bool:
    """Return whether the hunk names the setting with its value, on both sides or on one.

    Where the other side does not name it, a default is in force there.
    """
    name = re.escape(setting.name.partition("/")[0])
    given = re.compile(rf"\b{name}['\"]?\s*[=:]\s*([-+.\w]+)")
    old, new = (given.findall("\n".join(lines)) for lines in (hunk.before, hunk.after))
    sides = ((old, setting.before), (new, setting.after))
    return old != new and all(
        not texts or not value or any(_is_value(text, value) for text in texts)
        for texts, value in sides
    )


def _is_value(text: str, value: str) -> bool:
    """Return whether Python's text means the recorded value: `True` is recorded as `true`."""
    return text.lower() == value or is_in(value, _numbers((text,)))


def _replaces_class(hunk: ChangedLines, setting: OptimizerSettingChange) -> bool:
    """Return whether the hunk names the optimizer's old class before, and the new one after."""
    old, new = (set(WORD.findall("\n".join(side))) for side in (hunk.before, hunk.after))
    return setting.name == CLASS and setting.before in old - new and setting.after in new - old


def _fits(hunk: ChangedLines, setting: OptimizerSettingChange) -> bool:
    if _gives(hunk, setting) or _replaces_class(hunk, setting):
        return True
    try:
        before, after = float(setting.before), float(setting.after)
    except ValueError:
        return False
    if replaces(hunk, setting):
        return True
    old, new = _numbers(hunk.before), _numbers(hunk.after)
    if not before or not math.isfinite(after / before):
        return False
    ratio = after / before
    return any(
        old_number and math.isclose(other / old_number, ratio, rel_tol=NEAR)
        for old_number in old - new
        for other in new - old
    )


def with_typed_numbers(diagnosis: Diagnosis, change: Change | None) -> Diagnosis:
    """Return the diagnosis without numbers to restore that the change did not remove.

    A setting may follow from something else, such as a number of steps or a settings file. Advice
    to type the old number would then be wrong.
    """
    hunks = change.hunks if change is not None else ()
    removed = [_numbers(hunk.before) - _numbers(hunk.after) for hunk in hunks]
    settings = tuple(
        setting
        if not setting.revert_to or any(is_in(setting.revert_to, numbers) for numbers in removed)
        else setting.model_copy(update={"revert_to": ""})
        for setting in diagnosis.optimizer_settings
    )
    return diagnosis.model_copy(update={"optimizer_settings": settings})


def is_in(word: str, numbers: Container[float | str]) -> bool:
    """Return whether the number or number type that the word is, is one of these."""
    try:
        return float(word) in numbers
    except ValueError:
        return word in numbers


def _numbers(lines: tuple[str, ...]) -> Counter[float]:
    """Return how often each number is in the lines: one of two equal ones may change."""
    text = OR_ELSE.sub(" ", "\n".join(lines))
    return Counter(float(match.group().replace("_", "")) for match in NUMBER.finditer(text))


def _gone(lines: tuple[str, ...], others: tuple[str, ...]) -> frozenset[float | str]:
    """Return the numbers and number types that the lines have and the others do not."""
    kinds, left = (Counter(TYPE.findall("\n".join(side))) for side in (lines, others))
    return frozenset((*(_numbers(lines) - _numbers(others)), *(kinds - left)))
