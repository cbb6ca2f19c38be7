from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison import cost
from gate.comparison.cost import Ratio, RoundOfRuns, noise_band, paired_ratio

STEPS = st.lists(st.floats(0.01, 10), min_size=2, max_size=8).map(np.array)
ROUNDS = st.lists(st.tuples(STEPS, STEPS), min_size=1, max_size=4)
Pairs = list[tuple[np.ndarray, np.ndarray]]


def _rounds(pairs: Pairs) -> tuple[RoundOfRuns, ...]:
    return tuple(RoundOfRuns(over=(over,), under=(under,)) for over, under in pairs)


@given(ROUNDS)
def test_the_estimate_lies_inside_its_interval(pairs: Pairs) -> None:
    ratio = paired_ratio(_rounds(pairs))
    assert ratio.low <= ratio.value * (1 + 1e-12)
    assert ratio.value <= ratio.high * (1 + 1e-12)


@given(ROUNDS, st.floats(0.1, 10))
def test_a_slower_clock_changes_no_ratio(pairs: Pairs, scale: float) -> None:
    plain = paired_ratio(_rounds(pairs))
    scaled = paired_ratio(_rounds([(over * scale, under * scale) for over, under in pairs]))
    assert (scaled.value, scaled.low, scaled.high) == pytest.approx(
        (plain.value, plain.low, plain.high), rel=1e-9
    )


@given(ROUNDS)
def test_an_arm_against_itself_costs_nothing(pairs: Pairs) -> None:
    ratio = paired_ratio(_rounds([(over, over) for over, _ in pairs]))
    assert ratio.value == pytest.approx(1.0)


def test_rounds_that_agree_give_a_narrow_interval_though_their_speed_differs() -> None:
    rounds = _rounds([(np.full(5, 1.2 * speed), np.full(5, speed)) for speed in (1.0, 7.0, 0.3)])
    ratio = paired_ratio(rounds)
    assert (ratio.low, ratio.high) == pytest.approx((1.2, 1.2))


def test_draws_that_are_made_some_at_a_time_are_the_same_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = np.random.default_rng(3).random((2, 77)) + 1
    rounds = (RoundOfRuns(over=(seconds[0],), under=(seconds[1],)),)
    found = paired_ratio(rounds)
    for number in (50, 1999, 2000):
        monkeypatch.setattr(cost, "NUMBERS_AT_A_TIME", 77 * number)
        assert paired_ratio(rounds) == found


def test_few_rounds_are_widened() -> None:
    rounds = _rounds([(np.full(5, over), np.ones(5)) for over in (1.0, 4.0)])
    ratio = paired_ratio(rounds)
    assert ratio.value == pytest.approx(2.0)
    assert ratio.low == pytest.approx(2.0 * 0.5 ** np.sqrt(2))


def test_both_default_runs_of_a_round_count_by_their_geometric_mean() -> None:
    one = RoundOfRuns(over=(np.full(3, 2.0),), under=(np.full(3, 1.0), np.full(3, 4.0)))
    assert paired_ratio((one,)).value == pytest.approx(1.0)


def test_the_noise_counts_in_both_directions() -> None:
    slower, faster = Ratio(value=1.0, low=0.9, high=1.2), Ratio(value=0.8, low=0.5, high=1.0)
    assert noise_band((slower,)) == 1.2
    assert noise_band((slower, faster)) == 2.0
