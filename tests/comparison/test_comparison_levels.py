"""Equivalence of means, rankings of variants, and the t distribution that both rest on."""

from __future__ import annotations

import math

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.level_judgement import is_judged, judge_level
from gate.comparison.level_records import Agreement, Equivalence, PairState
from gate.comparison.statistical_tests import (
    equivalence,
    ranking,
    sample_of,
    t_quantile,
    upper_share,
    welch_freedom,
)
from gate.evidence.columns import Point
from gate.evidence.step_work import FinalValue, SeedResult
from gate.settings.levels import Direction, Level, LevelPolicy, Margin, Ranking

VALUES = st.lists(
    st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: round(value, 3)),
    min_size=3,
    max_size=20,
)
MARGINS = st.floats(1e-3, 1e6)


def _tested(baseline: list[float], head: list[float], margin: float) -> Equivalence:
    return equivalence("loss", baseline, head, Margin(absolute=margin))


# Table of upper critical values of Student's t, NIST/SEMATECH e-Handbook, 1.3.6.7.2
@each_row(
    ("share", "freedom", "value"),
    [
        *((0.95, 1, 6.314), (0.95, 2, 2.920), (0.95, 4, 2.132), (0.95, 8, 1.860)),
        *((0.95, 18, 1.734), (0.95, 38, 1.686), (0.95, 100, 1.660)),
        *((0.975, 4, 2.776), (0.99, 10, 2.764), (0.999, 5, 5.893), (0.9, 3, 1.638)),
    ],
)
def test_quantiles_are_those_of_the_published_table(
    share: float, freedom: float, value: float
) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, abs=5.1e-4)


@each_row("freedom", [1, 1.5, 2, 4, 9, 29.3, 100, 1000])
def test_shares_and_quantiles_are_those_of_scipy(freedom: float) -> None:
    scipy_t = pytest.importorskip("scipy.stats", reason="in the extra frameworks").t
    for t in (-40.0, -3.0, -0.5, 0.0, 1e-6, 0.1, 1.0, 2.5, 12.0, 300.0):
        wanted = float(scipy_t.sf(t, freedom))
        # an absolute bound as well: 1 - p of a far tail has the digits of 1
        assert upper_share(t, freedom) == pytest.approx(wanted, rel=1e-9, abs=1e-15)
    for share in (0.5, 0.6, 0.9, 0.95, 0.975, 0.999, 0.99999):
        wanted = float(scipy_t.ppf(share, freedom))
        assert t_quantile(share, freedom) == pytest.approx(wanted, rel=1e-8, abs=1e-8)


@given(st.floats(0.5, 0.9999), st.floats(1, 200))
def test_the_quantile_is_the_inverse_of_the_share(share: float, freedom: float) -> None:
    assert 1 - upper_share(t_quantile(share, freedom), freedom) == pytest.approx(share, abs=1e-9)


@given(st.floats(-50, 50), st.floats(1, 200))
def test_the_two_tails_make_one(t: float, freedom: float) -> None:
    assert upper_share(t, freedom) + upper_share(-t, freedom) == pytest.approx(1, abs=1e-12)


def test_degrees_of_freedom_are_welch_s() -> None:
    # two samples of ten, of which one does not vary, have nine; alike, they have eighteen
    still, lively = sample_of([1.0] * 10), sample_of([float(number) for number in range(10)])
    assert still is not None
    assert lively is not None
    assert welch_freedom(still, lively) == pytest.approx(9)
    assert welch_freedom(lively, lively) == pytest.approx(18)


def test_three_answers_are_told_apart_with_their_numbers() -> None:
    baseline, head = [1.0, 1.1, 0.9, 1.05, 0.95], [1.02, 1.12, 0.92, 1.07, 0.97]
    near, far, between = (_tested(baseline, head, margin) for margin in (0.2, 0.001, 0.05))
    assert near.agreement is Agreement.EQUIVALENT
    assert near.tested is not None
    assert near.tested.difference == pytest.approx(0.02)
    # s = 0.0790569 on both sides, t(0.95, 8) = 1.85955: 0.02 +- 0.09298
    assert (near.tested.low, near.tested.high) == pytest.approx((-0.0729775, 0.1129775), abs=1e-6)
    assert near.tested.shown == pytest.approx(0.1129775, abs=1e-6)
    assert near.tested.p < 0.05
    assert near.tested.seeds_needed is None
    assert between.agreement is Agreement.UNDECIDED
    assert between.tested is not None
    assert between.tested.p > 0.05
    # 0.03 is left between difference and margin: the least n whose interval is narrower
    assert between.tested.seeds_needed == 39
    assert far.agreement is Agreement.UNDECIDED
    apart = _tested(baseline, [value + 1 for value in head], 0.2)
    assert apart.agreement is Agreement.DIFFERENT


