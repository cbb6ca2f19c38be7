"""Distinguish lines that a verdict states as fact from lines that only the run names.

Which line drew, seeded or raised is a claim by the training, which may name any line. A line of
Python in the exported commit is stated as it is: a reader who looks there can check it. Any other
place is worded as `a line that the run names`, in every text of the verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import filterfalse
from typing import Final

from pydantic import BaseModel

from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.trace import TraceFinding
from gate.verdict.verdict import Verdict

# The fields that contain what the runs report.
SPEAKING: Final = ("cause", "findings", "diagnosis", "next_steps", "not_finite")
# Names and commands are no sentences. A bare place is checked where it is used.
SILENT: Final = frozenset(("code", "code_place", "command", "file", "kind", "run", "changed"))
MOST_OF_A_TEXT: Final = 1000
IN_PYTHON: Final = r"[^\s`'\"(),;:]{1,300}\.py:\d{1,9}"
PLAIN: Final = re.compile(IN_PYTHON)
NO_WORD_BEFORE, NO_NUMBER_BEHIND = r"(?<![^\s`'\"(),;:])", r"(?!\d)"


def with_named_places(verdict: Verdict, lines: Mapping[str, int]) -> Verdict:
    """Return the verdict with each place outside the commit marked as named by the run.

    `lines` maps each Python file of the commit to its number of lines.
    """
    words = _Words(verdict, lines)
    update = {name: words.of(getattr(verdict, name)) for name in SPEAKING}
    return verdict.model_copy(update=update)


class _Words:
    def __init__(self, verdict: Verdict, lines: Mapping[str, int]) -> None:
        self._workdir, self._lines = verdict.workdir, lines
        hunks = verdict.change.hunks if verdict.change is not None else ()
        # These places come from git, so they are trusted. Their paths are relative to the
        # repository.
        self._of_git = {f"{hunk.file}:{line}" for hunk in hunks for line in (hunk.first, hunk.last)}
        recorded = {f"{place.file}:{place.line}" for place in _places(verdict)}
        # These are tried first, the longest before the others: a file's name may have spaces.
        known = sorted(
            recorded | {*filterfalse(PLAIN.fullmatch, self._of_git)}, key=len, reverse=True
        )
        any_of = "|".join((*map(re.escape, known), IN_PYTHON))
        self._pattern = re.compile(f"{NO_WORD_BEFORE}(?:{any_of}){NO_NUMBER_BEHIND}")

    def of(self, value: object) -> object:
        """Return the value with the places in all its sentences marked, recursively."""
        if isinstance(value, str):
            # A member of an enumeration is a str too, but no sentence.
            return self._sentence(value) if type(value) is str else value
        if isinstance(value, tuple):
            return tuple(map(self.of, value))
        if not isinstance(value, BaseModel):
            return value
        names = type(value).model_fields.keys() - SILENT
        update = {name: self.of(getattr(value, name)) for name in names}
        if isinstance(value, TraceFinding) and not self._held(value.file, value.line):
            # The sentence names the place with its mark. A bare place would read as a fact.
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
    """Yield the places that records contain as file and line, whatever the file's name is."""
    every = [finding.code_place for finding in verdict.findings]
    if verdict.diagnosis is not None:
        every += [suspect.code_place for suspect in verdict.diagnosis.suspects]
        trace = verdict.diagnosis.trace
        if trace is not None and trace.file:
            every.append(CodePlace(file=trace.file, line=trace.line))
    yield from (place for place in every if place is not None)
