"""Sentences and tables about levels, declared data, speed, time and the determinism budget."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from gate.comparison.level_records import (
    Agreement,
    Equivalence,
    LevelResult,
    PairState,
    Performance,
    RankedPair,
    Sample,
)
from gate.data.data_sets import DataSet, DataStatistics, UnrepeatedData, move_sentence
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.wording import BAD, GOOD, NEUTRAL, WATCH, duration, percentage, short
from gate.text.phrases import count
from gate.training.runs import Commit, RunMode
from gate.training.timeline import OwnSpan, TimedRun, Timeline
from gate.verdict.verdict import (
    Answer,
    ClusterSource,
    DeterminismBudget,
    SourceState,
    SourceStatus,
    Verdict,
)

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
    """Say in one sentence what the level decided; empty if no level was judged."""
    judged = verdict.judged
    if judged is None:
        return ""
    if judged.reached is None:
        return f"The {judged.asked} level is not reached: {judged.problem}."
    if judged.variants:
        order = " > ".join(variant.name for variant in judged.variants)
        return f"The scientific level is reached: the variants rank as before ({order})."
    widest = max(judged.equivalences, key=_share_of_margin)
    more = len(judged.equivalences) - 1
    rest = f" and {count(more, 'more metric')}" if more else ""
    return f"The statistical level is reached: {_shown(widest)}{rest}."


def level_row(judged: LevelResult) -> str:
    """Say what the level decided in a few words, for the table of answers."""
    if judged.reached is None:
        return f"{BAD} not reached: {judged.problem}"
    if judged.variants:
        held = sum(pair.state is PairState.HELD for pair in judged.pairs)
        return f"{GOOD} {held} of {count(len(judged.pairs), 'neighbouring pair')} rank as before"
    return f"{GOOD} {count(len(judged.equivalences), 'metric')} equivalent over the seeds"


def level_sections(verdict: Verdict, limits: Limits) -> tuple[Section, ...]:
    """Return tables of each metric's mean, interval and margin, and of the variants' ranking."""
    judged = verdict.judged
    if judged is None:
        return ()
    sections = []
    if judged.equivalences:
        rows = table_of(EQUIVALENCE, map(_equivalence_row, judged.equivalences), limits.rows)
        title = "Equivalence over seeds (mean ± s over n)"
        sections.append(Section(title=title, table=rows, leading=True))
    if judged.variants:
        ranks = (
            (
                Cell(f"{rank}"),
                Cell(variant.name, code=True),
                _cell(variant.baseline),
                _cell(variant.head),
            )
            for rank, variant in enumerate(judged.variants, start=1)
        )
        title = f"Ranking of variants by {judged.metric} (mean ± s over n)"
        sections.append(
            Section(title=title, table=table_of(RANKING, ranks, limits.rows), leading=True)
        )
        pairs = table_of(RANKED_PAIRS, map(_pair_row, judged.pairs), limits.rows)
        sections.append(Section(title="Neighbours of the ranking", table=pairs, leading=True))
    return tuple(sections)


def _equivalence_row(equivalence: Equivalence) -> Row:
    tested = equivalence.tested
    interval = margin = p = NOTHING
    result = f"{ICONS[equivalence.agreement]} {equivalence.agreement}"
    if tested is not None:
        interval = f"{tested.difference:+.3g} [{tested.low:+.3g}, {tested.high:+.3g}]"
        margin, p = f"±{tested.margin:.3g}", f"{tested.p:.2g}"
        result += f"; shown to within ±{tested.shown:.3g}"
        if tested.seeds_needed is not None:
            result += f"; about {tested.seeds_needed} seeds would decide"
    else:
        result += f": {equivalence.reason}"
    return (
        Cell(equivalence.metric, code=True),
        _cell(equivalence.baseline),
        _cell(equivalence.head),
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


def _share_of_margin(equivalence: Equivalence) -> float:
    return (
        equivalence.tested.shown / equivalence.tested.margin
        if equivalence.tested is not None
        else 0.0
    )


def _shown(equivalence: Equivalence) -> str:
    if equivalence.tested is None or equivalence.baseline is None or equivalence.head is None:
        return equivalence.metric
    return (
        f"{equivalence.metric} is {_sample_words(equivalence.head)} seeds, the baseline's "
        f"{_sample_words(equivalence.baseline)}, within "
        f"±{equivalence.tested.shown:.3g} of each other (margin ±{equivalence.tested.margin:.3g})"
    )


MAX_SETS_NAMED = 3
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
THOUSAND = 1000


def data_drift_words(verdict: Verdict, numbers: str) -> str:
    """Say which data moved; `numbers` is the sentence about the first numbers that differ."""
    whose = "This change selects other data" if verdict.data_brought else "The declared data moved"
    base = ""
    if _base_agrees(verdict):
        base = " The base commit, run here with this data, gives the result of this commit."
    moved = _moved(verdict)
    return f"{whose}: {moved}. {numbers}{base}"


def data_change_words(verdict: Verdict) -> str:
    """Say whether this pull request caused the difference."""
    if verdict.data_brought:
        return "Yes. It names other data than the base commit; its code may move the result too."
    if verdict.nothing_moved:
        return "No. Its files are exactly those that the baseline was recorded from."
    if _base_agrees(verdict):
        return "No. The base commit gives the same result with this data."
    if verdict.base_run is not None and not verdict.answers.base_repeat.good:
        return "Not known. Two runs of the base commit differ on this machine."
    return (
        "Not known. Every commit trains on this data now, and the base commit was not run here: "
        "the change could be a cause too."
    )


def unrepeated_words(data: UnrepeatedData) -> str:
    """Describe the difference between the two outputs of the preprocessing."""
    where = f", first at {data.where}" if data.where else ""
    return (
        f"Two runs of {data.command} wrote different data: {move_sentence(data.move)}{where}. "
        "The trainings were given what the second run wrote."
    )


def _base_agrees(verdict: Verdict) -> bool:
    base = verdict.answers.base_run in {Answer.EQUAL, Answer.INSIDE, Answer.REFUSED}
    return base and verdict.answers.base_repeat.good and not verdict.data_brought


def data_rows(verdict: Verdict) -> tuple[Row, ...]:
    """Return the data's row for the table of answers, or nothing if no data is declared."""
    words = _answer(verdict)
    return ((Cell("Declared data"), Cell(words)),) if words else ()


