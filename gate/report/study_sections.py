"""Describe a study: means over seeds, set-ups compared with the first, efficiency of ranks."""

from __future__ import annotations

import math
import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.differences import CostState
from gate.comparison.measurements import SpeedRatio
from gate.comparison.studies import (
    ArmContrast,
    Contrast,
    MetricContrast,
    MetricOverSeeds,
    StudyArm,
    StudyDocument,
    StudyKind,
    StudyRun,
)
from gate.report.escape import NOTHING, clean
from gate.report.judged import rate
from gate.report.layout import Cell, Row, Section, table_of
from gate.report.measurement_sections import origin_words
from gate.report.terminal_lines import Sentence, section_view
from gate.report.wording import duration, magnitude
from gate.text.phrases import count

LOSS = "loss"
ROWS = 20
SHOWN = 3
SHOWN_PARTS = 6
SHOWN_SEEDS = 10
STATES = {
    Contrast.EQUAL: "equal, bit for bit",
    Contrast.DIFFERENT: "differs",
    Contrast.NOT_SHOWN: "no difference shown",
    Contrast.UNDECIDED: "undecided",
}
EFFICIENCY = "Efficiency"


def spread_words(mean: float, deviation: float) -> str:
    """Return mean and standard deviation, the latter with two digits: `0.0101 ± 0.00012`."""
    if not deviation:
        return f"{mean:.6g} ± 0"
    places = 1 - math.floor(math.log10(deviation))
    if abs(mean) > 1e6 or not 0 <= places <= 8:  # noqa: PLR2004 - where a plain number is too long to read
        return f"{mean:.6g} ± {deviation:.2g}"
    return f"{mean:.{places}f} ± {deviation:.{places}f}"


def study_headline(study: StudyDocument) -> str:
    """Say the study's result in one sentence."""
    if study.kind is StudyKind.SEEDS:
        return _seeds_headline(study)
    if study.kind is StudyKind.SCALING:
        return _scaling_headline(study)
    return " ".join(_contrast_headline(contrast) for contrast in study.contrasts)


def _seeds_headline(study: StudyDocument) -> str:
    arm = study.arms[0]
    if arm.ignores_seed:
        return f"The seed has no effect: all {len(study.seeds)} seeds gave the same result."
    metric = _main(arm)
    if metric is None or metric.sample is None:
        return f"{count(len(study.seeds), 'seed')}; no metric has a value at every seed."
    spread = spread_words(metric.sample.mean, metric.sample.deviation)
    return f"{metric.metric} is {spread} over {count(metric.sample.seeds, 'seed')}."


def _main(arm: StudyArm) -> MetricOverSeeds | None:
    """Return the metric of the headline: the loss, or else the first metric with a sample."""
    known = [metric for metric in arm.metrics if metric.sample is not None]
    return next(
        (contrast for contrast in known if contrast.metric == LOSS), known[0] if known else None
    )


def _contrast_headline(contrast: ArmContrast) -> str:
    names = f"{contrast.arm} and {contrast.over}"
    if contrast.equal_pairs == contrast.pairs:
        return f"{names} give equal results, bit for bit, at {_all(contrast.pairs)}."
    differing = [metric.metric for metric in contrast.metrics if metric.state is Contrast.DIFFERENT]
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        return f"{names} differ in {', '.join(differing[:SHOWN])}{more} (95 %)."
    undecided = any(metric.state is Contrast.UNDECIDED for metric in contrast.metrics)
    ending = "not enough to compare metrics" if undecided else "no metric's mean shows a difference"
    return f"{names} give other bits; {ending} over {count(contrast.pairs, 'seed')}."


def _all(seeds: int) -> str:
    return f"all {seeds} seeds" if seeds > 1 else "the one seed"


