"""Lines of code that a verdict states as a fact, and those that only a run names.

Which line drew, seeded or raised is what a training says of itself, and a training may name any.
A line of the exported commit's Python is said as it is: a reader who looks there sees whether it is
so. Any other place is what the run names, in each text of the verdict, wherever it was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import BaseModel

from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.trace import TraceFinding
from gate.verdict.verdict import Verdict

# the parts that speak of what the runs report
SPEAKING: Final = ("cause", "findings", "diagnosis", "next_steps", "not_finite")
# names and commands are no sentences, and a place by itself is asked for where it is used
SILENT: Final = frozenset(("code", "code_place", "command", "file", "kind", "run", "changed"))
MOST_OF_A_TEXT: Final = 1000
IN_PYTHON: Final = r"[^\s`'\"(),;:]{1,300}\.py:\d{1,9}"
NO_WORD_BEFORE, NO_NUMBER_BEHIND = r"(?<![^\s`'\"(),;:])", r"(?!\d)"


def with_named_places(verdict: Verdict, lines: Mapping[str, int]) -> Verdict:
    """The same verdict, in which a place that the commit does not hold is what the run names.

    `lines` are the Python files of the commit, with how many lines each has.
    """
    words = _Words(verdict, lines)
    update = {name: words.of(getattr(verdict, name)) for name in SPEAKING}
    return verdict.model_copy(update=update)


class _Words:
    def __init__(self, verdict: Verdict, lines: Mapping[str, int]) -> None:
        self._workdir, self._lines = verdict.workdir, lines
        hunks = verdict.change.hunks if verdict.change is not None else ()
        # from git, and by their paths in the repository
        self._of_git = {f"{hunk.file}:{line}" for hunk in hunks for line in (hunk.first, hunk.last)}
        others = sorted({f"{place.file}:{place.line}" for place in _places(verdict)}, key=len)
        any_of = "|".join((*map(re.escape, reversed(others)), IN_PYTHON))
        self._pattern = re.compile(f"{NO_WORD_BEFORE}(?:{any_of}){NO_NUMBER_BEHIND}")

    def of(self, value: object) -> object:
        """With the places in its sentences, all the way down."""
        if isinstance(value, str):
            # an enumeration's word is no sentence, and a text of a trace has a limit
            return self._sentence(value) if type(value) is str else value
        if isinstance(value, tuple):
            return tuple(map(self.of, value))
        if not isinstance(value, BaseModel):
            return value
        names = type(value).model_fields.keys() - SILENT
        update = {name: self.of(getattr(value, name)) for name in names}
        if isinstance(value, TraceFinding) and not self._held(value.file, value.line):
            # its sentence names the place; by itself it would stand there as a fact
            update |= {"file": "", "line": 0}
        return value.model_copy(update=update)

    def _sentence(self, text: str) -> str:
        return self._pattern.sub(self._named, text)[: max(MOST_OF_A_TEXT, len(text))]

    def _named(self, match: re.Match[str]) -> str:
        place = match[0]
        file, _, number = place.rpartition(":")
        if place in self._of_git or self._held(file, int(number)):
            return place
        return f"a line that the run names ({place})"

    def _held(self, file: str, line: int) -> bool:
        return bool(CodePlace(file=file, line=line).held_by(self._lines, self._workdir))


def _places(verdict: Verdict) -> Iterator[CodePlace]:
    """Those that a record holds by file and line, whatever the file is called."""
    every = [finding.code_place for finding in verdict.findings]
    if verdict.diagnosis is not None:
        every += [suspect.code_place for suspect in verdict.diagnosis.suspects]
    yield from (place for place in every if place is not None)
