"""What of a comment is read: at most sixty words before its table, in whole sentences.

Nothing is cut inside a sentence. What finds no room is folded below, and no sentence is in both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gate.report.escape import clean
from gate.report.layout import Report
from gate.verdict.verdict import NextStep

MOST_WORDS: Final = 60
# one of a training's making may be a single word of any length
LONGEST_SENTENCE: Final = 400
IS_IT: Final = "Is it this change?"
WHAT_NOW: Final = "What now?"
BELOW: Final = "See below."
NOTHING_TO_DO: Final = "Nothing to do."
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Sentences and steps of the three answers."""

    happened: tuple[str, ...]
    this_change: tuple[str, ...]
    steps: tuple[NextStep, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead(Answers):
    """What is shown; `rest` is what is not. A step that is shown in part is there as a whole."""

    rest: Answers


def words_of(text: str) -> int:
    """How many words a reader sees: a sign that stands alone is none."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def lead_of(report: Report, title: str) -> Lead:
    """The most important sentences of each answer, as many as fit below `title`.

    First comes the first sentence of each answer, then the cause, the second thing to do, and the
    rest. A sentence that the title has said already is not said again.
    """
    brief, steps = report.brief, report.next_steps
    answer = tuple(sentence for sentence in _sentences(brief.answer) if not _said(sentence, title))
    change, more = _sentences(brief.this_change), _sentences(brief.more)
    room = _Room(MOST_WORDS - words_of(f"{title} {IS_IT} {WHAT_NOW} {BELOW} {BELOW} {BELOW}"))
    if brief.change is not None:
        room.left -= words_of(brief.change.caption)
    first_line, changed = room.first(answer), room.first(change)
    known = (brief.cause,) if brief.cause else ()
    begin = _sentences(steps[0].text)[:1] if steps else ()
    # a line that is known goes before what to look for if it is not that one
    both = brief.names_line and words_of(" ".join((*known, *begin))) <= room.left
    cause = room.takes(known) if both else ()
    do = room.steps(steps[:1])
    room.left += words_of(BELOW) if do or not steps else 0
    room.left -= 0 if steps else words_of(NOTHING_TO_DO)
    cause = cause or room.takes(known)
    do += room.steps(steps[1:2]) if do == steps[:1] else ()
    changed += room.takes(change[1:]) if changed else ()
    first_line += room.takes(answer[1:]) if first_line else ()
    do += room.steps(steps[2:]) if do == steps[:2] else ()
    # what adds to a cause means nothing without it
    added = room.takes(more) if (first_line, cause) == (answer, known) else ()
    in_whole = sum(left == right for left, right in zip(do, steps, strict=False))
    return Lead(
        happened=(*first_line, *cause, *added) or ((BELOW,) if answer else ()),
        this_change=changed or (BELOW,),
        steps=do,
        rest=Answers(
            happened=(*answer[len(first_line) :], *known[len(cause) :], *more[len(added) :]),
            this_change=change[len(changed) :],
            steps=steps[in_whole:],
        ),
    )


@dataclass(slots=True)
class _Room:
    """How many words may still be shown."""

    left: int

    def takes(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """The first of them, as many as fit, each as a whole."""
        taken: list[str] = []
        for sentence in sentences:
            size = words_of(sentence)
            if size > self.left or len(sentence) > LONGEST_SENTENCE:
                break
            self.left -= size
            taken.append(sentence)
        return tuple(taken)

    def first(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """The first sentence of an answer; where it fits, nothing has to say that it is below."""
        taken = self.takes(sentences[:1])
        self.left += words_of(BELOW) if taken or not sentences else 0
        return taken

    def steps(self, steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
        """The first of them; of one that does not fit its first sentences, without a command."""
        taken: list[NextStep] = []
        for step in steps:
            sentences = _sentences(step.text)
            fitting = self.takes(sentences)
            if fitting == sentences:
                taken.append(step)
                continue
            if fitting and not step.command:
                taken.append(NextStep(text=" ".join(fitting), command="", accepts=step.accepts))
            break
        return tuple(taken)


def _sentences(text: str) -> tuple[str, ...]:
    whole = clean(text, LONGEST_SENTENCE * 20)
    return tuple(_BETWEEN_SENTENCES.split(whole)) if whole else ()


def _said(sentence: str, title: str) -> bool:
    return sentence.rstrip(".").casefold() in clean(title, LONGEST_SENTENCE).casefold()
