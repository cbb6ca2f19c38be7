from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.cost_arms import Search, knob_fate, minimal_set, removal_order
from gate.comparison.differences import CostState
from gate.comparison.measurements import KnobState, Price
from gate.settings.knobs import ALL_KNOBS, KnobSet, PricedKnob

KNOBS = st.frozensets(st.sampled_from(list(PricedKnob)))
ORDER = st.permutations(list(PricedKnob)).map(tuple)
FIRST, SECOND = PricedKnob.DETERMINISTIC_ALGORITHMS, PricedKnob.INDUCTOR_DETERMINISTIC


def _price(ratio: float | None, state: CostState = CostState.MEASURED) -> Price:
    return Price(arm="strict", over="without", state=state, ratio=ratio)


@given(KNOBS, ORDER)
def test_what_the_result_needs_stays_and_all_else_goes(
    needed: KnobSet, order: tuple[PricedKnob, ...]
) -> None:
    found = minimal_set(ALL_KNOBS, order, needed.issubset, needed.issubset)
    assert found.knobs == needed
    assert found.verified
    assert set(found.dropped) | set(found.needed) == ALL_KNOBS


@given(KNOBS, KNOBS, ORDER)
def test_nothing_is_called_verified_that_the_last_run_denied(
    lucky: KnobSet, needed: KnobSet, order: tuple[PricedKnob, ...]
) -> None:
    # Two runs agree by luck without some knobs; the verifying run does not.
    found = minimal_set(ALL_KNOBS, order, (needed - lucky).issubset, needed.issubset)
    assert found.verified
    assert needed <= found.knobs


def test_strict_mode_itself_may_fail_its_verification() -> None:
    found = minimal_set(ALL_KNOBS, (), lambda _: True, lambda _: False)
    assert (found.knobs, found.verified) == (ALL_KNOBS, False)


def test_the_costliest_goes_first_and_what_costs_nothing_stays() -> None:
    prices = {
        FIRST: _price(1.1),
        SECOND: _price(1.3),
        PricedKnob.FILL: _price(0.9),
        PricedKnob.CUBLAS_WORKSPACE: _price(None, CostState.NOT_MEASURABLE),
    }
    assert removal_order(prices) == (SECOND, FIRST)


def test_each_fate_has_its_reason() -> None:
    search = Search(knobs=ALL_KNOBS - {FIRST}, dropped=(FIRST,), needed=(SECOND,), verified=True)
    free, unpriced = _price(0.9), _price(None, CostState.NOT_MEASURABLE)
    rows = [
        knob_fate(FIRST, _price(1.2), search, on=True),
        knob_fate(SECOND, _price(1.2), search, on=True),
        knob_fate(PricedKnob.CUBLAS_WORKSPACE, free, search, on=True),
        knob_fate(PricedKnob.CUBLAS_WORKSPACE, unpriced, search, on=True),
        knob_fate(PricedKnob.FILL, free, search, on=False),
        knob_fate(FIRST, None, None, on=True),
    ]
    assert [(row.state, row.reason) for row in rows] == [
        (KnobState.DROPPED, "without it the runs are still equal"),
        (KnobState.NEEDED, "without it the runs differ"),
        (KnobState.KEPT, "costs nothing"),
        (KnobState.KEPT, "could not be measured"),
        (KnobState.OFF, "off in strict mode already"),
        (KnobState.NOT_APPLICABLE, "no GPU was used"),
    ]