def test_more_than_a_thousand_seeds_are_no_number() -> None:
    found = _tested([0.0, 1.0, 2.0], [0.0, 1.0, 2.0001], 1e-4)
    assert found.tested is not None
    assert found.tested.seeds_needed is None


def test_a_relative_margin_is_a_part_of_the_baselines_mean() -> None:
    part = Margin(relative=0.1)
    found = equivalence("loss", [-2.0, -2.1, -1.9], [-2.0, -2.1, -1.9], part)
    assert found.tested is not None
    assert found.tested.margin == pytest.approx(0.2)
    none = equivalence("loss", [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0], part)
    assert (none.agreement, none.tested) == (Agreement.UNDECIDED, None)


@given(VALUES, VALUES, MARGINS)
def test_equivalence_is_symmetric(one: list[float], other: list[float], margin: float) -> None:
    there, back = _tested(one, other, margin), _tested(other, one, margin)
    assert there.agreement is back.agreement
    if there.tested is not None and back.tested is not None:
        assert there.tested.difference == -back.tested.difference


@given(VALUES, VALUES, MARGINS, st.floats(0.01, 1))
def test_a_smaller_margin_never_makes_a_result_equivalent(
    one: list[float], other: list[float], margin: float, part: float
) -> None:
    wide, narrow = _tested(one, other, margin), _tested(one, other, margin * part)
    if wide.agreement is not Agreement.EQUIVALENT:
        assert narrow.agreement is not Agreement.EQUIVALENT
    if wide.agreement is Agreement.DIFFERENT:
        assert narrow.agreement is Agreement.DIFFERENT


@given(VALUES, VALUES, st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, 2))
def test_nan_and_infinity_are_never_equivalent(
    one: list[float], other: list[float], number: float, place: int
) -> None:
    other[place] = number
    assert _tested(one, other, 1e9).agreement is Agreement.UNDECIDED
    assert _tested(other, one, 1e9).agreement is Agreement.UNDECIDED


@given(st.floats(-1e300, 1e300), st.integers(3, 20), MARGINS)
def test_values_that_no_seed_moves_are_never_equivalent(
    value: float, seeds: int, margin: float
) -> None:
    found = _tested([value] * seeds, [value] * seeds, margin)
    assert found.agreement is Agreement.UNDECIDED
    assert found.tested is None


@given(st.lists(st.floats(allow_nan=False), min_size=3, max_size=5), MARGINS)
def test_no_number_ends_a_test_with_a_fault(values: list[float], margin: float) -> None:
    assert _tested(values, values[::-1], margin).metric == "loss"


SEPARATED = {1: 0.90, 2: 0.91, 3: 0.89, 4: 0.92}
LOWER = {1: 0.80, 2: 0.82, 3: 0.79, 4: 0.81}
LIKE_LOWER = {1: 0.81, 2: 0.80, 3: 0.80, 4: 0.81}
SIDES = {"adam": SEPARATED, "sgd": LOWER}


def test_a_ranking_that_is_separated_again_holds() -> None:
    variants, pairs, problem = ranking(SIDES, SIDES, Direction.HIGHER)
    assert [one.name for one in variants] == ["adam", "sgd"]
    assert [pair.state for pair in pairs] == [PairState.HELD]
    assert not problem
    down = {"adam": LOWER, "sgd": SEPARATED}
    assert [one.name for one in ranking(down, down, Direction.LOWER)[0]] == ["adam", "sgd"]


def test_a_swapped_pair_does_not_hold() -> None:
    swapped = {"adam": LOWER, "sgd": SEPARATED}
    _, pairs, problem = ranking(SIDES, swapped, Direction.HIGHER)
    assert pairs[0].state is PairState.SWAPPED
    assert problem == "sgd is no longer behind adam"


def test_a_lead_that_is_no_longer_shown_does_not_hold() -> None:
    weak = {"adam": {**LOWER, 1: 0.9}, "sgd": LOWER}
    _, pairs, problem = ranking(SIDES, weak, Direction.HIGHER)
    assert pairs[0].state is PairState.NOT_SEPARATED
    assert problem.startswith("adam leads sgd, but these seeds do not show it (p = ")


def test_a_pair_that_the_baseline_does_not_separate_may_come_either_way() -> None:
    before = {"adam": SEPARATED, "sgd": LOWER, "muon": LIKE_LOWER}
    now = {"adam": SEPARATED, "sgd": LIKE_LOWER, "muon": LOWER}
    for head in (before, now):
        _, pairs, problem = ranking(before, head, Direction.HIGHER)
        assert [pair.state for pair in pairs] == [PairState.HELD, PairState.OPEN]
        assert not problem
    # past the open pair, too: what leads has to stay ahead of both
    fallen = {"adam": LOWER, "sgd": LIKE_LOWER, "muon": dict.fromkeys(LOWER, 0.99)}
    assert ranking(before, fallen, Direction.HIGHER)[2]


