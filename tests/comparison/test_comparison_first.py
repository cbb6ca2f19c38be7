"""One order for everything that differs, and what is compared besides the two strict runs."""

from __future__ import annotations

import pytest
from evidence_cases import PARTS, evidence_of, series_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.checks import first_not_finite, never_passes
from gate.comparison.compare import compare_results, missed_share, runs_of_the_same_work
from gate.comparison.differences import EventKind, FingerprintDifference, MetricDelta
from gate.comparison.first_difference import first_events, numbering_of
from gate.comparison.tolerances import tolerance_uses
from gate.evidence.columns import Points
from gate.evidence.run_evidence import MetricSeries, MetricSource, NotFiniteTensor, RunEvidence
from gate.evidence.step_columns import StepDigests
from gate.settings.gate_settings import NotFiniteAllowed
from gate.settings.levels import Tolerance

NAN = float("nan")
COMPARE = settings_of().compare
EQUAL = evidence_of()


def _with(*series: MetricSeries, run: RunEvidence = EQUAL) -> RunEvidence:
    return run.model_copy(update={"metrics": (*run.metrics, *series)})


def _own(name: str, *points: tuple[int, float]) -> MetricSeries:
    return MetricSeries(name=name, source=MetricSource.FILE, points=Points(points))


def _first(one: RunEvidence, other: RunEvidence) -> tuple[EventKind, str, str] | None:
    first = compare_results(one, other, COMPARE, ("a", "b")).first
    return None if first is None else (first.kind, first.name, first.where)


def test_a_metric_that_counts_from_zero_is_put_beside_the_steps_that_it_means() -> None:
    """Its step 1 is the second one, so the parameters of step 1 came first."""
    one = _with(_own("file.a", (0, 1.0), (1, 1.0), (2, 1.0)))
    other = _with(
        _own("file.a", (0, 1.0), (1, 2.0), (2, 1.0)), run=evidence_of(values=(9.0, 9.0, 9.0))
    )
    assert _first(one, other) == (EventKind.LOSS, "loss", "at step 1")


def test_epochs_are_no_steps() -> None:
    long = evidence_of(values=tuple(map(float, range(1, 21))))
    later = evidence_of(values=(*map(float, range(1, 16)), 0.0, 0.0, 0.0, 0.0, 0.0))
    one = _with(_own("file.accuracy", (1, 0.5), (2, 0.6)), run=long)
    other = _with(_own("file.accuracy", (1, 0.4), (2, 0.6)), run=later)
    assert _first(one, other) == (EventKind.LOSS, "loss", "at step 16")
    alone = _with(_own("file.accuracy", (1, 0.4), (2, 0.6)), run=long)
    assert _first(one, alone) == (EventKind.METRIC, "file.accuracy", "at its step 1")


def test_epochs_of_two_steps_stand_behind_the_loss_of_any_step() -> None:
    losses = tuple(map(float, range(1, 21)))
    epochs = [(epoch, 0.5) for epoch in range(10)]
    one = _with(_own("file.acc", *epochs), run=evidence_of(values=losses))
    moved = _own("file.acc", *epochs[:6], *((epoch, 0.4) for epoch, _ in epochs[6:]))
    other = _with(moved, run=evidence_of(values=(*losses[:11], *(0.0,) * 9)))
    assert _first(one, other) == (EventKind.LOSS, "loss", "at step 12")


def test_more_optimizer_steps_explain_epochs_that_one_run_does_not_have() -> None:
    shorter = _with(
        _own("stdout.val", (0, 1.0), (1, 1.0), (2, 1.0)), run=evidence_of(values=(1.0,) * 6)
    )
    longer = _with(
        _own("stdout.val", *((epoch, 1.0) for epoch in range(5))),
        run=evidence_of(values=(1.0,) * 10),
    )
    assert _first(shorter, longer) == (EventKind.STEPS, "optimizer steps", "at step 7")
    assert _first(longer, shorter) == (EventKind.STEPS, "optimizer steps", "at step 7")


@given(
    epochs=st.integers(1, 40),
    of_each=st.integers(2, 5),
    start=st.integers(0, 1),
    every=st.integers(1, 7),
)
def test_epochs_of_several_steps_are_never_taken_for_steps(
    epochs: int, of_each: int, start: int, every: int
) -> None:
    own = _own("file.a", *((start + epoch, 0.5) for epoch in range(0, epochs, every)))
    assert numbering_of((own,), epochs * of_each).step("file.a", start) is None


