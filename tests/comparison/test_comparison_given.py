"""What steps were given is compared at the same step, and a schedule is no cause by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pytest
import torch
from each_row import each_row
from evidence_cases import evidence_of, manifest_of
from evidence_cases import settings_of as gate_settings
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler as schedulers

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison, OptimizerSettingChange
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.first_divergence import diagnose_drift
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.evidence.step_work import StepGiven, given_at, is_told, only_changes
from gate.harness.recording.given import settings_of
from gate.report.brief import cause_words

PREFIX = "state/optimizer/0/group/"
LR = f"{PREFIX}0/lr"
EPOCH = 3
Rates = Callable[[int], Iterable[Mapping[str, str]]]


def run(
    each: Iterable[Mapping[str, str]], *, samples: int | None = 64, passes: int = 1, moved: int = 0
) -> RunEvidence:
    """A run whose steps were given these settings; its losses differ from step `moved` on.

    The weights differ from the update before that on.
    """
    told = list(each)
    *steps, end = [{f"{PREFIX}{name}": word for name, word in one.items()} for one in told]
    values = tuple(2.0 - step / 100 - (step >= moved > 0) for step in range(1, len(steps) + 1))
    manifest = manifest_of(w=b"w", **{name: word.encode() for name, word in end.items()})
    return evidence_of(values=values).model_copy(
        update={
            "checkpoint": manifest.model_copy(update={"optimizer_settings": end}),
            "steps": StepDigests.of(
                StepDigest(
                    step=step, parameters="b" if step >= max(1, moved - 1) and moved else "a"
                )
                for step in range(1, len(steps) + 1)
            ),
            "given": only_changes(
                StepGiven(step=step, samples=samples, passes=passes, settings=one)
                for step, one in enumerate(steps, start=1)
                if is_told(step)
            ),
        }
    )


def compared(before: RunEvidence, after: RunEvidence) -> Comparison:
    return compare_results(before, after, gate_settings().compare, ("baseline", "strict-1"))


def diagnosed(before: RunEvidence, after: RunEvidence) -> Diagnosis:
    found = diagnose_drift(compared(before, after))
    assert found is not None
    return found


def fixed(rate: str, steps: int = 6) -> list[dict[str, str]]:
    return [{"0/lr": rate}] * (steps + 1)


def scheduled(make: Callable[[torch.optim.Optimizer, int], object], rate: float = 0.1) -> Rates:
    """What a real scheduler gives each step of a training that plans for so many."""

    def rates(steps: int) -> Iterable[Mapping[str, str]]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=rate, momentum=0.9)
        schedule = make(optimizer, steps)
        for step in range(steps):
            yield settings_of(optimizer)
            optimizer.step()
            if isinstance(schedule, schedulers.ReduceLROnPlateau):
                schedule.step(1.0 + step)
            elif isinstance(schedule, schedulers.LRScheduler):
                schedule.step()
            elif callable(schedule):
                optimizer.param_groups[0]["lr"] = schedule(step + 1)
        yield settings_of(optimizer)

    return rates


def warm_up(_: torch.optim.Optimizer, steps: int) -> Callable[[int], float]:
    return lambda step: 0.1 * min(1.0, (step + 1) / (steps / 2))


def by_hand(optimizer: torch.optim.Optimizer, steps: int) -> Callable[[int], float]:
    rate = warm_up(optimizer, steps)
    optimizer.param_groups[0]["lr"] = rate(0)
    return rate


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer, int], object]] = {
    "step": lambda one, _: schedulers.StepLR(one, step_size=EPOCH),
    "milestones": lambda one, steps: schedulers.MultiStepLR(one, [steps // 2]),
    "exponential": lambda one, _: schedulers.ExponentialLR(one, 0.9),
    "cosine": schedulers.CosineAnnealingLR,
    "restarts": lambda one, _: schedulers.CosineAnnealingWarmRestarts(one, EPOCH),
    "linear": lambda one, steps: schedulers.LinearLR(one, total_iters=steps),
    "polynomial": lambda one, steps: schedulers.PolynomialLR(one, total_iters=steps),
    "one cycle": lambda one, steps: schedulers.OneCycleLR(one, max_lr=0.1, total_steps=steps + 1),
    "cycle": lambda one, steps: schedulers.CyclicLR(
        one, 0.01, 0.1, step_size_up=max(1, steps // 2)
    ),
    "lambda": lambda one, steps: schedulers.LambdaLR(one, lambda step: 1 - step / (2 * steps)),
    "plateau": lambda one, _: schedulers.ReduceLROnPlateau(one, patience=1),
    "warm-up by hand": by_hand,
}


@each_row("name", SCHEDULES)
@each_row(("before", "after"), [(24, 15), (15, 24), (8, 1), (1, 8)])
def test_another_number_of_steps_never_blames_the_schedule(
    name: str, before: int, after: int
) -> None:
    rates = scheduled(SCHEDULES[name])
    # a horizon that follows the steps, and one that does not
    for moved in (0, 2):
        found = diagnosed(run(rates(before)), run(rates(after), moved=moved))
        assert found.optimizer_settings == found.settings_beside == ()
        assert "lr" not in cause_words(found).split()


# the others set the rate themselves, or keep nothing of what they were given
OTHERS = {"warm-up by hand", "one cycle", "cycle", "plateau"}


@each_row("name", sorted(SCHEDULES.keys() - OTHERS))
def test_a_rate_given_to_a_scheduler_is_named_as_the_script_names_it(name: str) -> None:
    one, other = (scheduled(SCHEDULES[name], rate) for rate in (0.05, 0.0505))
    (change,) = diagnosed(run(one(8)), run(other(8), moved=2)).optimizer_settings
    assert (change.before, change.after, change.revert_to) == ("0.05", "0.0505", "0.05")


def test_a_schedule_by_hand_is_a_factor_and_no_number_to_set_back() -> None:
    one = run([{"0/lr": repr(1e-3 * step / 7)} for step in range(1, 9)])
    other = run([{"0/lr": repr(2e-3 * step / 7)} for step in range(1, 9)], moved=2)
    found = diagnosed(one, other)
    assert cause_words(found) == ("the learning rate is 2 × the baseline's at every step")
    assert not found.optimizer_settings[0].revert_to


def test_another_schedule_says_where_it_leaves_the_old_one() -> None:
    one = run([{"0/lr": word} for word in ("0.1", "0.1", "0.01", "0.01")])
    other = run([{"0/lr": word} for word in ("0.1", "0.05", "0.05", "0.01")], moved=3)
    assert cause_words(diagnosed(one, other)) == ("another schedule: lr 0.1 → 0.05 at step 2")


def test_a_rate_that_is_changed_beside_fewer_steps_is_still_named() -> None:
    found = diagnosed(run(fixed("0.1", 8)), run(fixed("0.2", 6), moved=2))
    assert cause_words(found) == "lr 0.1 → 0.2"


def test_many_groups_that_are_moved_in_one_proportion_are_one_change() -> None:
    groups = [{f"{group}/lr": repr(rate * 0.9**group) for group in range(5)} for rate in (0.1, 0.2)]
    (change,) = diagnosed(run([groups[0]] * 4), run([groups[1]] * 4, moved=2)).optimizer_settings
    assert (change.factor, change.revert_to) == ("2", "")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ((1,), "weight_decay 0.0 → 0.1 in 1 of 3 parameter groups"),
        ((0, 2), "weight_decay 0.0 → 0.1 in 2 of 3 parameter groups"),
        ((0, 1, 2), "weight_decay 0.0 → 0.1"),
    ],
)
def test_a_setting_of_some_parameter_groups_says_of_how_many(
    changed: tuple[int, ...], words: str
) -> None:
    before, after = (
        [{f"{group}/weight_decay": "0.1" if group in own else "0.0" for group in range(3)}] * 5
        for own in ((), changed)
    )
    assert cause_words(diagnosed(run(before), run(after, moved=2))) == words


def test_a_factor_of_some_parameter_groups_says_of_how_many() -> None:
    before, after = (
        [
            {
                f"{group}/lr": repr((0.01 + step / 100) * (scale if group > 1 else 1))
                for group in range(4)
            }
            for step in range(5)
        ]
        for scale in (2, 1)
    )
    assert cause_words(diagnosed(run(before), run(after, moved=2))) == (
        "the learning rate in 2 of 4 parameter groups is 0.5 × the baseline's at every step"
    )


def test_groups_that_are_alike_at_the_first_step_alone_are_another_schedule() -> None:
    """A warm-up over two steps instead of four: twice the rate at first, and then no more."""
    rates = ([0.25, 0.5, 0.75, 1.0, 1.0], [0.5, 1.0, 1.0, 1.0, 1.0])
    one, other = ([{"0/lr": repr(rate), "1/lr": repr(3 * rate)} for rate in side] for side in rates)
    found = diagnosed(run(one), run(other, moved=2))
    assert cause_words(found) == "another schedule: lr 0.25 → 0.5 at step 1"


RATES = st.lists(st.sampled_from((0.1, 0.2, 0.4)), min_size=5, max_size=5)


@settings(deadline=None)
@given(RATES, RATES, st.lists(st.sampled_from((1, 2, 3)), min_size=1, max_size=4))
def test_a_factor_is_said_of_what_has_it_at_every_step(
    before: list[float], after: list[float], groups: list[int]
) -> None:
    one, other = (
        [{f"{n}/lr": repr(rate * scale) for n, scale in enumerate(groups)} for rate in side]
        for side in (before, after)
    )
    ratios = {round(new / old, 6) for old, new in zip(before, after, strict=True)}
    changes = compared(run(one), run(other, moved=2)).optimizer_settings
    assert bool(changes) == (before != after)
    for change in changes:
        assert not change.factor or ratios == {float(change.factor)}


def test_a_rate_that_waits_for_the_loss_is_no_cause_of_the_loss() -> None:
    one = run([{"0/lr": "0.1"}] * 7)
    other = run([{"0/lr": "0.1"}] * 4 + [{"0/lr": "0.01"}] * 3, moved=1)
    found = diagnosed(one, other)
    assert found.optimizer_settings == found.settings_beside == ()


def test_a_rate_cannot_move_the_first_loss_and_is_named_beside_what_does() -> None:
    found = diagnosed(run(fixed("0.1")), run(fixed("0.2"), moved=1))
    assert found.optimizer_settings == ()
    assert cause_words(found).endswith("Also changed: lr 0.1 → 0.2")


def test_another_batch_size_is_said_before_the_random_states_that_follow_from_it() -> None:
    found = diagnosed(run(fixed("0.1")), run(fixed("0.1"), samples=48, moved=1))
    assert found.cause == "each step reads 48 samples instead of 64"
    assert (found.first_step, found.subject) == (1, "samples per step")
    assert found.cause_class == "run-settings"


def test_accumulation_is_told_by_its_passes_and_its_samples() -> None:
    other = run(fixed("0.1"), samples=128, passes=2, moved=1)
    assert diagnosed(run(fixed("0.1")), other).cause == (
        "each step reads 128 samples instead of 64, and each step makes 2 backward passes "
        "instead of 1"
    )


@pytest.mark.parametrize("unknown", [None, 0])
def test_a_batch_without_a_known_size_is_no_change_of_it(unknown: int | None) -> None:
    assert compared(run(fixed("0.1")), run(fixed("0.1"), samples=unknown)).work == ()


def test_another_optimizer_is_named_by_its_class() -> None:
    one, other = run(fixed("0.1")), run(fixed("0.1"), moved=2)
    one, other = (
        side.model_copy(
            update={"given": (side.given[0].model_copy(update={"kinds": {"0": kind}}),)}
        )
        for side, kind in ((one, "Adam"), (other, "AdamW"))
    )
    assert cause_words(diagnosed(one, other)) == "the optimizer is AdamW instead of Adam"


def test_results_without_such_records_are_compared_by_their_ends() -> None:
    bare = [
        run(fixed(rate), moved=moved).model_copy(update={"given": ()})
        for rate, moved in (("0.1", 0), ("0.2", 2))
    ]
    (change,) = diagnosed(bare[0], bare[1]).optimizer_settings
    assert change == OptimizerSettingChange(
        optimizer=0, name="lr", before="0.1", after="0.2", revert_to="0.1", alone=True
    )


WORDS = st.sampled_from(("0.1", "0.2", "0.3"))


@settings(deadline=None)
@given(st.lists(st.fixed_dictionaries({LR: WORDS, f"{PREFIX}0/eps": WORDS}), min_size=1))
def test_what_is_told_of_changes_alone_gives_each_step_back(each: list[dict[str, str]]) -> None:
    full = [StepGiven(step=step, settings=one) for step, one in enumerate(each, start=1)]
    kept = only_changes(full[:20])
    assert [given_at(kept, step) for step in range(1, len(full[:20]) + 1)] == full[:20]
