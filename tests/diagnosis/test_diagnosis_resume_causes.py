"""What a resumed run lacks is named, on recorded runs that lack exactly one thing each."""

from __future__ import annotations

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st
from resume_cases import (
    GENERATORS,
    RATE,
    STEPS,
    Lack,
    boundary,
    digest,
    interrupted,
    rate,
    resumed,
    short,
    whole,
)

from gate.comparison.resumed_results import compare_first_part, compare_resumed
from gate.diagnosis.diagnosis import CauseClass, ResumeCause
from gate.diagnosis.diagnosis import ResumeCauseKind as Kind
from gate.diagnosis.resume_causes import causes_of, diagnose_difference, saved_at
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import ComparisonSettings

EXACT = ComparisonSettings()
AT = 5
BORDERS = st.integers(1, STEPS - 1)
WEIGHT, MOMENT = "model/0/weight", "optimizer/0/state/0/exp_avg_sq"
HELD = boundary(AT).digests


def _causes(lack: Lack, step: int = AT, ranks: int = 1) -> tuple[ResumeCause, ...]:
    before, after = interrupted(step, ranks), resumed(step, lack, ranks)
    compared = compare_resumed(whole(), after, step, EXACT)
    return causes_of(whole(), before, after, compared, step)


def _without(name: str) -> dict[str, str]:
    return {known: text for known, text in HELD.items() if known != name}


@given(BORDERS)
def test_a_run_that_goes_on_exactly_is_equal_wherever_it_was_interrupted(step: int) -> None:
    compared = compare_resumed(whole(), resumed(step), step, EXACT)
    assert compared.numerically_equal
    assert compared.compared_steps == STEPS - step
    assert causes_of(whole(), interrupted(step), resumed(step), compared, step) == ()
    assert not compare_first_part(whole(), interrupted(step), step, EXACT).differs


@given(BORDERS)
def test_a_difference_is_told_in_the_steps_of_the_uninterrupted_run(step: int) -> None:
    compared = compare_resumed(whole(), resumed(step, Lack()), step, EXACT)
    assert compared.first_step == step + 1
    assert not compared.numerically_equal


LACKS = {
    "another-moment": (
        Lack(boundary={"digests": HELD | {MOMENT: short("another")}}),
        Kind.OPTIMIZER,
        "the optimizer's second moment (exp_avg_sq) is not what it was",
    ),
    "moment-is-zero": (
        Lack(boundary={"digests": HELD | {MOMENT: short("zero")}, "zero": (MOMENT,)}),
        Kind.OPTIMIZER,
        "the optimizer's second moment (exp_avg_sq) is zero",
    ),
    "moment-is-missing": (
        Lack(boundary={"digests": _without(MOMENT)}),
        Kind.OPTIMIZER,
        "the optimizer lacks the second moment (exp_avg_sq)",
    ),
    "weights": (
        Lack(boundary={"digests": HELD | {WEIGHT: short("other")}, "parameters": "sha256:ab"}),
        Kind.WEIGHTS,
        "1 tensor of the model is not what it was after step 5",
    ),
    "loss-scale": (
        Lack(
            boundary={
                "digests": HELD | {"scaler/0/scale": short("fresh")},
                "numbers": {"scaler/0/scale": (65536.0).hex()},
            }
        ),
        Kind.LOSS_SCALE,
        "the loss scale is 65536 instead of 1024 at step 6",
    ),
    "schedule-starts-over": (
        Lack(rate=rate(1)),
        Kind.SCHEDULE,
        (
            "the schedule restarts at step 0: the learning rate of step 6 is 0.1, that of step 1, "
            "instead of 0.0166667"
        ),
    ),
    "schedule-is-another": (
        Lack(rate="0.5"),
        Kind.SCHEDULE,
        "the learning rate of step 6 is 0.5 instead of 0.0166667",
    ),
    "sampler-starts-over": (
        Lack(fingerprints={"input": digest("input", 1)}),
        Kind.SAMPLER,
        "the sampler starts at sample 0: batch 6 is batch 1's",
    ),
    "sampler-is-behind": (
        Lack(fingerprints={"input": digest("input", 4)}),
        Kind.SAMPLER,
        "batch 6 is batch 4's",
    ),
    "numpy": (
        Lack(fingerprints={"random.numpy": digest("random.numpy", 1)}),
        Kind.RANDOM,
        "NumPy's generator was not restored",
    ),
    "python": (
        Lack(fingerprints={"random.python": digest("random.python", 1)}),
        Kind.RANDOM,
        "Python's generator was not restored",
    ),
    "torch": (
        Lack(fingerprints={"random.torch": digest("random.torch", 1)}),
        Kind.RANDOM,
        "torch's generator was not restored",
    ),
    "torch-elsewhere": (
        Lack(fingerprints={"random.torch": digest("elsewhere")}),
        Kind.RANDOM,
        (
            "torch's generator is in another state after step 6: not restored, or drawn from after "
            "that"
        ),
    ),
    "average": (
        Lack(average=b"87654321", differs=False),
        Kind.AVERAGE,
        "the moving average of the weights was not restored",
    ),
    "ignored": (
        Lack(
            fingerprints={"initial": digest("initial", 0)},
            boundary={"parameters": digest("parameters", 0)},
        ),
        Kind.IGNORED,
        "the resumed run starts over from step 0: it ignores the checkpoint",
    ),
}


