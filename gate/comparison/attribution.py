"""The minimal sufficient set of knobs: costly ones are taken out greedily, then verified.

Greedy, since the sets number two to the power of the knobs and each trial is a pair of trainings:
the set found is minimal in the order of cost, not proven to be the best of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gate.comparison.differences import CostState
from gate.comparison.measurements import KnobPrice, KnobState, Price
from gate.settings.priced_knobs import KnobSet, PricedKnob

Test = Callable[[KnobSet], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The set found, what was taken out, what could not be, and whether the last run agreed."""

    knobs: KnobSet
    dropped: tuple[PricedKnob, ...]
    needed: tuple[PricedKnob, ...]
    verified: bool


def removal_order(prices: dict[PricedKnob, Price]) -> tuple[PricedKnob, ...]:
    """The knobs that seem to cost anything, costliest first.

    A knob that speeds the training up, or cannot be priced, stays: nothing is gained without it.
    """
    costs = {knob: price.ratio for knob, price in prices.items() if price.ratio is not None}
    costly = [knob for knob, ratio in costs.items() if ratio > 1]
    return tuple(sorted(costly, key=lambda knob: (-costs[knob], knob.value)))


def minimal_set(start: KnobSet, order: tuple[PricedKnob, ...], equal: Test, verify: Test) -> Search:
    """Remove one knob after the other where the rest still repeats; restore what fails.

    `equal` says whether runs of a set agree, `verify` whether one more run of it does.
    """
    current, dropped, needed = start, list[PricedKnob](), list[PricedKnob]()
    for knob in order:
        if equal(current - {knob}):
            current -= {knob}
            dropped.append(knob)
        else:
            needed.append(knob)
    verified = verify(current)
    # the last one taken out is put back first: it was the cheapest, and so the least is lost
    while not verified and dropped:
        knob = dropped.pop()
        needed.append(knob)
        current |= {knob}
        verified = equal(current) and verify(current)
    return Search(knobs=current, dropped=tuple(dropped), needed=tuple(needed), verified=verified)


def knob_fate(
    knob: PricedKnob, price: Price | None, search: Search | None, *, on: bool
) -> KnobPrice:
    """A knob's row: its cost, what became of it and why; `on` says whether strict mode has it."""
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
