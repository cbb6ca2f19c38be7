"""Which lines of a training read what a run varied, by what its harness recorded."""

from __future__ import annotations

from typing import Final

from gate.comparison.differences import Event
from gate.comparison.shaken import MAX_READINGS, ReadingLine
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.variations import Variation

# the harness's word for a line that it found by looking through the code, at the end
IN_CODE: Final = "code"


def varied_words(variation: Variation, run: RunEvidence) -> tuple[str, str]:
    """What the harness says that the training found, and why it found nothing else; one is empty.

    One process in which it was varied is enough.
    """
    told = [
        source
        for source in run.sources
        if source.kind is SourceKind.VARIED and source.call == variation.name
    ]
    varied = next((source.after for source in told if source.after), "")
    if varied:
        return varied, ""
    return "", next((source.before for source in told if source.before), variation.unused)


def reading_lines(
    variation: Variation, run: RunEvidence, first: Event | None
) -> tuple[ReadingLine, ...]:
    """The lines that may have read it before the first divergence, those that surely ran first."""
    last = None if first is None else first.step
    found = {
        ReadingLine(
            place=source.place,
            call=source.call,
            step=source.step,
            in_code=source.before == IN_CODE,
        ): None
        for source in run.sources
        if source.kind.value in variation.kinds
        and source.file
        and source.call not in variation.passed_over
        and (last is None or source.step <= last)
    }
    # what was read last before the difference is nearest to it
    ranked = sorted(found, key=lambda line: (line.in_code, -line.step))
    return tuple(ranked[:MAX_READINGS])