def _answer(verdict: Verdict) -> str:
    if verdict.unrepeated is not None:
        return (
            f"{BAD} the preprocessing is not repeatable: {move_sentence(verdict.unrepeated.move)}"
        )
    if verdict.data_moved:
        return f"{WATCH} {_moved(verdict)}"
    if not verdict.data:
        return ""
    sets = [_counted(data_set) for data_set in verdict.data[:MAX_SETS_NAMED]]
    rest = len(verdict.data) - MAX_SETS_NAMED
    more = f" and {count(rest, 'more data set')}" if rest > 0 else ""
    # An entry that was recorded with other settings is not a yardstick for this data.
    compared = verdict.baseline is not None and verdict.baseline_facts is not None
    known = f"{GOOD} as recorded" if compared else f"{NEUTRAL} not compared"
    return f"{known}: {', '.join(sets)}{more}"


def _moved(verdict: Verdict) -> str:
    named = [move_sentence(move) for move in verdict.data_moved[:MAX_SETS_NAMED]]
    rest = len(verdict.data_moved) - MAX_SETS_NAMED
    more = f"; and {count(rest, 'more data set')}" if rest > 0 else ""
    return "; ".join(named) + more


def _counted(data_set: DataSet) -> str:
    return f"{data_set.name} ({count(data_set.files, 'file')}, {size_words(data_set.size_bytes)})"


def size_words(size_bytes: int) -> str:
    """Return a number of bytes with three digits in decimal units, such as `2.15 GB`."""
    size, unit = float(size_bytes), 0
    while size >= THOUSAND and unit < len(UNITS) - 1:
        size, unit = size / THOUSAND, unit + 1
    return f"{size_bytes} B" if unit == 0 else f"{size:.3g} {UNITS[unit]}"