# of the second of two optimizers, and beside one that begins only later
SECOND = "optimizer/1/state/0/momentum_buffer"
BOTH = HELD | {SECOND: short(SECOND, AT)}
OF_SEVERAL = {
    "second-starts-without-its-state": (
        2,
        {"digests": HELD, "optimizers": 2},
        "the second optimizer starts without its state: the momentum (momentum_buffer) is missing",
    ),
    "second-is-zero": (
        2,
        {"digests": BOTH | {SECOND: short("0")}, "zero": (SECOND,), "optimizers": 2},
        "the second optimizer's momentum (momentum_buffer) is zero",
    ),
    "first-is-another": (
        2,
        {"digests": BOTH | {MOMENT: short("another")}, "optimizers": 2},
        "the first optimizer's second moment (exp_avg_sq) is not what it was",
    ),
    "one-more-begins-later": (
        1,
        {"digests": HELD | {MOMENT: short("another")}, "optimizers": 2},
        "the optimizer's second moment (exp_avg_sq) is not what it was",
    ),
}


@pytest.mark.parametrize(("optimizers", "changes", "sentence"), OF_SEVERAL.values(), ids=OF_SEVERAL)
def test_of_several_optimizers_the_one_that_lacks_something_is_named(
    optimizers: int, changes: dict[str, object], sentence: str
) -> None:
    held = BOTH if optimizers > 1 else HELD
    border = boundary(AT, digests=held, optimizers=optimizers)
    before = interrupted(AT).model_copy(update={"boundaries": (border,)})
    after = resumed(AT, Lack(boundary=changes))
    compared = compare_resumed(whole(), after, AT, EXACT)
    (cause,) = causes_of(whole(), before, after, compared, AT)
    assert (cause.kind, cause.sentence) == (Kind.OPTIMIZER, sentence)


@each_row(("lack", "kind", "sentence"), LACKS.values(), ids=LACKS)
def test_the_one_thing_that_is_missing_is_named(lack: Lack, kind: Kind, sentence: str) -> None:
    (cause,) = _causes(lack)
    assert (cause.kind, cause.sentence) == (kind, sentence)


def test_kept_evidence_whose_values_are_in_another_order_gives_the_same_words() -> None:
    lack = Lack(boundary={"digests": {WEIGHT: HELD[WEIGHT]}})
    before = interrupted(AT)
    turned = boundary(AT, digests=dict(reversed(HELD.items())))
    other = before.model_copy(update={"boundaries": (turned,)})
    after = resumed(AT, lack)
    compared = compare_resumed(whole(), after, AT, EXACT)
    said, again = (causes_of(whole(), run, after, compared, AT) for run in (before, other))
    assert said == again
    assert said[0].sentence.endswith("(exp_avg) and the second moment (exp_avg_sq) are missing")


def test_two_that_are_missing_are_both_named_in_the_order_of_their_effect() -> None:
    lack = Lack(rate=rate(1), fingerprints={"random.numpy": digest("random.numpy", 1)})
    causes = _causes(lack)
    assert [one.kind for one in causes] == [Kind.SCHEDULE, Kind.RANDOM]
    compared = compare_resumed(whole(), resumed(AT, lack), AT, EXACT)
    diagnosis = diagnose_difference(causes, compared, AT)
    assert diagnosis.cause.endswith("instead of 0.0166667 and NumPy's generator was not restored")
    assert diagnosis.cause_class is CauseClass.RESUME
    assert "`scheduler.state_dict()`" in diagnosis.remedy


def test_a_schedule_that_moves_another_way_later_is_named_at_that_step() -> None:
    after = resumed(AT, Lack())
    given = [*after.given[:2], after.given[2].model_copy(update={"settings": {RATE: "0.5"}})]
    moved = after.model_copy(update={"given": (*given, *after.given[3:])})
    compared = compare_resumed(whole(), moved, AT, EXACT)
    (cause,) = causes_of(whole(), interrupted(AT), moved, compared, AT)
    assert cause.sentence == "the learning rate of step 8 is 0.5 instead of 0.0125"


def test_a_difference_without_a_known_cause_names_none() -> None:
    assert _causes(Lack()) == ()
    compared = compare_resumed(whole(), resumed(AT, Lack()), AT, EXACT)
    said = diagnose_difference((), compared, AT).cause
    assert said == "what differs first after the resume is loss, at step 6"


