"""The lead of a comment: at most sixty words before its table, in whole sentences.

No sentence is cut. A sentence without room is folded below the table, and no sentence is shown
twice.
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
# A training chooses some of the text, and one word of it may have any length.
LONGEST_SENTENCE: Final = 400
IS_IT: Final = "Is it this change?"
WHAT_NOW: Final = "What now?"
BELOW: Final = "See below."
NOTHING_TO_DO: Final = "Nothing to do."
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTexts:
    """The sentences and steps of the three answers."""

    happened: tuple[str, ...]
    this_change: tuple[str, ...]
    steps: tuple[NextStep, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lead(AnswerTexts):
    """The part of the answers that is shown, and in `rest` the part that is not.

    A step that is shown without its later sentences is also in `rest`, as a whole.
    """

    rest: AnswerTexts


def word_count(text: str) -> int:
    """Return the number of words that a reader sees; a symbol alone is not a word."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def lead_of(report: Report, title: str) -> Lead:
    """Return the most important sentences of each answer, as many as fit below `title`.

    The order is: the first sentence of each answer, the cause, the second step, and the rest. A
    sentence that the title already says is left out.
    """
    brief, steps = report.brief, report.next_steps
    answer = tuple(sentence for sentence in _sentences(brief.answer) if not _said(sentence, title))
    change, more = _sentences(brief.this_change), _sentences(brief.more)
    room = _Room(MOST_WORDS - word_count(f"{title} {IS_IT} {WHAT_NOW} {BELOW} {BELOW} {BELOW}"))
    if brief.change is not None:
        room.left -= word_count(brief.change.caption)
    first_line, changed = room.first(answer), room.first(change)
    known = (brief.cause,) if brief.cause else ()
    begin = _sentences(steps[0].text)[:1] if steps else ()
    # A known line helps more than advice on what to look for, so if both fit, the cause goes first.
    both = brief.names_line and word_count(" ".join((*known, *begin))) <= room.left
    cause = room.takes(known) if both else ()
    do = room.steps(steps[:1])
    room.left += word_count(BELOW) if do or not steps else 0
    room.left -= 0 if steps else word_count(NOTHING_TO_DO)
    cause = cause or room.takes(known)
    do += room.steps(steps[1:2]) if do == steps[:1] else ()
    changed += room.takes(change[1:]) if changed else ()
    first_line += room.takes(answer[1:]) if first_line else ()
    do += room.steps(steps[2:]) if do == steps[:2] else ()
    # `more` explains the cause, so it means nothing unless answer and cause are shown.
    added = room.takes(more) if (first_line, cause) == (answer, known) else ()
    in_whole = sum(left == right for left, right in zip(do, steps, strict=False))
    return Lead(
        happened=(*first_line, *cause, *added) or ((BELOW,) if answer else ()),
        this_change=changed or (BELOW,),
        steps=do,
        rest=AnswerTexts(
            happened=(*answer[len(first_line) :], *known[len(cause) :], *more[len(added) :]),
            this_change=change[len(changed) :],
            steps=steps[in_whole:],
        ),
    )


@dataclass(slots=True)
class _Room:
    """The number of words that may still be shown."""

    left: int

    def takes(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """Return as many of the first sentences as fit, each as a whole."""
        taken: list[str] = []
        for sentence in sentences:
            size = word_count(sentence)
            if size > self.left or len(sentence) > LONGEST_SENTENCE:
                break
            self.left -= size
            taken.append(sentence)
        return tuple(taken)

    def first(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """Return an answer's first sentence if it fits, and then free the room kept for BELOW."""
        taken = self.takes(sentences[:1])
        self.left += word_count(BELOW) if taken or not sentences else 0
        return taken

    def steps(self, steps: Sequence[NextStep]) -> tuple[NextStep, ...]:
        """Return the steps that fit; a last one without a command may lose its later sentences."""
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
