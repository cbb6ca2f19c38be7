"""How a level that several seeds decide was reached, or why it was not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gate.comparison.level_records import (
    Agreement,
    Equivalence,
    LevelResult,
    PairState,
    RankedPair,
    Sample,
)
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import BAD, GOOD, WATCH, count
from gate.verdict.verdict import Verdict

ICONS: Mapping[Agreement, str] = MappingProxyType(
    {Agreement.EQUIVALENT: GOOD, Agreement.DIFFERENT: BAD, Agreement.UNDECIDED: WATCH}
)
PAIRS: Mapping[PairState, str] = MappingProxyType(
    {
        PairState.HELD: f"{GOOD} leads as before",
        PairState.SWAPPED: f"{BAD} no longer leads",
        PairState.NOT_SEPARATED: f"{BAD} leads, but these seeds do not show it",
        PairState.OPEN: f"{WATCH} not separated by the baseline: either may lead",
    }
)
EQUIVALENCE = (
    "Metric",
    "Baseline",
    "This commit",
    "Difference, 90 % interval",
    "Margin",
    "p",
    "Answer",
)
RANKING = ("Rank", "Variant", "Baseline", "This commit")
RANKED_PAIRS = ("Better", "Worse", "p, baseline", "p, this commit", "Answer")


def level_sentence(verdict: Verdict) -> str:
    """What the level did to the answer, in one sentence; nothing where none was judged."""
    judged = verdict.judged
    if judged is None:
        return ""
    if judged.reached is None:
        return f"The {judged.asked} level is not reached: {judged.problem}."
    if judged.variants:
        order = " > ".join(one.name for one in judged.variants)
        return f"The scientific level is reached: the variants rank as before ({order})."
    widest = max(judged.equivalences, key=_share_of_margin)
    more = len(judged.equivalences) - 1
    rest = f" and {count(more, 'more metric')}" if more else ""
    return f"The statistical level is reached: {_shown(widest)}{rest}."


def level_row(judged: LevelResult) -> str:
    """The same in a few words, for the table of answers."""
    if judged.reached is None:
        return f"{BAD} not reached: {judged.problem}"
    if judged.variants:
        held = sum(pair.state is PairState.HELD for pair in judged.pairs)
        return f"{GOOD} {held} of {count(len(judged.pairs), 'neighbouring pair')} rank as before"
    return f"{GOOD} {count(len(judged.equivalences), 'metric')} equivalent over the seeds"


def level_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """Means, intervals and margins of each metric; ranks and tests of each pair of variants."""
    judged = verdict.judged
    if judged is None:
        return ()
    found = []
    if judged.equivalences:
        rows = table_of(EQUIVALENCE, map(_equivalence_row, judged.equivalences), limits.rows)
        title = "Equivalence over seeds (mean ± s over n)"
        found.append(Section(title=title, table=rows, leading=True))
    if judged.variants:
        ranks = (
            (Cell(f"{rank}"), Cell(one.name, code=True), _cell(one.baseline), _cell(one.head))
            for rank, one in enumerate(judged.variants, start=1)
        )
        title = f"Ranking of variants by {judged.metric} (mean ± s over n)"
        found.append(
            Section(title=title, table=table_of(RANKING, ranks, limits.rows), leading=True)
        )
        pairs = table_of(RANKED_PAIRS, map(_pair_row, judged.pairs), limits.rows)
        found.append(Section(title="Neighbours of the ranking", table=pairs, leading=True))
    return tuple(found)


def _equivalence_row(one: Equivalence) -> Row:
    tested = one.tested
    interval = margin = p = NOTHING
    result = f"{ICONS[one.agreement]} {one.agreement}"
    if tested is not None:
        interval = f"{tested.difference:+.3g} [{tested.low:+.3g}, {tested.high:+.3g}]"
        margin, p = f"±{tested.margin:.3g}", f"{tested.p:.2g}"
        result += f"; shown to within ±{tested.shown:.3g}"
        if tested.seeds_needed is not None:
            result += f"; about {tested.seeds_needed} seeds would decide"
    else:
        result += f": {one.reason}"
    return (
        Cell(one.metric, code=True),
        _cell(one.baseline),
        _cell(one.head),
        Cell(interval),
        Cell(margin),
        Cell(p),
        Cell(result),
    )


def _pair_row(pair: RankedPair) -> Row:
    return (
        Cell(pair.better, code=True),
        Cell(pair.worse, code=True),
        Cell(f"{pair.baseline_p:.2g}"),
        Cell(f"{pair.head_p:.2g}"),
        Cell(PAIRS[pair.state]),
    )


def _cell(sample: Sample | None) -> Cell:
    return Cell(NOTHING if sample is None else _sample_words(sample))


def _sample_words(sample: Sample) -> str:
    return f"{sample.mean:.4g} ± {sample.deviation:.2g} over {sample.seeds}"


def _share_of_margin(one: Equivalence) -> float:
    return one.tested.shown / one.tested.margin if one.tested is not None else 0.0


def _shown(one: Equivalence) -> str:
    if one.tested is None or one.baseline is None or one.head is None:
        return one.metric
    return (
        f"{one.metric} is {_sample_words(one.head)} seeds, the baseline's "
        f"{_sample_words(one.baseline)}, within ±{one.tested.shown:.3g} of each other (margin "
        f"±{one.tested.margin:.3g})"
    )