def data_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return a table of all data sets with their origin and content, or None without any."""
    if not verdict.data:
        return None
    rows = (
        (
            Cell(data_set.name, code=True),
            Cell(data_set.origin or NOTHING),
            Cell(f"{data_set.files:,}"),
            Cell(size_words(data_set.size_bytes)),
            Cell(short(data_set.sha256), code=True),
            Cell(_verified(data_set)),
            Cell("; ".join(map(_statistic, data_set.statistics)) or NOTHING),
        )
        for data_set in verdict.data
    )
    headings = ("Data set", "From", "Files", "Size", "SHA-256", "Read", "Statistics")
    table = table_of(headings, rows, limits.rows)
    return Section(title=f"Declared data ({table.total:,})", table=table)


def _verified(data_set: DataSet) -> str:
    return {"full": "every byte", "cached": "every byte, or known files", "sample": "a sample"}[
        data_set.verify.value
    ]


def _statistic(statistics: DataStatistics) -> str:
    name = f"{statistics.name}: " if statistics.name else ""
    words = [count(statistics.rows, "row")]
    if statistics.mean is not None:
        words.append(f"mean {statistics.mean:.6g}")
    if statistics.deviation is not None:
        words.append(f"deviation {statistics.deviation:.6g}")
    if statistics.nan_share:
        words.append(f"NaN {statistics.nan_share * 100:.3g} %")
    if statistics.classes:
        words.append(f"{len(statistics.classes):,} classes")
    return name + ", ".join(words)


HEADINGS = (
    "Runs", "Count", "Steps/s", "Samples/s", "Step, mean", "Deviation over steps",
    "Deviation between runs",
)  # fmt: skip


def rate(per_second: float | None) -> str:
    """Return a rate per second with at least three digits; empty if it is unknown."""
    if per_second is None:
        return ""
    return f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"  # noqa: PLR2004 - three digits


def deviation(seconds: float | None, variation: float | None) -> str:
    """Return a standard deviation and its share of the mean, such as `0.31 ms (2.5 %)`."""
    if seconds is None or variation is None:
        return ""
    return f"{duration(seconds)} ({percentage(variation)})"


# A smaller change of speed is not reported: a pause of the machine costs as much.
MOVED_SPEED = 0.05


def throughput_rows(kinds: tuple[Performance, ...]) -> tuple[Row, ...]:
    """Return the speed's row, only if the base commit ran too and its speed was different."""
    moved = any(map(partial(_has_moved, kinds), (RunMode.STRICT, RunMode.DEFAULT)))
    return ((Cell("Throughput"), Cell(performance_words(kinds))),) if moved else ()


def _has_moved(kinds: tuple[Performance, ...], mode: RunMode) -> bool:
    """Return whether the speeds differ by more than 5 % and more than either's steps vary."""
    of_mode = {kind.commit: kind for kind in kinds if kind.mode is mode}
    head, base = of_mode.get(Commit.HEAD), of_mode.get(Commit.BASE)
    if head is None or base is None or not head.steps_per_second or not base.steps_per_second:
        return False
    spread = max(MOVED_SPEED, *(kind.step_variation or 0.0 for kind in (head, base)))
    return abs(head.steps_per_second / base.steps_per_second - 1) > spread


def performance_words(kinds: tuple[Performance, ...]) -> str:
    """Return one line with steps and samples per second, their variation, and the base's speed."""
    parts = [words for mode in (RunMode.STRICT, RunMode.DEFAULT) if (words := _mode(kinds, mode))]
    return "; ".join(parts)


def _mode(kinds: tuple[Performance, ...], mode: RunMode) -> str:
    of_mode = {kind.commit: kind for kind in kinds if kind.mode is mode}
    head, base = of_mode.get(Commit.HEAD), of_mode.get(Commit.BASE)
    if head is None or head.steps_per_second is None:
        return ""
    words = f"{mode.value} {rate(head.steps_per_second)} steps/s"
    if head.samples_per_second is not None:
        words += f", {rate(head.samples_per_second)} samples/s"
    beside = [] if head.step_variation is None else [f"varies by {percentage(head.step_variation)}"]
    if base is not None and base.steps_per_second is not None:
        beside.append(f"base commit {rate(base.steps_per_second)} steps/s")
    return f"{words} ({'; '.join(beside)})" if beside else words


def performance_section(kinds: tuple[Performance, ...], limits: Limits) -> Section | None:
    """Return a table with one row for each kind of run; it is informational."""
    if not kinds:
        return None
    table = table_of(HEADINGS, map(_row, kinds), limits.rows, *range(1, len(HEADINGS)))
    title = "Throughput and run-time variance, not judged"
    return Section(title=title, table=table, in_comment=False)


def _row(kind: Performance) -> Row:
    texts = (
        f"{kind.runs}",
        rate(kind.steps_per_second),
        rate(kind.samples_per_second),
        duration(kind.step_seconds),
        deviation(kind.step_deviation_seconds, kind.step_variation),
        deviation(kind.run_deviation_seconds, kind.run_variation),
    )
    name = f"{kind.kind}: {kind.reason}" if kind.reason else kind.kind
    return (Cell(name), *(Cell(text or NOTHING) for text in texts))


SHORT_SECONDS = 10.0
MINUTE, HOUR = 60, 3600
# From here on a reader wants minutes, not seconds.
MANY_SECONDS = 600.0


def time_words(timeline: Timeline | None) -> str:
    """Return text such as `gate 41 s: trainings 36 s, own 4.8 s`; empty if no time was taken."""
    if timeline is None:
        return ""
    trainings, own = timeline.training_seconds, timeline.own_seconds
    return f"gate {long(timeline.seconds)}: trainings {long(trainings)}, own {long(own)}"