def test_a_generator_that_nobody_draws_from_is_no_cause() -> None:
    still = [
        one.model_copy(
            update={"fingerprints": one.fingerprints | {"random.numpy": digest("still")}}
        )
        for one in whole().steps.observed
    ]
    steady = whole().model_copy(update={"steps": type(whole().steps).of(still)})
    after = resumed(AT, Lack(fingerprints={"random.numpy": digest("other")}))
    compared = compare_resumed(steady, after, AT, EXACT)
    causes = causes_of(steady, interrupted(AT), after, compared, AT)
    assert Kind.RANDOM not in {one.kind for one in causes}


def test_buffers_that_saw_another_batch_are_no_cause_beside_the_sampler() -> None:
    seen: dict[str, object] = {"digests": HELD | {WEIGHT: short("running mean of another batch")}}
    lack = Lack(fingerprints={"input": digest("input", 1)}, boundary=seen)
    assert [one.kind for one in _causes(lack)] == [Kind.SAMPLER]
    assert [one.kind for one in _causes(Lack(boundary=seen))] == [Kind.WEIGHTS]


def a_step_late(step: int, last: int = STEPS) -> RunEvidence:
    """A resumed run whose data is that of the step before, up to a step of the training's."""
    after = resumed(step, Lack())
    late = [
        one.model_copy(
            update={"fingerprints": one.fingerprints | {"input": digest("input", behind)}}
        )
        if (behind := step + one.step - 1) < last
        else one
        for one in after.steps.observed
    ]
    return after.model_copy(update={"steps": type(after.steps).of(late)})


@given(st.integers(1, STEPS - 2))
def test_data_that_is_a_step_late_throughout_is_a_step_that_is_repeated(step: int) -> None:
    after = a_step_late(step)
    compared = compare_resumed(whole(), after, step, EXACT)
    (cause,) = causes_of(whole(), interrupted(step), after, compared, step)
    assert cause.kind is Kind.REPEATED
    repeats = f"the resumed run repeats the data of step {step}, and is a step late from then on"
    assert cause.sentence.startswith(repeats)
    # of the first step both are so, and both are named
    assert cause.sentence.endswith("or the sampler starts at sample 0") is (step == 1)
    said = diagnose_difference((cause,), compared, step)
    assert said.remedy.startswith("Save the number of the next step")


@pytest.mark.parametrize("last", [AT + 1, AT + 2])
def test_data_that_is_late_for_a_while_is_no_repeated_step(last: int) -> None:
    after = a_step_late(AT, last)
    compared = compare_resumed(whole(), after, AT, EXACT)
    (cause,) = causes_of(whole(), interrupted(AT), after, compared, AT)
    assert (cause.kind, cause.sentence) == (Kind.SAMPLER, "batch 6 is batch 5's")


def test_a_batch_that_a_restarted_generator_may_have_drawn_is_no_word_against_the_sampler() -> None:
    batch = {"input": digest("input", 1)}
    again = Lack(fingerprints=batch | {"random.numpy": digest("random.numpy", 1)})
    assert [one.sentence for one in _causes(again)] == [
        "NumPy's generator was not restored",
        "batch 6 is batch 1's, which may follow from it",
    ]
    # one that stands elsewhere does not draw the first batch again
    elsewhere = Lack(fingerprints=batch | {"random.numpy": digest("elsewhere")})
    assert _causes(elsewhere)[0].sentence == "the sampler starts at sample 0: batch 6 is batch 1's"


def test_a_rank_with_the_random_state_of_another_is_named() -> None:
    first = {name: digest(name, AT, 0) for name in GENERATORS}
    lack = Lack(fingerprints={"random.torch": digest("of ranks")}, boundary={"random": first})
    (cause,) = _causes(lack, ranks=2)
    assert cause.sentence == "torch's generator of rank 1 has the state of rank 0"
    assert cause.rank == 1


def test_a_rank_that_lost_its_random_state_is_named() -> None:
    lost = {name: digest("lost", name) for name in GENERATORS}
    lack = Lack(fingerprints={"random.numpy": digest("of ranks")}, boundary={"random": lost})
    (cause,) = _causes(lack, ranks=2)
    assert cause.sentence == "NumPy's generator of rank 1 was not restored"


def test_a_loader_that_skips_what_was_seen_is_not_accused() -> None:
    right = Lack(fingerprints={"batch": digest("all of them")}, differs=False)
    assert _causes(right) == ()


@given(BORDERS, st.integers(1, STEPS))
def test_the_step_of_the_saved_weights_is_found(step: int, held: int) -> None:
    lack = Lack(boundary={"parameters": digest("parameters", held, False)})
    assert saved_at(whole(), resumed(step, lack)) == held
