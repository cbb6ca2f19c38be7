"""Turn cost, noise and a comparison of two commits into sentences and titled tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from gate.comparison.differences import CostState
from gate.comparison.level_records import Performance
from gate.comparison.measurements import (
    AllReduceSpread,
    ArmFigures,
    CalibrationDocument,
    Closeness,
    ComparedCommits,
    ComparedSide,
    CostDocument,
    KnobPrice,
    MetricBeside,
    MetricNoise,
    NoiseDocument,
    Price,
    Provenance,
    SpeedRatio,
)
from gate.report.assembly import calibration_headline, calibration_sections
from gate.report.difference_words import ulp_words
from gate.report.escape import NOTHING, clean, code_block, prose
from gate.report.judged import rate
from gate.report.layout import Cell, Row, Section, facts_table, table_of
from gate.report.markdown import MarkdownPart, fit, titled_part
from gate.report.terminal_lines import section_view
from gate.report.wording import (
    SHORT_COMMIT,
    duration,
    interval,
    magnitude,
    pair,
    percent,
    percentage,
    short_if_digest,
)
from gate.text.phrases import count
from gate.training.runs import Commit, RunMode

MAX_ROWS = 20
PAIR = 2
MEBIBYTE = 1024 * 1024


def cost_headline(cost: CostDocument) -> str:
    """Say in one sentence what strict mode costs."""
    charged = next(price for price in cost.prices if price.arm == cost.judged_arm)
    if charged.ratio is None:
        return f"The cost of determinism cannot be measured here: {charged.reason}."
    figure = f"{percent(charged.ratio)} step time, 95 % {interval(charged.low, charged.high)}"
    if charged.state is CostState.INCONCLUSIVE:
        return f"The cost of determinism is inconclusive: {figure}, {charged.reason}."
    if charged.state is CostState.IMPLAUSIBLE:
        return f"The cost of determinism is implausible: {figure}; {charged.reason}."
    if charged.ratio < 1:
        return f"Determinism costs no time here: {figure}."
    budget = cost.budget_percent
    verdict = "" if budget is None else f" (budget {budget:g} %)"
    over = "; over budget" if cost.over_budget else ""
    return f"Determinism costs {figure}{verdict}{over}."


def cost_sections(cost: CostDocument) -> tuple[Section, ...]:
    """Return tables of the prices with their control, the arms, and each measured knob's cost."""
    prices = table_of(
        ("Arms", "Step time", "95 % interval", "Memory", "State"),
        (*map(_price_row, cost.prices), _control_row(cost.control)),
        MAX_ROWS,
        1,
        2,
        3,
    )
    arms = table_of(
        ("Arm", "Step", "Cold start", "Memory", "Device", "Runs", "Results"),
        map(_arm_row, cost.arms),
        MAX_ROWS,
        *range(1, 7),
    )
    sections = [Section(title="Overhead", table=prices), Section(title="Arms", table=arms)]
    if cost.attribution:
        knobs = table_of(
            ("Knob", "Costs", "95 % interval", "Fate", "Why"),
            map(_knob_row, cost.attribution),
            MAX_ROWS,
            1,
            2,
        )
        sections += [Section(title="Knobs", table=knobs), _minimal(cost)]
    return tuple(sections)


def _price_row(price: Price) -> Row:
    reason = f"{price.state.value}: {price.reason}" if price.reason else price.state.value
    return (
        Cell(f"{price.arm} over {price.over}"),
        Cell("" if price.ratio is None else percent(price.ratio)),
        Cell(interval(price.low, price.high)),
        Cell("" if price.memory_ratio is None else percent(price.memory_ratio)),
        Cell(reason),
    )


def _control_row(control: Price) -> Row:
    """Return the row of this machine's noise, which is no price and so has no state."""
    return (*_price_row(control)[:-1], Cell(control.reason or "the control"))


def _arm_row(arm: ArmFigures) -> Row:
    return (
        Cell(arm.name),
        Cell(duration(arm.step_seconds)),
        Cell(duration(arm.cold_start_seconds)),
        Cell(_whole_size(arm.peak_memory_bytes)),
        Cell(_whole_size(arm.device_memory_bytes)),
        Cell(f"{arm.runs}"),
        Cell(f"{arm.distinct_results}"),
    )


def _whole_size(size_bytes: int) -> str:
    return f"{size_bytes / MEBIBYTE:,.0f} MiB" if size_bytes else ""


def _knob_row(knob: KnobPrice) -> Row:
    price = knob.price
    ratio = None if price is None else price.ratio
    noise = price is not None and price.state is CostState.INCONCLUSIVE
    return (
        Cell(knob.knob, code=True),
        Cell("" if ratio is None else percent(ratio)),
        Cell("" if price is None else interval(price.low, price.high)),
        Cell(knob.state.value),
        Cell(f"{knob.reason}; overhead within noise" if noise else knob.reason),
    )