def test_without_a_pair_that_is_separated_there_is_no_ranking_to_hold() -> None:
    alike = {"sgd": LOWER, "muon": LIKE_LOWER}
    assert "separates no two neighbours" in ranking(alike, alike, Direction.HIGHER)[2]


@given(VALUES, st.lists(st.floats(10, 11), min_size=20, max_size=20), st.sampled_from(Direction))
def test_a_ranking_is_held_by_itself_and_never_by_its_mirror_image(
    values: list[float], leads: list[float], better_is: Direction
) -> None:
    first = dict(enumerate(values))
    second = {seed: value + leads[seed] for seed, value in first.items()}
    straight, mirrored = {"a": first, "b": second}, {"a": second, "b": first}
    assert not ranking(straight, straight, better_is)[2]
    assert ranking(straight, mirrored, better_is)[2]


def _results(values: list[float], *, digest: str = "", step: int = 3) -> tuple[SeedResult, ...]:
    return tuple(
        SeedResult(
            seed=seed,
            digest=digest or f"{seed:064x}",
            values=(FinalValue(metric="loss", point=Point.of(step, value)),),
        )
        for seed, value in enumerate(values, start=1)
    )


POLICY = LevelPolicy(level=Level.STATISTICAL, equivalence={"lo*": Margin(absolute=0.2)})
BASELINE = _results([1.0, 1.1, 0.9])
OTHER = LevelPolicy(level=Level.STATISTICAL, equivalence={"accuracy": Margin(absolute=0.2)})


def test_the_level_is_reached_where_each_judged_metric_is_equivalent() -> None:
    found = judge_level(BASELINE, _results([1.01, 1.09, 0.92]), POLICY)
    assert found.reached == "statistical"
    assert found.problem == ""


@each_row(
    ("baseline", "head", "policy", "problem"),
    [
        (BASELINE, _results([3.0, 3.1, 2.9]), POLICY, "loss differs by +1.83 to +2.17 over 3"),
        (BASELINE, _results([1.0, 1.6, 0.9]), POLICY, "across the margin of ±0.2; about "),
        (BASELINE, BASELINE, OTHER, "no metric fits accuracy, which policy.equivalence names"),
        ((), BASELINE, POLICY, "the baseline entry holds no result of several seeds; record it"),
        (BASELINE, _results([1.0, 1.1, math.nan]), POLICY, "loss is nan at seed 3"),
        (_results([1.0, 1.1, math.inf]), BASELINE, POLICY, "the baseline's loss is inf at seed 3"),
        (BASELINE, _results([1.0, 1.1, 0.9], step=4), POLICY, "loss ends at different steps: 3, 4"),
        (
            BASELINE,
            _results([1.0, 1.1, 0.9], digest="0" * 64),
            POLICY,
            "the seed has no effect: all 3 seeds give the same result, bit for bit",
        ),
        (BASELINE, _results([1.0, 1.0, 1.0]), POLICY, ""),
    ],
)
def test_a_level_that_is_not_reached_says_why_in_one_line(
    baseline: tuple[SeedResult, ...],
    head: tuple[SeedResult, ...],
    policy: LevelPolicy,
    problem: str,
) -> None:
    found = judge_level(baseline, head, policy)
    assert problem in found.problem
    assert "\n" not in found.problem
    assert (found.reached is None) == bool(found.problem)


@given(VALUES, st.sampled_from(["0" * 64, "f" * 64]))
def test_seeds_that_all_give_one_result_never_reach_a_level(
    values: list[float], digest: str
) -> None:
    same = _results(values, digest=digest)
    assert judge_level(same, same, POLICY).reached is None
    assert judge_level(_results(values), same, POLICY).reached is None


def test_a_ranking_needs_its_metric_and_every_variant() -> None:
    policy = LevelPolicy(
        level=Level.SCIENTIFIC, ranking=Ranking(metric="accuracy", better_is=Direction.HIGHER)
    )
    named = tuple(one.model_copy(update={"variant": "adam"}) for one in BASELINE)
    assert judge_level(named, named, policy).problem.startswith("there is no metric accuracy")
    assert "no result of variant adam" in judge_level((), named, policy).problem


def test_a_level_looks_at_the_metric_that_is_ranked_and_at_those_with_a_margin() -> None:
    ranked = LevelPolicy(
        level=Level.SCIENTIFIC, ranking=Ranking(metric="accuracy", better_is=Direction.HIGHER)
    )
    judged = [is_judged(name, ranked) for name in ("accuracy", "loss", "train/accuracy")]
    assert judged == [True, False, False]
    assert [is_judged(name, POLICY) for name in ("loss", "lost", "accuracy")] == [True, True, False]