def long(seconds: float) -> str:
    """Return a waiting time, as precise as a person needs it."""
    if seconds < SHORT_SECONDS:
        return f"{seconds:.1f} s"
    if seconds < MANY_SECONDS:
        return f"{seconds:.0f} s"
    minutes = round(seconds / MINUTE)
    if seconds < HOUR:
        return f"{minutes} min"
    return f"{minutes // MINUTE} h {minutes % MINUTE} min"


def timeline_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return a table of the runs and the gate's own work, in the order in which they began."""
    timeline = verdict.timeline
    if timeline is None:
        return None
    rows = [
        *((run.begun_seconds, _run_row(run)) for run in timeline.runs),
        *((span.begun_seconds, _own_row(span)) for span in timeline.own),
    ]
    ordered = (row for _, row in sorted(rows, key=lambda pair: pair[0]))
    headings = ("What", "Lane", "From", "Until", "Took")
    table = table_of(headings, ordered, limits.rows, 2, 3, 4)
    title = f"Timeline ({table.total:,}): {time_words(timeline)}"
    # not in the comment, whose footer gives the sums
    return Section(title=title, table=table, in_comment=False)


def _run_row(run: TimedRun) -> Row:
    stretch = _stretch(run.begun_seconds, run.ended_seconds)
    return (Cell(run.label, code=True), Cell(f"{run.lane + 1}"), *stretch)


def _own_row(span: OwnSpan) -> Row:
    words = f"{span.work.value} {span.about}".rstrip()
    return (Cell(words), Cell("gate"), *_stretch(span.begun_seconds, span.ended_seconds))


def _stretch(begun: float, ended: float) -> Row:
    return tuple(Cell(f"{seconds:,.2f} s") for seconds in (begun, ended, ended - begun))


TITLE = "Determinism budget"
NAMES: Mapping[ClusterSource, str] = MappingProxyType(
    {
        ClusterSource.REDUCTION: "order of reductions between ranks",
        ClusterSource.NEIGHBOURS: "neighbours on the machine",
        ClusterSource.WORKERS: "elastic workers",
        ClusterSource.HARDWARE: "unlike hardware",
        ClusterSource.PLACEMENT: "stragglers and placement",
    }
)
SHORT: Mapping[ClusterSource, str] = MappingProxyType(
    {
        ClusterSource.REDUCTION: "reductions",
        ClusterSource.NEIGHBOURS: "neighbours",
        ClusterSource.WORKERS: "elastic workers",
        ClusterSource.HARDWARE: "unlike hardware",
        ClusterSource.PLACEMENT: "placement",
    }
)
# Sources that may still change a number come first, because they matter most to a reader.
ORDER = (
    SourceStatus.BOUNDED,
    SourceStatus.RECORDED,
    SourceStatus.ELIMINATED,
    SourceStatus.NOT_EXERCISED,
)


def state_words(state: SourceStatus) -> str:
    """Return a state's name for a reader."""
    return state.value.replace("-", " ")


def budget_rows(budget: DeterminismBudget) -> tuple[Row, ...]:
    """Return all sources in one row, those that may still change a number first.

    Returns nothing if no number moved; the page has the whole table.
    """
    if not any(source.figure for source in budget):
        return ()
    groups = ((state, [source for source in budget if source.state is state]) for state in ORDER)
    words = "; ".join(_group(state, sources) for state, sources in groups if sources)
    return ((Cell(TITLE), Cell(words)),)


def _group(state: SourceStatus, sources: list[SourceState]) -> str:
    names = ", ".join(SHORT[source.kind] for source in sources)
    if state is SourceStatus.BOUNDED:
        return f"{names} bounded (moved a metric {figure_words(sources[0])})"
    return f"{names} {state_words(state)}"


def figure_words(source: SourceState) -> str:
    """Return a bounded source's figure and the number of runs that it comes from."""
    if source.figure is None:
        return ""
    runs = count(source.runs, "run")
    return (
        f"at most {percentage(source.figure)} in {runs}"
        if source.figure
        else f"not at all in {runs}"
    )


def budget_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return a table with one row for each source, for the page; the comment has `budget_rows`."""
    if not verdict.determinism_budget:
        return None
    rows = (
        (
            Cell(NAMES[source.kind]),
            Cell(state_words(source.state)),
            Cell(figure_words(source)),
            Cell(source.because),
        )
        for source in verdict.determinism_budget
    )
    headings = ("Source of nonreproducibility", "State", "A metric moves", "Why")
    return Section(title=TITLE, table=table_of(headings, rows, limits.rows), in_comment=False)