def _minimal(cost: CostDocument) -> Section:
    """Return a table with the result of the search for the minimal sufficient set."""
    minimal = cost.minimal
    if minimal is None:
        facts = [("Found", Cell("none: strict mode itself is not repeatable here"))]
    else:
        verified = "yes" if minimal.verified else "no: another run differed"
        strict = "the same bits as strict mode" if minimal.same_bits_as_strict else "different bits"
        facts = [
            ("Turned on", Cell(", ".join(minimal.knobs) or "none: the default mode")),
            ("Removed", Cell(", ".join(minimal.dropped) or "none")),
            ("Verified by another run", Cell(verified)),
            ("Runs that agreed", Cell(f"{minimal.equal_runs}" if minimal.verified else "")),
            ("Result", Cell(strict)),
            ("Caution", Cell("equal runs do not rule out rare differences")),
        ]
    title = "Minimal sufficient set that still reproduces bit for bit"
    return Section(title=title, table=facts_table(facts, MAX_ROWS), leading=True)


def noise_headline(noise: NoiseDocument) -> str:
    """Say in one sentence what repeated runs gave."""
    runs = count(noise.runs, "run")
    if noise.distinct_results == 1:
        return (
            f"All {runs} in default mode were equal; up to {percentage(noise.undetected_share)} of "
            "all runs could still differ (95 %)."
        )
    since = noise.first_diverging_step
    where = "at the end only" if since is None else f"from step {since} on"
    return f"{runs} in default mode gave {noise.distinct_results} results, differing {where}."


def noise_sections(noise: NoiseDocument) -> tuple[Section, ...]:
    """Return tables about metrics, weights, orders of summation, and what was not examined."""
    metrics = table_of(
        ("Metric", "Largest difference", "At step", "Relative", "Last step", "Significant from"),
        map(_noise_row, noise.metrics),
        MAX_ROWS,
        *range(1, 6),
    )
    sections = [
        Section(title="Metrics between reruns", table=metrics),
        _weights(noise),
        _reduction(noise),
    ]
    if noise.all_reduce is not None:
        sections.append(_all_reduce(noise.all_reduce))
    notes = table_of(("Note",), ((Cell(note),) for note in noise.notes), MAX_ROWS)
    if notes.rows:
        sections.append(Section(title="Not examined", table=notes))
    return tuple(sections)


def _noise_row(metric: MetricNoise) -> Row:
    return (
        Cell(metric.name, code=True),
        Cell(magnitude(metric.largest_gap)),
        Cell(f"{metric.gap_step}" if metric.largest_gap else ""),
        Cell(magnitude(metric.largest_relative_gap)),
        Cell(magnitude(metric.final_gap)),
        Cell(f"{metric.tolerance!r}{' (one unit in the last place)' if metric.at_floor else ''}"),
    )


def _weights(noise: NoiseDocument) -> Section:
    weights = noise.weights
    quantiles = ", ".join(
        f"{quantile.share * 100:g} %: {ulp_words(quantile.distance)}" for quantile in weights.ulp
    )
    facts = (
        ("Weights compared", Cell(count(weights.elements, "element"))),
        ("Weights that differ, most", Cell(f"{weights.elements_that_differ:,}")),
        ("Relative L2, largest", Cell(magnitude(weights.largest_relative_l2))),
        ("Units in the last place, at most", Cell(quantiles)),
        ("Not finite", Cell(f"{weights.not_finite:,}" if weights.not_finite else "")),
        ("Not compared", Cell(", ".join(weights.not_compared[:MAX_ROWS]))),
    )
    return Section(title="Final weights against the first run", table=facts_table(facts, MAX_ROWS))


def _reduction(noise: NoiseDocument) -> Section:
    spread = noise.reduction
    facts = (
        (
            ("Summed", Cell(f"{count(spread.elements, 'element')} in {spread.orders} orders")),
            ("Gradients", Cell(f"{spread.tensors:,}")),
            ("Most distinct sums of one tensor", Cell(f"{spread.most_distinct_sums}")),
            ("Spread over magnitudes, worst", Cell(magnitude(spread.worst))),
            ("Spread over magnitudes, median", Cell(magnitude(spread.median))),
            ("Spread over the sum, there", Cell(magnitude(spread.worst_of_sum))),
            ("Worst tensor", Cell(spread.worst_tensor, code=True)),
        )
        if spread
        else (("Summed", Cell("nothing")),)
    )
    title = "Gradients summed in many orders (float32)"
    return Section(title=title, table=facts_table(facts, MAX_ROWS))


def _all_reduce(spread: AllReduceSpread) -> Section:
    growth = ", ".join(
        f"×1e{decade.decades}: {magnitude(decade.spread)}" for decade in spread.growth
    )
    facts = (
        ("All-reduced", Cell(f"{count(spread.elements, 'element')}, {spread.repetitions} times")),
        ("Gradients", Cell(f"{spread.tensors:,}")),
        ("Skipped", Cell(f"{spread.skipped:,}" if spread.skipped else "")),
        ("Most distinct results of one tensor", Cell(f"{spread.same_results}")),
        ("With other placements of the ranks", Cell(f"{spread.placed_results}")),
        ("Spread over magnitudes, worst", Cell(magnitude(spread.spread))),
        ("Standard deviation, worst", Cell(magnitude(spread.deviation))),
        ("Distance from the exact sum, worst", Cell(magnitude(spread.error))),
        ("Spread with cancelling summands", Cell(growth if spread.ranks > PAIR else "")),
        ("Worst tensor", Cell(spread.worst_tensor, code=True)),
    )
    title = f"Gradients all-reduced by {spread.ranks} ranks ({spread.backend}), under load"
    return Section(title=title, table=facts_table(facts, MAX_ROWS))