@given(steps=st.integers(1, 60), start=st.integers(0, 1), every=st.integers(1, 7))
def test_what_is_written_every_few_steps_counts_steps(steps: int, start: int, every: int) -> None:
    own = _own("file.a", *((start + step, 0.5) for step in range(0, steps, every)))
    known = numbering_of((own,), steps).step("file.a", start)
    assert known == 1 or len(own.points) == 1


def test_another_number_of_steps_is_one_event_and_not_one_for_each_series() -> None:
    shorter = evidence_of(values=(2.5, 2.25))
    found = compare_results(EQUAL, shorter, COMPARE, ("a", "b"))
    assert [(event.kind, event.step) for event in found.events] == [(EventKind.STEPS, 3)]


def test_a_metric_of_one_run_alone_is_called_that() -> None:
    more = _with(_own("file.now_and_then", (2, 1.0), (3, 1.0)))
    assert _first(EQUAL, more) == (EventKind.METRIC_MISSING, "file.now_and_then", "at step 2")


@given(st.permutations(range(4)))
def test_the_order_in_which_series_are_told_changes_nothing(order: list[int]) -> None:
    series = [
        _own(f"file.{n}", *((step, float(step >= 3 - n)) for step in (1, 2, 3))) for n in range(4)
    ]
    plain = [_own(f"file.{n}", *((step, 0.0) for step in (1, 2, 3))) for n in range(4)]
    one = _with(*(plain[n] for n in order))
    other = _with(*(series[n] for n in order))
    assert _first(one, other) == (EventKind.METRIC, "file.2", "at step 1")


def test_nan_is_told_at_its_earliest_step_and_the_loss_first() -> None:
    nan = float("nan")
    run = evidence_of(values=(2.5, nan, nan))
    early = _with(_own("file.a", (1, 1.0), (2, 1.0), (3, nan)), run=run)
    found = first_not_finite((early,), ())
    assert found is not None
    assert (found.name, found.step) == ("loss", 2)
    same = _with(_own("file.a", (1, 1.0), (2, nan), (3, nan)), run=run)
    assert first_not_finite((same,), ()) == found


def test_nan_in_a_tensor_is_an_error_unless_the_settings_allow_it() -> None:
    leaf = NotFiniteTensor(name="state/model/0/mask", nan=0, infinite=6)
    run = EQUAL.model_copy(update={"not_finite": (leaf,)})
    found = first_not_finite((run,), ())
    assert found is not None
    assert (found.name, found.value) == ("state/model/0/mask", "6 infinite")
    allowed = NotFiniteAllowed(pattern="state/model/*/mask", reason="minus infinity")
    assert first_not_finite((run,), (allowed,)) is None
    other = NotFiniteAllowed(pattern="state/*/mask", reason="one level too few")
    assert first_not_finite((run,), (other,)) == found


def test_default_runs_count_where_one_of_them_shows_that_the_modes_do_the_same() -> None:
    same, struck = evidence_of("default-1"), evidence_of("default-2", values=(2.5, 9.0, 9.5))
    found = runs_of_the_same_work(EQUAL, (same, struck), COMPARE)
    assert [one.numerically_equal for one in found] == [True, False]
    assert runs_of_the_same_work(EQUAL, (struck, struck), COMPARE) == ()


@pytest.mark.parametrize("parts", [{"device": "NVIDIA H200"}, {"threads": "4"}])
def test_default_runs_on_a_gpu_or_with_threads_say_nothing_of_strict_ones(
    parts: dict[str, str],
) -> None:
    runs = [evidence_of(label, parts={**PARTS, **parts}) for label in ("strict-1", "default-1")]
    assert runs_of_the_same_work(runs[0], (runs[1],), COMPARE) == ()


def test_more_runs_miss_fewer_rare_faults() -> None:
    assert missed_share(2, 0.1) == pytest.approx(0.82)
    assert missed_share(4, 0.1) == pytest.approx(0.6562)
    assert missed_share(2, 0.0) == 1.0


