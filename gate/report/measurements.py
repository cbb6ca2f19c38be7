"""Two compared commits as sentences and titled tables, before they are a page or a terminal's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gate.comparison.differences import CostState
from gate.comparison.measured_base_head import (
    Closeness,
    ComparedCommits,
    ComparedSide,
    MetricBeside,
    SpeedRatio,
)
from gate.comparison.measured_performance import Performance
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Row, Section, facts_table, table_of
from gate.report.performance_words import rate
from gate.report.wording import (
    SHORT_COMMIT,
    count,
    duration,
    interval,
    magnitude,
    pair,
    percent,
    share,
    short_if_digest,
)
from gate.training.runs import Commit, RunMode

MEBIBYTE = 1024 * 1024
TITLES = {
    Closeness.EQUAL: "equal bit for bit",
    Closeness.WITHIN_TOLERANCE: "within tolerance",
    Closeness.APART: "apart",
    Closeness.NOT_COMPARABLE: "not comparable in every number",
}


def compared_headline(compared: ComparedCommits) -> str:
    """What base and head are to each other, in one line."""
    return f"Base and head are {TITLES[compared.closeness]}."


def compared_sentences(compared: ComparedCommits) -> tuple[str, ...]:
    """What that rests on, whether each commit repeats, and what else a reader should know."""
    sides = ((Commit.BASE, compared.base), (Commit.HEAD, compared.head))
    return (
        _rests_on(compared),
        *(
            f"The {commit.value} does not repeat: {count(side.runs, 'strict run')} gave "
            f"{count(side.strict_results, 'result')}, so a difference may be chance."
            for commit, side in sides
            if side.strict_results > 1
        ),
        *(f"{note[:1].upper()}{note[1:]}." for note in compared.notes),
    )


def _rests_on(compared: ComparedCommits) -> str:
    points = sum(metric.compared_points for metric in compared.metrics)
    if compared.closeness is Closeness.EQUAL:
        parts = (count(points, "value"), count(compared.compared_tensors, "tensor"))
        runs = count(compared.head.runs, "strict run")
        return f"{count(compared.head_steps, 'step')}, {' and '.join(parts)}, in {runs} of each."
    differing = sum(metric.differing_points for metric in compared.metrics)
    words = (
        f"{differing:,} of {points:,} values and {compared.differing_tensors:,} of "
        f"{compared.compared_tensors:,} tensors differ"
    )
    if compared.base_steps != compared.head_steps:
        base, head = (count(steps, "step") for steps in (compared.base_steps, compared.head_steps))
        words = f"base took {base}, head {head}; {words}"
    if compared.first is not None:
        words += f"; first: {compared.first.name} {compared.first.where}"
    return f"{words[:1].upper()}{words[1:]}."


def compared_sections(compared: ComparedCommits, limit: int, *, wide: bool) -> tuple[Section, ...]:
    """Numbers, speed and settings, each table cut to `limit`; `wide` has every digit and tensor."""
    made = [_metrics(compared, limit, wide=wide)]
    made += [_speed(compared, ratio) for ratio in compared.ratios]
    made += _settings(compared, limit)
    if wide:
        made += [_tensors(compared, limit), _environment(compared, limit), _runs(compared, limit)]
    return tuple(section for section in made if section.table.rows)


def _metrics(compared: ComparedCommits, limit: int, *, wide: bool) -> Section:
    headings = (
        "Metric", "Base, last", "Head, last", "From step", "Differs by at most", "At step",
    )  # fmt: skip
    rows = (_beside_row(metric, wide=wide) for metric in compared.metrics)
    table = table_of(headings, rows, limit, *range(1, len(headings)))
    return Section(title="Numbers", table=table, leading=True)


def _beside_row(metric: MetricBeside, *, wide: bool) -> Row:
    ends = (metric.base_last, metric.head_last)
    base, head = ends if wide else _narrow(*ends)
    largest, at = "equal", ""
    if metric.fault:
        largest = metric.fault
    elif metric.differing_points:
        relative = metric.largest_relative
        largest = magnitude(metric.largest_absolute)
        largest += "" if relative is None else f" ({share(relative)})"
        largest += ", within tolerance" if metric.within else ""
        at = "" if metric.largest_step is None else f"{metric.largest_step}"
    return (
        Cell(metric.name, code=True),
        Cell(base or NOTHING),
        Cell(head or NOTHING),
        Cell("" if metric.first_step is None else f"{metric.first_step}"),
        Cell(largest),
        Cell(at),
    )


def _narrow(base: str, head: str) -> tuple[str, str]:
    """As few digits as tell them apart; equal numbers need none."""
    if base != head:
        return pair(base, head)
    return (f"{float(base):.6g}",) * 2 if base else (base, head)


def _speed(compared: ComparedCommits, ratio: SpeedRatio) -> Section:
    base, head = (
        _of(compared.performance, commit, ratio.mode) for commit in (Commit.BASE, Commit.HEAD)
    )
    rows = [row for row in _speed_rows(ratio, (base, head)) if any(cell.text for cell in row[1:])]
    headings = ("Not judged", "Base", "Head", "Head over base", "95 % interval")
    title = f"Speed and memory in {ratio.mode.value} mode"
    if ratio.state is not CostState.MEASURED:
        title += f" ({ratio.state.value}: {ratio.reason})"
    table = table_of(headings, rows, len(rows), 1, 2, 3, 4)
    return Section(title=title, table=table, leading=True)


def _of(kinds: tuple[Performance, ...], commit: Commit, mode: RunMode) -> Performance:
    return next(kind for kind in kinds if (kind.commit, kind.mode) == (commit, mode))


def _speed_rows(ratio: SpeedRatio, sides: tuple[Performance, Performance]) -> Iterator[Row]:
    bounds = interval(ratio.low, ratio.high)
    # the figures that the ratio is made of: medians of all steps would give another quotient
    times = (duration(ratio.base_step_seconds), duration(ratio.head_step_seconds))
    yield _row("Step, typical", times, _change(ratio.ratio), bounds)
    yield _row("Steps/s", (rate(side.steps_per_second) for side in sides))
    yield _row("Samples/s", (rate(side.samples_per_second) for side in sides))
    yield _row("Varies by step", (_part(side.step_variation) for side in sides))
    yield _row("Varies by run", (_part(side.run_variation) for side in sides))
    on_device = all(side.device_memory_bytes for side in sides)
    memory = _change(ratio.memory_ratio)
    host = (_size(side.peak_memory_bytes) for side in sides)
    yield _row("Peak memory", host, "" if on_device else memory)
    if on_device:
        device = (_size(side.device_memory_bytes) for side in sides)
        yield _row("Device memory", device, memory)


def _change(ratio: float | None) -> str:
    return "" if ratio is None else percent(ratio)


def _part(variation: float | None) -> str:
    return "" if variation is None else share(variation)


def _row(name: str, sides: Iterable[str], ratio: str = "", bounds: str = "") -> Row:
    return (Cell(name), *map(Cell, sides), Cell(ratio), Cell(bounds))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / MEBIBYTE:,.1f} MiB" if size_bytes else ""


def _settings(compared: ComparedCommits, limit: int) -> Iterator[Section]:
    changes = (
        (
            Cell(change.what, code=True),
            Cell(change.before or NOTHING, code=True),
            Cell(change.after or NOTHING, code=True),
        )
        for change in compared.settings_changes
    )
    headings = ("Setting", "Base commit says", "Used for both")
    yield Section(
        title="Settings that differ", table=table_of(headings, changes, limit), leading=True
    )
    optimizers = (
        (
            Cell(f"{change.name} of optimizer {change.optimizer}"),
            Cell(change.before or NOTHING),
            Cell(change.after or NOTHING),
        )
        for change in compared.optimizer_settings
    )
    table = table_of(("At the end", "Base", "Head"), optimizers, limit)
    yield Section(title="Optimizer settings that differ", table=table, leading=True)
    parts = (
        (Cell(change.part, code=True), Cell(short_if_digest(change.expected), code=True),
         Cell(short_if_digest(change.observed), code=True))
        for change in compared.environment_changes
    )  # fmt: skip
    table = table_of(("Part", "Base", "Head"), parts, limit)
    yield Section(title="Parts of the environment that differ", table=table, leading=True)


def _tensors(compared: ComparedCommits, limit: int) -> Section:
    rows = (
        (Cell(tensor.name, code=True), Cell(tensor.kind.value), Cell(tensor.expected, code=True),
         Cell(tensor.observed, code=True))
        for tensor in compared.tensors
    )  # fmt: skip
    table = table_of(("Tensor or value", "How", "Base", "Head"), rows, limit)
    title = f"Training state that differs ({compared.differing_tensors:,})"
    return Section(title=title, table=table)


def _environment(compared: ComparedCommits, limit: int) -> Section:
    parts = sorted(compared.environment.parts.items())
    rows = ((Cell(part, code=True), Cell(value, code=True)) for part, value in parts)
    return Section(title="Environment", table=table_of(("Part", "Head"), rows, limit))


def _runs(compared: ComparedCommits, limit: int) -> Section:
    facts = (
        ("Base commit", Cell(compared.base.commit, code=True)),
        ("Head commit", Cell(compared.head.commit, code=True)),
        *(("Not committed", Cell(path, code=True)) for path in compared.head.changed_files),
        ("Order of the runs", Cell(", ".join(compared.order), code=True)),
        ("Seed given to both", Cell(f"{compared.seed}")),
        ("The base's script seeds at", Cell(", ".join(compared.base.seeded_at), code=True)),
        ("The head's script seeds at", Cell(", ".join(compared.head.seeded_at), code=True)),
        *_results(Commit.BASE, compared.base),
        *_results(Commit.HEAD, compared.head),
        *_noise(compared.ratios),
        ("Isolation", Cell(compared.isolation)),
        ("Settings digest", Cell(compared.settings_digest, code=True)),
        ("Checkpoint of the base", Cell(compared.base.checkpoint_digest, code=True)),
        ("Checkpoint of the head", Cell(compared.head.checkpoint_digest, code=True)),
        ("Compared at", Cell(compared.created_at)),
    )  # fmt: skip
    return Section(title="Runs", table=facts_table(facts, limit))


def _noise(ratios: tuple[SpeedRatio, ...]) -> Iterator[tuple[str, Cell]]:
    for ratio in ratios:
        bounds = interval(ratio.control_low, ratio.control_high)
        yield f"Noise of {ratio.mode.value} runs", Cell(bounds)


def _results(commit: Commit, side: ComparedSide) -> Iterator[tuple[str, Cell]]:
    for mode, results in (
        (RunMode.STRICT, side.strict_results),
        (RunMode.DEFAULT, side.default_results),
    ):
        said = f"{count(side.runs, 'run')}, {count(results, 'result')}"
        yield f"{commit.value}, {mode.value} mode", Cell(said)


def compared_facts(compared: ComparedCommits) -> tuple[str, ...]:
    """Which commits, where and when: a line each, for the foot of a view."""
    dirty = len(compared.head.changed_files)
    head = compared.head.commit[:SHORT_COMMIT]
    head += f" + {count(dirty, 'uncommitted change')}" if dirty else ""
    base = f"{compared.base.name} ({compared.base.commit[:SHORT_COMMIT]})"
    parts = compared.environment.parts
    where = ", ".join(
        f"{name} {parts[name]}" for name in ("device", "cpu", "torch", "threads") if name in parts
    )
    return (
        f"base {base}, head {head}",
        f"{count(compared.rounds, 'round')}, seed {compared.seed}, {compared.created_at[:16]}",
        where,
    )
