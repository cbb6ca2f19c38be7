"""How a difference goes on: planted shapes are named, and nothing is named that does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from each_row import each_row
from evidence_cases import evidence_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison, MetricDelta
from gate.diagnosis.diagnosis import MAX_POINTS, Growth, GrowthShape
from gate.diagnosis.growth import MIN_POINTS, growth_of
from gate.settings.gate_settings import ComparisonSettings

STEPS = 24
Curve = Callable[[int], float]


def loss(step: int) -> float:
    """A loss that falls by half over the steps."""
    return 2.0 * math.exp(-step / 30)


def comparison_of(expected: Curve, difference: Curve, steps: int = STEPS) -> Comparison:
    """Two runs whose losses are that far apart; steps without a difference are equal."""
    left = tuple(expected(step) for step in range(1, steps + 1))
    right = tuple(expected(step) + difference(step) for step in range(1, steps + 1))
    runs = (evidence_of(values=left), evidence_of(values=right))
    return compare_results(*runs, ComparisonSettings(), ("one", "other"))


def grown(difference: Curve, expected: Curve = loss) -> Growth:
    found = growth_of(comparison_of(expected, difference))
    assert found is not None
    return found


def test_the_same_amount_at_each_step_is_an_offset() -> None:
    found = grown(lambda _: 0.01)
    assert found.shape is GrowthShape.CONSTANT
    assert found.sentence == (
        "a constant offset of about 0.01 at every step: systematic, and not amplified by the "
        "training"
    )


def test_the_same_part_of_the_value_is_proportional() -> None:
    found = grown(lambda step: 0.02 * loss(step))
    assert found.shape is GrowthShape.PROPORTIONAL
    assert "about 0.02 of it at every step: systematic, as by a factor" in found.sentence


def test_where_the_value_hardly_moves_both_are_said() -> None:
    found = grown(lambda _: 0.01, expected=lambda _: 2.0)
    assert found.shape is GrowthShape.CONSTANT
    assert "which here is a constant part of the value too" in found.sentence


def test_rounding_that_grows_by_a_factor_is_chaos() -> None:
    found = grown(lambda step: 1e-7 * 1.6**step)
    assert found.shape is GrowthShape.EXPONENTIAL
    assert found.factor == pytest.approx(1.6, rel=0.02)
    assert "by a factor of 1.6 a step (doubles every 1.5 steps)" in found.sentence
    assert "chaos, the training amplifies a difference of the size of rounding" in found.sentence


def test_a_large_difference_that_grows_so_is_not_called_rounding() -> None:
    found = grown(lambda step: 0.01 * 1.3**step)
    assert found.shape is GrowthShape.EXPONENTIAL
    assert "chaos" not in found.sentence
    assert found.sentence.endswith(": the training amplifies it")


def test_growth_that_ends_at_a_ceiling_says_until_when() -> None:
    found = grown(lambda step: min(1e-7 * 4.0**step, 0.1))
    assert found.shape is GrowthShape.EXPONENTIAL
    assert found.until is not None
    assert f"up to step {found.until}, then levels off" in found.sentence


def test_a_difference_that_adds_up_is_steady() -> None:
    found = grown(lambda step: 1e-3 * step)
    assert found.shape is GrowthShape.STEADY
    assert found.power == pytest.approx(1.0, abs=0.05)
    assert "about as the number of steps to the power 1.0: it adds up" in found.sentence


def test_what_fits_no_shape_gets_none() -> None:
    found = grown(lambda step: 0.05 * (1 + (step * 7919) % 13) * (-1) ** step)
    assert found.shape is GrowthShape.UNCLEAR
    assert found.sentence.startswith("no clear shape between 0.05 and 0.65")


def test_what_stays_of_the_size_of_rounding_is_said_to() -> None:
    found = grown(lambda step: 1e-7 * (1 + (step * 7919) % 13) * (-1) ** step)
    assert found.shape is GrowthShape.UNCLEAR
    assert found.sentence.endswith("it stays of the size of rounding, and does not grow")


def test_noise_of_one_size_in_both_directions_is_no_offset() -> None:
    assert grown(lambda step: 0.01 * (-1) ** step).shape is not GrowthShape.CONSTANT


@each_row("differing", range(MIN_POINTS))
def test_of_too_few_steps_nothing_is_said(differing: int) -> None:
    few = comparison_of(loss, lambda step: 0.01 if step <= differing else 0.0)
    assert growth_of(few) is None


def test_steps_that_stand_twice_and_huge_values_end_in_no_fault() -> None:
    twice = MetricDelta(
        metric="loss",
        step=1,
        expected="1.0",
        observed="2.0",
        absolute=1.0,
        relative=1.0,
        ulp=1,
        within=False,
    )
    plain = comparison_of(loss, lambda _: 0.0)
    assert growth_of(plain.model_copy(update={"metrics": (twice,) * 9})) is None
    wild = tuple(
        twice.model_copy(update={"step": step, "absolute": 10.0 ** (100 * (step % 7) - 300)})
        for step in range(1, 30)
    )
    assert growth_of(plain.model_copy(update={"metrics": wild})) is not None


PLANTED: dict[GrowthShape, Callable[[float, float], Curve]] = {
    GrowthShape.CONSTANT: lambda size, _: lambda _step: size,
    GrowthShape.PROPORTIONAL: lambda size, _: lambda step: size * loss(step),
    GrowthShape.EXPONENTIAL: lambda size, rate: lambda step: 1e-4 * size * rate**step,
    GrowthShape.STEADY: lambda size, rate: lambda step: size * 1e-2 * step**rate,
}


@given(
    shape=st.sampled_from(sorted(PLANTED)),
    size=st.floats(1e-3, 0.5),
    rate=st.floats(1.3, 2.0),
    sign=st.sampled_from((1, -1)),
)
def test_every_planted_shape_is_named(
    shape: GrowthShape, size: float, rate: float, sign: int
) -> None:
    curve = PLANTED[shape](size, rate)
    assert grown(lambda step: sign * curve(step)).shape is shape


@given(
    sizes=st.lists(st.floats(1e-6, 1e3), min_size=MIN_POINTS, max_size=40),
    unit=st.sampled_from((1e-3, 0.5, 2.0, 1e3)),
)
def test_the_unit_of_a_metric_changes_no_shape(sizes: list[float], unit: float) -> None:
    def deltas(scale: float) -> tuple[MetricDelta, ...]:
        return tuple(
            MetricDelta(
                metric="loss",
                step=step,
                expected=repr(scale),
                observed=repr(scale + scale * size),
                absolute=scale * size,
                relative=size,
                ulp=1,
                within=False,
            )
            for step, size in enumerate(sizes, start=1)
        )

    plain = comparison_of(loss, lambda _: 0.0)
    here, there = (
        growth_of(plain.model_copy(update={"metrics": deltas(scale)})) for scale in (1.0, unit)
    )
    assert here is not None
    assert there is not None
    assert here.shape is there.shape
    assert len(here.points) <= MAX_POINTS
    assert (here.points[0], here.points[-1]) == (here.first, here.last)