def test_what_a_tolerance_lets_through_is_the_smallest_part_over_what_it_decides() -> None:
    run = EQUAL.model_copy(update={"metrics": (series_of((4.0, 2.0, 0.0)),)})
    rules = (
        Tolerance(metric="*loss", absolute=0.1, relative=0.001),
        Tolerance(metric="loss*", relative=1.0),
        Tolerance(metric="trian_loss", relative=0.1),
    )
    first, shadowed, wrong = tolerance_uses(run, rules)
    assert first.least is not None
    assert first.least.share == pytest.approx(0.025)
    assert first.least.step == 1
    assert (shadowed.metrics, shadowed.shadowed) == ((), True)
    assert (wrong.metrics, wrong.shadowed) == ((), False)


@given(st.from_regex(r"[a-z0-9]{1,20}(\.[a-z0-9]{1,20})?", fullmatch=True))
def test_any_name_of_a_fingerprint_that_a_training_makes_up_is_an_event(name: str) -> None:
    one, other = (
        EQUAL.model_copy(
            update={
                "steps": StepDigests.of(
                    step.model_copy(update={"fingerprints": {name: f"sha256:{text}"}})
                    for step in EQUAL.steps
                )
            }
        )
        for text in "12"
    )
    first = compare_results(one, other, COMPARE, ("a", "b")).first
    assert first is not None
    assert (first.name, first.step) == (name, 1)


def test_a_number_that_never_passes_needs_one_run_or_two_where_it_is_there_from_the_start() -> None:
    late, early = (evidence_of(values=values) for values in ((2.5, NAN, 1.0), (NAN, 2.0, 1.0)))
    assert never_passes((late,), ())
    # memory that is read before it is written may do that in one run alone
    assert not never_passes((early,), ())
    assert never_passes((early, early), ())
    assert not never_passes((evidence_of(), evidence_of()), ())


def _fingerprint(name: str, step: int) -> FingerprintDifference:
    return FingerprintDifference(fingerprint=name, first_step=step, equal_until=None)


def _loss(name: str, step: int) -> MetricSeries:
    return MetricSeries(name=name, source=MetricSource.HARNESS, points=Points([(step, 1.0)]))


@given(st.permutations(range(6)))
def test_weights_written_by_hand_stand_behind_their_update_and_before_who_uses_them(
    order: list[int],
) -> None:
    """A critic is clamped after its step, and the generator's pass of that step goes through it."""
    losses = [_loss(name, 1) for name in ("loss.pass1", "loss.pass2", "loss.1")]
    deltas = [_delta(one.name, 1) for one in losses]
    names = [("weights.last", 1), ("parameters.0", 1), ("weights.first", 2)]
    shuffled = [[*deltas, *(_fingerprint(*one) for one in names)][place] for place in order]
    events = first_events(
        numbering_of(losses, 3),
        steps=(3, 3),
        fingerprints=[one for one in shuffled if isinstance(one, FingerprintDifference)],
        deltas=[one for one in shuffled if isinstance(one, MetricDelta)],
        faults=(),
        tensors=(),
    )
    assert [event.name for event in events] == [
        *("loss.pass1", "weights.last", "loss.pass2", "parameters.0", "weights.first", "loss.1"),
    ]


SEEN_OF_AN_OPTIMIZER = ("loss.1", "backward.1", "gradients.1", "parameters.1", "optimizer.1")


@given(st.sampled_from(SEEN_OF_AN_OPTIMIZER), st.sampled_from(("file.norm", "wandb.acc", "tag.x")))
def test_a_metric_of_a_step_stands_behind_all_that_any_optimizer_did_in_it(
    seen: str, metric: str
) -> None:
    """It may be computed from what the second one updated, and is no cause of that."""
    names = [seen, metric]
    is_number = seen.startswith("loss")
    events = first_events(
        numbering_of([_loss(name, 2) for name in names], 3),
        steps=(3, 3),
        fingerprints=[] if is_number else [_fingerprint(seen, 2)],
        deltas=[_delta(name, 2) for name in (names if is_number else [metric])],
        faults=(),
        tensors=(),
    )
    assert [event.name for event in events] == names


def _delta(metric: str, step: int) -> MetricDelta:
    return MetricDelta(
        metric=metric,
        step=step,
        expected="1",
        observed="2",
        absolute=1.0,
        relative=1.0,
        ulp=None,
        within=False,
    )