def _scaling_headline(study: StudyDocument) -> str:
    parts = [
        f"{arm.ranks} ranks {_share(contrast.efficiency)}"
        for arm, contrast in zip(study.arms[1:], study.contrasts, strict=True)
        if contrast.efficiency is not None
    ]
    first = f"{count(study.arms[0].ranks, 'rank')}"
    if not parts:
        return f"Efficiency over {first} is unknown: {study.contrasts[0].reason}."
    noisy = any(contrast.speed.state is not CostState.MEASURED for contrast in study.contrasts)
    doubt = "; not all of it is outside the noise of this machine" if noisy else ""
    return f"Efficiency over {first}: {', '.join(parts)}{doubt}."


def study_sentences(study: StudyDocument) -> tuple[str, ...]:
    """Return further sentences: the agreement of losses when scaling, then the notes."""
    agreement: tuple[str, ...] = ()
    if study.kind is StudyKind.SCALING:
        agreement = tuple(_contrast_headline(contrast) for contrast in study.contrasts)
    return (*agreement, *(f"{note[:1].upper()}{note[1:]}." for note in study.notes))


def study_sections(study: StudyDocument, limit: int, *, wide: bool) -> tuple[Section, ...]:
    """Return tables of means, differences and speed, each limited to `limit` rows.

    `wide` adds the runs and the commands.
    """
    made = [_means(study, limit)]
    if study.contrasts:
        made += [_differences(study, limit, wide=wide), _speed(study, limit, wide=wide)]
    if wide:
        made += [_runs(study, limit), _commands(study, limit)]
    return tuple(section for section in made if section.table.rows)


def _means(study: StudyDocument, limit: int) -> Section:
    rows = (
        _mean_row(arm, metric)
        for name in dict.fromkeys(
            arm_metric.metric for arm in study.arms for arm_metric in arm.metrics
        )
        for arm in study.arms
        for metric in arm.metrics
        if metric.metric == name
    )
    headings = ("Metric", "Set-up", "Mean ± s", "Mean, 95 %", "Seeds", "Step")
    table = table_of(headings, rows, limit, 2, 3, 4, 5)
    return Section(title="Last values over seeds", table=table, leading=True)


def _mean_row(arm: StudyArm, metric: MetricOverSeeds) -> Row:
    sample = metric.sample
    if sample is None:
        return (
            Cell(metric.metric, code=True),
            Cell(arm.name),
            Cell(metric.reason),
            *[Cell("")] * 3,
        )
    return (
        Cell(metric.metric, code=True),
        Cell(arm.name),
        Cell(spread_words(sample.mean, sample.deviation)),
        Cell(_bounds(metric.low, metric.high)),
        Cell(f"{sample.seeds}"),
        Cell("" if metric.step is None else f"{metric.step}"),
    )


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"{low:.4g} to {high:.4g}"


def _differences(study: StudyDocument, limit: int, *, wide: bool) -> Section:
    headings = ("Metric", "Set-up", "Difference", "95 % interval", "From step", "What it shows")
    rows = (
        _difference_row(contrast, metric)
        for contrast in study.contrasts
        for metric in contrast.metrics
        if wide or metric.state is not Contrast.EQUAL
    )
    over = study.contrasts[0].over
    table = table_of(headings, rows, limit, 2, 3, 4)
    return Section(title=f"Difference from {over}, seed by seed", table=table, leading=True)


def _difference_row(contrast: ArmContrast, metric: MetricContrast) -> Row:
    shown = STATES[metric.state] + (f": {metric.reason}" if metric.reason else "")
    if metric.state is Contrast.NOT_SHOWN and metric.low is not None and metric.high is not None:
        missed = magnitude((metric.high - metric.low) / 2)
        shown += f"; one below {missed} would not show"
    return (
        Cell(metric.metric, code=True),
        Cell(contrast.arm),
        Cell("" if metric.difference is None else f"{metric.difference:+.3g}"),
        Cell(_bounds(metric.low, metric.high) if metric.first_step is not None else ""),
        Cell("" if metric.first_step is None else f"{metric.first_step}"),
        Cell(shown),
    )


