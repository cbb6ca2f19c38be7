"""Which runs are made: the order of two commits, further seeds, variants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Direction, Level
from gate.training.plan import plan_compare, plan_gate, plan_seeds, training_of
from gate.training.runs import Commit, RunMode

EVEN = st.integers(1, 25).map(lambda half: 2 * half)


def test_two_rounds_go_there_and_back() -> None:
    assert [planned.label for planned in plan_compare(2)] == [
        *("base-1", "strict-1", "default-1", "base-default-1"),
        *("base-default-2", "default-2", "strict-2", "base-2"),
    ]


@given(EVEN)
def test_a_drift_that_is_linear_in_time_adds_the_same_to_both_commits(rounds: int) -> None:
    plan = plan_compare(rounds)
    for mode in (RunMode.STRICT, RunMode.DEFAULT):
        base, head = (
            [place for place, run in enumerate(plan) if (run.commit, run.mode) == (commit, mode)]
            for commit in (Commit.BASE, Commit.HEAD)
        )
        assert sum(base) == sum(head)
        assert sum(one < other for one, other in zip(base, head, strict=True)) == rounds / 2
        assert {abs(one - other) for one, other in zip(base, head, strict=True)} == {1}


@given(EVEN)
def test_each_run_has_a_label_of_its_own(rounds: int) -> None:
    labels = [planned.label for planned in plan_compare(rounds)]
    assert len(set(labels)) == len(labels) == 4 * rounds


def test_runs_for_times_are_not_observed() -> None:
    assert {(run.mode, run.observe) for run in plan_compare(2)} == {
        (RunMode.STRICT, True),
        (RunMode.DEFAULT, False),
    }


def _seeded(policy: dict[str, object], **more: object) -> GateSettings:
    train = {"command": ("python", "train.py", "--seed={seed}"), "max_steps": 3}
    asked = {"version": 1, "train": train, "seeds": (42, 1, 2), "policy": policy, **more}
    return GateSettings.model_validate(asked)


def test_each_further_seed_is_one_strict_run_with_the_seed_in_its_command() -> None:
    settings = _seeded({"level": Level.STATISTICAL, "equivalence": {"loss": {"absolute": 1.0}}})
    planned = plan_seeds(settings)
    assert [(run.label, run.seed, run.mode) for run in planned] == [
        ("seed-1", 1, RunMode.STRICT),
        ("seed-2", 2, RunMode.STRICT),
    ]
    train = training_of(planned[0], settings.train)
    assert (train.seed, train.command) == (1, ("python", "train.py", "--seed=1"))
    (first, *_) = plan_gate(2, priced=True)
    assert training_of(first, settings.train).command[-1] == "--seed=42"


def test_each_variant_is_run_with_every_seed() -> None:
    ranking = {"metric": "loss", "better_is": Direction.LOWER}
    variants = {"adam": {"arguments": ("--adam",)}, "own": {"command": ("own.sh", "{seed}")}}
    settings = _seeded({"level": Level.SCIENTIFIC, "ranking": ranking}, variants=variants)
    planned = plan_seeds(settings)
    assert [run.label for run in planned[:3]] == ["adam-seed-42", "own-seed-42", "adam-seed-1"]
    assert len(planned) == 6
    adam, own = (training_of(run, settings.train).command for run in planned[2:4])
    assert adam == ("python", "train.py", "--seed=1", "--adam")
    assert own == ("own.sh", "1")
    assert planned[0].described == "adam-seed-42: variant adam, strict mode"


def test_without_such_a_level_no_seed_is_run() -> None:
    settings = GateSettings.model_validate(
        {"version": 1, "train": {"command": ("python", "a.py"), "max_steps": 3}}
    )
    assert plan_seeds(settings) == ()


def test_runs_that_go_together_are_announced_once() -> None:
    first, default, _, second = plan_gate(2, priced=True)
    assert first.described_with((second,)) == (
        "strict-1 and strict-2: training, strict mode, side by side"
    )
    assert "strict-1: training, strict mode and default-1:" in first.described_with((default,))
    assert first.described_with(()) == first.described
