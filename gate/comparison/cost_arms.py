"""Prices from the rounds of `repro-gate cost`, and the minimal sufficient set of knobs.

The search is greedy. There are two to the power of the knobs possible sets, and each trial is a
pair of trainings. The set is minimal in the order of cost, but not proven to be the best of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gate.comparison.compare import distinct_results
from gate.comparison.cost import (
    Ratio,
    RoundOfRuns,
    judged_ratio,
    memory_ratio,
    noise_band,
    paired_ratio,
    steady,
    typical_seconds,
)
from gate.comparison.differences import CostState
from gate.comparison.measurements import ArmFigures, KnobPrice, KnobState, Price
from gate.evidence.run_evidence import RunEvidence
from gate.settings.knobs import KnobSet, PricedKnob
from gate.settings.levels import CostSettings

MIN_ROUNDS = 3
Arms = Mapping[str, tuple[RunEvidence, ...]]


def shortest_run(arms: Arms, settings: CostSettings) -> int:
    """Return the number of steady steps of the shortest run."""
    return min(len(steady(run, settings.warmup_steps)) for runs in arms.values() for run in runs)


def control_price(arms: Arms, names: tuple[str, str], settings: CostSettings) -> Price:
    """Return the second default run of each round over the first: the noise of this machine."""
    # The control itself has no control to be compared with.
    return _price(arms, (names[1], (names[0],)), settings, None)


def arm_price(
    arms: Arms, arm: str, over: tuple[str, ...], settings: CostSettings, control: Price
) -> Price:
    """Return the price of one arm over one or several others of the same rounds.

    It is `measured` only when its whole interval is outside the control's. The control is applied
    in both directions, because which of two equal runs came first means nothing.
    """
    return _price(arms, (arm, over), settings, control)


def _price(
    arms: Arms, names: tuple[str, tuple[str, ...]], settings: CostSettings, control: Price | None
) -> Price:
    arm, over = names
    shown = "default" if len(over) > 1 else over[0]
    chosen = {name: arms[name] for name in (arm, *over)}
    memory = memory_ratio(arms[arm], tuple(run for name in over for run in arms[name]))
    missing = settings.min_steps - shortest_run(chosen, settings)
    seconds = {
        name: [steady(run, settings.warmup_steps) for run in runs] for name, runs in chosen.items()
    }
    reason = ""
    if missing > 0:
        reason = f"{missing} steps too short"
    elif any(np.min(run) <= 0 for runs in seconds.values() for run in runs):
        reason = "steps too short for this clock"
    if reason:
        state = CostState.NOT_MEASURABLE
        return Price(arm=arm, over=shown, state=state, reason=reason, memory_ratio=memory)
    rounds = tuple(
        RoundOfRuns(over=(seconds[arm][index],), under=tuple(seconds[name][index] for name in over))
        for index in range(len(arms[arm]))
    )
    ratio = paired_ratio(rounds)
    state, reason = judged_ratio(ratio.value, _why_inconclusive(len(rounds), ratio, control))
    return Price(
        arm=arm,
        over=shown,
        state=state,
        reason=reason,
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        memory_ratio=memory,
    )


def _why_inconclusive(rounds: int, ratio: Ratio, control: Price | None) -> str:
    if rounds < MIN_ROUNDS:
        return f"fewer than {MIN_ROUNDS} rounds"
    if control is None:
        return ""
    if control.ratio is None or control.low is None or control.high is None:
        return "without a control"
    band = noise_band((Ratio(value=control.ratio, low=control.low, high=control.high),))
    if ratio.low > band or ratio.high < 1 / band:
        return ""
    return "within the noise of this machine"


def arm_figures(
    name: str, knobs: tuple[str, ...], runs: tuple[RunEvidence, ...], settings: CostSettings
) -> ArmFigures:
    """Return the typical figures of an arm's runs, and how many distinct results they gave."""
    timed = [steady(run, settings.warmup_steps) for run in runs]
    timed = [seconds for seconds in timed if len(seconds) and np.median(seconds) > 0]
    starts = [run.first_step_seconds for run in runs if run.first_step_seconds is not None]
    return ArmFigures(
        name=name,
        knobs=knobs,
        runs=len(runs),
        step_seconds=typical_seconds(tuple(timed)) if timed else None,
        cold_start_seconds=float(np.median(starts)) if starts else None,
        peak_memory_bytes=int(np.median([run.peak_memory_bytes for run in runs])),
        device_memory_bytes=int(np.median([run.device_memory_bytes for run in runs])),
        distinct_results=distinct_results(runs),
    )


Test = Callable[[KnobSet], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The set that was found, the dropped and needed knobs, and whether a last run agreed."""

    knobs: KnobSet
    dropped: tuple[PricedKnob, ...]
    needed: tuple[PricedKnob, ...]
    verified: bool


def removal_order(prices: dict[PricedKnob, Price]) -> tuple[PricedKnob, ...]:
    """Return the knobs that seem to cost anything, most expensive first.

    A knob that speeds up the training, or has no price, stays: removing it gains nothing.
    """
    costs = {knob: price.ratio for knob, price in prices.items() if price.ratio is not None}
    costly = [knob for knob, ratio in costs.items() if ratio > 1]
    # The name breaks ties, so that equal prices give one order.
    return tuple(sorted(costly, key=lambda knob: (-costs[knob], knob.value)))


def minimal_set(start: KnobSet, order: tuple[PricedKnob, ...], equal: Test, verify: Test) -> Search:
    """Remove one knob after the other while the rest still repeats; restore a knob that is needed.

    `equal` says whether runs of a set agree, `verify` whether one further run does.
    """
    current, dropped, needed = start, list[PricedKnob](), list[PricedKnob]()
    for knob in order:
        if equal(current - {knob}):
            current -= {knob}
            dropped.append(knob)
        else:
            needed.append(knob)
    # Each removal was tested on its own set; one more run tests the final set again.
    verified = verify(current)
    # Restore the knob that was removed last: it was the least expensive, so the least is lost.
    while not verified and dropped:
        knob = dropped.pop()
        needed.append(knob)
        current |= {knob}
        verified = equal(current) and verify(current)
    return Search(knobs=current, dropped=tuple(dropped), needed=tuple(needed), verified=verified)


def knob_fate(
    knob: PricedKnob, price: Price | None, search: Search | None, *, on: bool
) -> KnobPrice:
    """Return a knob's row: its cost, what became of it and why; `on`: strict mode sets it."""
    if price is None:
        state, reason = KnobState.NOT_APPLICABLE, "no GPU was used"
    elif not on:
        state, reason = KnobState.OFF, "off in strict mode already"
    elif search is None:
        state, reason = KnobState.KEPT, "strict mode itself is not repeatable"
    else:
        state, reason = _fate(knob, price, search)
    return KnobPrice(knob=knob.value, price=price, state=state, reason=reason)


def _fate(knob: PricedKnob, price: Price, search: Search) -> tuple[KnobState, str]:
    if knob in search.dropped:
        return KnobState.DROPPED, "without it the runs are still equal"
    if knob in search.needed:
        return KnobState.NEEDED, "without it the runs differ"
    if price.state is CostState.NOT_MEASURABLE:
        return KnobState.KEPT, "could not be measured"
    return KnobState.KEPT, "costs nothing"