TITLES = {
    Closeness.EQUAL: "equal bit for bit",
    Closeness.WITHIN_TOLERANCE: "within tolerance",
    Closeness.APART: "apart",
    Closeness.NOT_COMPARABLE: "not comparable in every number",
}


def compared_headline(compared: ComparedCommits) -> str:
    """Say in one line how base and head compare."""
    return f"Base and head are {TITLES[compared.closeness]}."


def compared_sentences(compared: ComparedCommits) -> tuple[str, ...]:
    """Return sentences on the grounds, on each commit's repeatability, and on what else matters."""
    sides = ((Commit.BASE, compared.base), (Commit.HEAD, compared.head))
    return (
        _rests_on(compared),
        *(
            f"The {commit.value} is not repeatable: {count(side.runs, 'strict run')} gave "
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
    """Return tables of numbers, speed and settings, each limited to `limit` rows.

    `wide` adds every digit, the tensors, the environment and the runs.
    """
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
        largest += "" if relative is None else f" ({percentage(relative)})"
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
    """Return two numbers with as few digits as tell them apart; equal ones stay short."""
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
    # The times that the ratio is computed from. Medians over all steps would give another quotient.
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
    return "" if variation is None else percentage(variation)


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
            Cell(f"{change.name}{change.of_optimizer}"),
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
    """Return lines for a view's foot: the commits, the conditions, and the machine."""
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


MARKDOWN_LIMIT_BYTES = 60_000
SHOWN_ROWS = 50
SHOWN_PARTS = ("device", "cpu", "torch", "threads")


def cost_view(cost: CostDocument) -> RenderableType:
    """Return prices, arms and knobs for a terminal."""
    return _view(cost_headline(cost), cost_sections(cost), cost.provenance)


def cost_markdown(cost: CostDocument) -> str:
    """Return the cost as a section of Markdown."""
    parts = tuple(titled_part(section) for section in cost_sections(cost))
    return _markdown("Cost of determinism", cost_headline(cost), parts, cost.provenance)


def noise_view(noise: NoiseDocument) -> RenderableType:
    """Return the noise floor for a terminal, with tolerances to copy."""
    view = _view(noise_headline(noise), noise_sections(noise), noise.provenance)
    # Not wrapped: a user copies it, and a line broken by the terminal would be different YAML.
    snippet = Text(noise.snippet, no_wrap=True, overflow="ignore")
    return Group(view, Text("\nFor repro-gate.yml:", style="bold"), snippet)


def noise_markdown(noise: NoiseDocument) -> str:
    """Return the noise floor as a section of Markdown."""
    snippet = MarkdownPart(text=f"#### For repro-gate.yml\n\n{code_block(noise.snippet)}")
    parts = (*(titled_part(section) for section in noise_sections(noise)), snippet)
    return _markdown("Noise floor", noise_headline(noise), parts, noise.provenance)


def calibration_view(document: CalibrationDocument) -> RenderableType:
    """Return derived tolerances for a terminal, with YAML to copy."""
    view = _view(
        calibration_headline(document),
        calibration_sections(document, SHOWN_ROWS),
        document.provenance,
    )
    if not document.block:
        return view
    block = Text(document.block, no_wrap=True, overflow="ignore")
    return Group(view, Text("\nFor repro-gate.yml:", style="bold"), block)


def calibration_markdown(document: CalibrationDocument) -> str:
    """Return derived tolerances as a section of Markdown."""
    sections = calibration_sections(document, SHOWN_ROWS)
    parts = tuple(titled_part(section) for section in sections)
    if document.block:
        parts += (MarkdownPart(text=f"#### For repro-gate.yml\n\n{code_block(document.block)}"),)
    return _markdown(
        "Derived tolerances", calibration_headline(document), parts, document.provenance
    )


def _view(headline: str, sections: tuple[Section, ...], origin: Provenance) -> RenderableType:
    return Group(
        Text(headline, style="bold"),
        *map(section_view, sections),
        Text(clean(origin_words(origin)), style="dim"),
    )


def _markdown(
    title: str, headline: str, parts: tuple[MarkdownPart, ...], origin: Provenance
) -> str:
    head = f"### {title}\n\n{prose(headline)}\n\n{prose(origin_words(origin))}"
    return fit(head, parts, MARKDOWN_LIMIT_BYTES)


def origin_words(origin: Provenance) -> str:
    """Say in one line where and when a measurement was made."""
    parts = origin.environment.parts
    where = ", ".join(f"{name} {parts[name]}" for name in SHOWN_PARTS if name in parts)
    dirty = (
        f", {count(len(origin.changed_files), 'uncommitted change')}"
        if origin.changed_files
        else ""
    )
    return f"Commit {origin.commit[:12]}{dirty}, {origin.created_at[:16]}, {where}"