def _speed(study: StudyDocument, limit: int, *, wide: bool) -> Section:
    """Return the speeds; efficiency only when scaling, because it compares numbers of ranks."""
    scaling = study.kind is StudyKind.SCALING
    contrasts = {contrast.arm: contrast for contrast in study.contrasts}
    rows = [_speed_cells(arm, contrasts.get(arm.name), wide=wide) for arm in study.arms]
    if not scaling:
        rows = [{name: cell for name, cell in row.items() if name != EFFICIENCY} for row in rows]
    headings = tuple(rows[0])
    table = table_of(headings, (tuple(row.values()) for row in rows), limit, *range(1, 5))
    title = f"Speed in {study.mode.value} mode (not judged)"
    return Section(title=title, table=table, leading=True)


def _speed_cells(arm: StudyArm, contrast: ArmContrast | None, *, wide: bool) -> dict[str, Cell]:
    measured = arm.performance
    samples, variation = measured.samples_per_second, measured.run_variation
    cells = {
        "Set-up": Cell(arm.name),
        "Step": Cell(duration(measured.median_step_seconds)),
        "Samples/s": Cell("" if samples is None else rate(samples * arm.ranks)),
    }
    if wide:
        cells["Varies by run"] = Cell("" if variation is None else f"{variation * 100:.2g} %")
        cells["Ranks"] = Cell(f"{arm.ranks}")
    if contrast is None:
        ratio, share, state = "1", "", measured.reason
    else:
        speed, share = contrast.speed, _efficiency(contrast)
        ratio = "" if speed.ratio is None else f"{speed.ratio:.3g} {_ratios(speed)}"
        state = speed.state.value
        state += f": {speed.reason}" if wide and speed.reason else ""
    return cells | {
        "Step over first": Cell(ratio),
        EFFICIENCY: Cell(share),
        "State": Cell(state),
    }


def _ratios(speed: SpeedRatio) -> str:
    known = speed.low is not None and speed.high is not None
    return f"[{speed.low:.3g}, {speed.high:.3g}]" if known else ""


def _efficiency(contrast: ArmContrast) -> str:
    shares = (contrast.efficiency, contrast.efficiency_low, contrast.efficiency_high)
    share, low, high = map(_share, shares)
    return share if None in shares else f"{share} [{low}, {high}]"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.0f} %"


def _runs(study: StudyDocument, limit: int) -> Section:
    headings = ("Run", "Seed", "Result", "Steps", "Step", "Process", "Last loss")
    table = table_of(headings, map(_run_row, study.runs), limit, 1, 2, 3, 4, 5, 6)
    return Section(title="Runs (one result number: equal bits)", table=table)


def _run_row(run: StudyRun) -> Row:
    loss = next((value.point.decimal for value in run.values if value.metric == LOSS), "")
    return (
        Cell(run.label, code=True),
        Cell(f"{run.seed}"),
        Cell(f"{run.result}"),
        Cell(f"{run.steps}"),
        Cell(duration(run.step_seconds)),
        Cell(duration(run.wall_seconds)),
        Cell(loss),
    )


def _commands(study: StudyDocument, limit: int) -> Section:
    rows = (
        (
            Cell(arm.name),
            Cell(shlex.join(arm.command), code=True),
            Cell(", ".join(arm.moved[:SHOWN_PARTS])),
        )
        for arm in study.arms
    )
    headings = ("Set-up", "Command", "Environment that differs from the first")
    return Section(title="Commands", table=table_of(headings, rows, limit))


def study_facts(study: StudyDocument) -> tuple[str, ...]:
    """Return lines for a view's foot: where and how the study was made."""
    runs = f"{count(len(study.runs), 'run')} in {study.mode.value} mode"
    seeds = ", ".join(map(str, study.seeds[:SHOWN_SEEDS]))
    more = " …" if len(study.seeds) > SHOWN_SEEDS else ""
    return (origin_words(study.provenance), f"{runs}, seeds {seeds}{more}")


def study_view(study: StudyDocument) -> RenderableType:
    """Return the study for a terminal."""
    return Group(
        Sentence(clean(study_headline(study)), style="bold"),
        *(Sentence(clean(sentence)) for sentence in study_sentences(study)),
        *map(section_view, study_sections(study, ROWS, wide=False)),
        *(Text(clean(fact), style="dim", overflow="fold") for fact in study_facts(study)),
    )
