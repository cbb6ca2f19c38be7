"""The cost and noise documents as titled tables, before they are Markdown or a terminal's."""

from __future__ import annotations

from gate.comparison.differences import CostState
from gate.comparison.measurements import (
    ArmFigures,
    CostDocument,
    KnobPrice,
    MetricNoise,
    NoiseDocument,
    Price,
)
from gate.report.difference_words import ulp_words
from gate.report.layout import Cell, Row, Section, facts_table, table_of
from gate.report.wording import count, duration, interval, magnitude, percent, share

MAX_ROWS = 20
MEBIBYTE = 1024 * 1024


def cost_headline(cost: CostDocument) -> str:
    """The cost of strict mode in one sentence."""
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
    """Prices with their control, the arms, and the attribution where it was asked for."""
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
    """The noise of this machine: not a price, so it has no state."""
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
    """What the search for the minimal sufficient set came to."""
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
    """What reruns gave in one sentence."""
    runs = count(noise.runs, "run")
    if noise.distinct_results == 1:
        return (
            f"All {runs} in default mode were equal; up to {share(noise.undetected_share)} of "
            "all runs could still differ (95 %)."
        )
    since = noise.first_diverging_step
    where = "at the end only" if since is None else f"from step {since} on"
    return f"{runs} in default mode gave {noise.distinct_results} results, differing {where}."


def noise_sections(noise: NoiseDocument) -> tuple[Section, ...]:
    """Metrics, weights, the order of sums, and what could not be looked at."""
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
