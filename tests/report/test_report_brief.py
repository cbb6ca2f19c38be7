"""What stands first in every report, word for word for each outcome, and laws over all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from each_row import each_row
from hypothesis import example, given
from hypothesis import strategies as st
from report_cases import COST
from report_hostile import HOSTILE, poisoned
from report_outcomes import (
    CASES,
    CODE_DRIFT,
    ENVIRONMENT_DRIFT,
    MINI,
    MOVED_DATA,
    NONDETERMINISTIC,
    REPRODUCED,
    REQUEST,
    RESUME_AND_RESULT_DIFFER,
    WITH_DATA,
    WITHIN_TOLERANCE,
    base_runs,
    both,
    entry,
    judged,
    ran,
)

from gate.comparison.differences import EventKind, OtherSetting, TensorChange, TensorDelta
from gate.evidence.configuration import ConfigurationChange
from gate.report.brief import brief_of
from gate.report.wording import TITLES, headline, pair
from gate.settings.policy_change import PolicyChange
from gate.verdict.verdict import Answer, Answers, Finding, Outcome, Severity, Verdict

HEAD = TensorDelta(
    name="state/model/0/head.weight", kind=TensorChange.CHANGED, expected="a", observed="b"
)
SAID = {
    "one-run": (
        "passed: same result, bit for bit",
        (
            "Every step, value and tensor equals the baseline, bit for bit. 1 run here, equal to 2 "
            "recorded on 2026-08-01; no second run was made."
        ),
        "No change in the result.",
    ),
    "reproduced": (
        "passed: same result, bit for bit",
        "Every step, value and tensor equals the baseline, bit for bit.",
        "No change in the result.",
    ),
    "within-tolerance": (
        "passed: same result, within tolerance",
        (
            "Every metric is within tolerance of the baseline: loss is off by 0.0199 % at step "
            "24, at most. 11 of 12 tensors differ after the last step, and no tolerance bounds "
            "them."
        ),
        "It changes each metric by less than its tolerance.",
    ),
    "quarantine": (
        "passed: same result as the base commit (baseline in quarantine until 2026-09-05)",
        (
            "In quarantine until 2026-09-05: the baseline (one runner has another CPU since "
            "Monday). The result differs from it. Loss at step 2: 2.139 instead of 2.143 (-0.2 "
            "%, later up to 4.4 %). The base commit, run here, gives the result of this commit, "
            "bit for bit."
        ),
        "No. The base commit gives the same result here.",
    ),
    "checkpoint-torn": (
        "failed: a kill inside the save leaves no complete checkpoint",
        (
            "A run that is killed inside the save leaves no complete checkpoint. Cause: "
            "train.py:61 writes checkpoints/last.pt in place, and a kill inside torch.save "
            "leaves checkpoints/last.pt torn."
        ),
        "Not known. Only this commit was killed inside its save.",
    ),
    "resume-differs": (
        "failed: a resumed run gives a different result",
        (
            "The run that was resumed after step 12 differs from the uninterrupted one from "
            "step 13 on. Cause: the optimizer starts without its state: the first moment "
            "(exp_avg) and the second moment (exp_avg_sq) are missing."
        ),
        (
            "Not known. Only this commit was interrupted and resumed, so the base commit may "
            "differ after a resume too."
        ),
    ),
    "provisional": (
        "failed: the baseline's entry is far from its peers",
        (
            "Two runs of this commit are identical. But the baseline's entry is far from its "
            "peers, the entries of other environments: loss at step 24 is 0.489, and the 2 "
            "others have 0.31 to 0.312. It is ignored until it is recorded again. This run "
            "reproduces it exactly."
        ),
        "Not known. Nothing judged it.",
    ),
    "code-drift": (
        "failed: this change moves the result",
        (
            "Loss at step 7: 1.338 instead of 1.336 (+0.2 %, later up to 3.6 %). Cause: "
            "lr 0.001 → 0.002."
        ),
        "Yes. Same machine and packages as the baseline.",
    ),
    "environment-drift": (
        "failed: environment and result both changed",
        (
            "Since the baseline was recorded: torch 2.12.1 → 2.13.0 (1 of 3 packages; "
            "imported). Loss at step 2: 2.143 instead of 2.139 (+0.2 %, later up to 4.6 %)."
        ),
        (
            "Not its code: the base commit gives the same result here. It is this change only "
            "if it installs the new software."
        ),
    ),
    "environment-moved": (
        "passed: same result as the base commit",
        (
            "The committed baseline no longer applies on this machine: driver 550.54 → none. "
            "The base commit, run here, gives the same result, bit for bit."
        ),
        "No. The base commit gives the same result here.",
    ),
    "dependency-drift": (
        "failed: the new environment changes the result",
        (
            "This change uses another image: torch 2.12.1 → 2.13.0 (1 of 3 packages; imported). "
            "Loss at step 2: 2.143 instead of 2.139 (+0.2 %, later up to 4.6 %)."
        ),
        "Yes, but not its code: the base commit's result moves with the packages too.",
    ),
    "data-drift": (
        "failed: data and result both changed",
        (
            "The declared data moved: mini, 3 of 1,200 files (first: a/0000.npy), mean 0.481 → "
            "0.533. Loss at step 3: 1.916 instead of 1.912 (+0.2 %, later up to 4.4 %). The "
            "base commit, run here with this data, gives the result of this commit. Cause: "
            "weights and random states equal the baseline's, but the data loader returns a "
            "different batch."
        ),
        "No. The base commit gives the same result with this data.",
    ),
    "data-brought": (
        "failed: data and result both changed",
        (
            "This change selects other data: mini, 3 of 1,200 files (first: a/0000.npy), mean "
            "0.481 → 0.533. Loss at step 3: 1.916 instead of 1.912 (+0.2 %, later up to 4.4 %). "
            "Cause: weights and random states equal the baseline's, but the data loader returns "
            "a different batch."
        ),
        "Yes. It names other data than the base commit; its code may move the result too.",
    ),
    "preprocessing": (
        "failed: the preprocessing is not repeatable",
        (
            "Two runs of python prepare.py wrote different data: data/ready, 1 of 1 file "
            "(first: train.csv), first at line 17. The trainings were given what the second run "
            "wrote."
        ),
        "Not known. The base commit's preprocessing may not be repeatable either.",
    ),
    "same-code": (
        "failed: a different result from the same code",
        (
            "Code and environment match the baseline: data outside the repository changed, or "
            "the hardware. Loss at step 2: 2.143 instead of 2.139 (+0.2 %, later up to 4.6 %). "
            "Cause: the forward pass computes a different loss, although everything recorded "
            "before it equals the baseline."
        ),
        "No. Its files are exactly those that the baseline was recorded from.",
    ),
    "baseline-change": (
        "passed: new baseline",
        (
            "This pull request includes a new baseline, and this run reproduces it bit for bit. "
            "Last loss: 0.4888 instead of 0.4718 (+3.6 %). At most: file.accuracy at step 24: "
            "0.8427 → 0.8731, moved by 3.03 points (no tolerance); weights differ."
        ),
        "Yes, on purpose. The new result is part of it.",
    ),
    "no-baseline": (
        "repeatable; no baseline yet",
        "Two runs of this commit are identical. There is no baseline yet to compare them with.",
        (
            "Nothing to judge it by yet. So far: 4 identical runs (a 1-in-10 fault is missed 66 "
            "% of the time)."
        ),
    ),
    "other-accelerator": (
        "repeatable; no baseline for this machine yet",
        (
            "Two runs of this commit are identical. No entry of the baseline was recorded on "
            "this kind of machine. The nearest entry differs in: device NVIDIA H100 → cpu."
        ),
        (
            "Nothing to judge it by yet. So far: 4 identical runs (a 1-in-10 fault is missed 66 "
            "% of the time)."
        ),
    ),
    "unaffected": (
        "passed: nothing that the training gets has changed",
        (
            "Nothing was run. Every file that the training gets, its settings, data and "
            "environment are those of the baseline's entry "
            "cpu-1-rank-torch-2.13.0-75f685-d4f137.json: 2 equal runs recorded on 2026-08-01 of "
            "commit cae6621."
        ),
        "No. It changes nothing that the training gets.",
    ),
    "not-comparable": (
        "failed: not comparable with the baseline",
        "24 optimizer steps instead of the baseline's 18.",
        "Yes. Same machine and packages as the baseline.",
    ),
    "nondeterministic": (
        "failed: two runs of this commit gave different results",
        (
            "Two runs of this commit differ from step 3 on, first in the data. Cause: "
            "train.py:28 draws from numpy.random.default_rng() without a seed."
        ),
        "Not known. Only this commit was run; the base commit may not be repeatable either.",
    ),
    "error": (
        "could not check",
        (
            "Run strict-1: python train.py exited with 1: FileNotFoundError: [Errno 2] No such "
            "file or directory: 'data/digits.csv'."
        ),
        "Not known. Nothing was judged.",
    ),
    "nan": (
        "failed: the loss is NaN from step 1 on (baseline: 2.418)",
        (
            "The loss is NaN from step 1 on (baseline: 2.418). NaN and infinity never pass. "
            "Seen first in run strict-1."
        ),
        "Yes. Same machine and packages as the baseline, which is finite.",
    ),
}


@each_row("name", CASES)
def test_each_outcome_says_what_happened_and_whether_it_is_this_change(name: str) -> None:
    brief = brief_of(CASES[name])
    assert (headline(CASES[name]), brief.happened, brief.this_change) == SAID[name]


def test_a_metric_that_differs_first_is_named() -> None:
    assert NONDETERMINISTIC.diagnosis is not None
    update = {"kind": EventKind.METRIC, "subject": "tensorboard.charts/SPS", "first_step": 128}
    diagnosis = NONDETERMINISTIC.diagnosis.model_copy(update=update)
    assert brief_of(NONDETERMINISTIC.model_copy(update={"diagnosis": diagnosis})).answer == (
        "Two runs of this commit differ from step 128 on, first in the metric "
        "tensorboard.charts/SPS."
    )


def test_a_pass_with_another_configuration_is_no_result_that_cannot_move() -> None:
    """An average that no checkpoint holds, for example: its decay shows in nothing compared."""
    changes = tuple(
        ConfigurationChange(name=name, before="0.99", after="0.9")
        for name in ("argparse.ema_decay", "argparse.patience")
    )
    other = REPRODUCED.model_copy(update={"configuration_changes": changes})
    assert brief_of(other).this_change == (
        "No change in what was compared. But the training was given values that differ from the "
        "baseline's: ema_decay in the parsed arguments and 1 more."
    )


def test_every_outcome_has_its_words_and_its_case() -> None:
    assert {verdict.outcome for verdict in CASES.values()} == set(Outcome) == set(TITLES)


def test_a_price_over_the_budget_is_what_failed() -> None:
    verdict = REPRODUCED.model_copy(update={"passes": False, "over_budget": True, "cost": COST})
    assert headline(verdict) == "failed: determinism costs too much"
    assert brief_of(verdict).happened == (
        "Every step, value and tensor equals the baseline, bit for bit. But determinism costs at "
        "least +1.0 % time, more than cost.budget_percent allows."
    )


def test_a_policy_that_refuses_is_named() -> None:
    strict = WITHIN_TOLERANCE.model_copy(update={"passes": False})
    assert headline(strict) == "failed: equal bits are required"
    assert brief_of(strict).happened.endswith("But policy.require_bitwise asks for equal bits.")
    refused = CASES["baseline-change"].model_copy(update={"passes": False})
    assert brief_of(refused).happened.endswith("But policy.allow_baseline_change is false.")


def test_without_a_run_of_the_base_commit_nobody_can_tell() -> None:
    unknown = ENVIRONMENT_DRIFT.model_copy(update={"base_run": None})
    assert brief_of(unknown).this_change == (
        "Not known. The base commit was not run here, so the change could be the cause too."
    )


def test_a_base_commit_that_does_not_repeat_tells_nothing() -> None:
    one, other = base_runs(since=2)[0], ran("base-2", since=3)
    moved = entry(ran(parts={**ran().environment.parts, "driver": "550.54"}))
    commit = one.run.commit
    other = other.model_copy(update={"run": other.run.model_copy(update={"commit": commit})})
    verdict = judged(both(since=2), against=moved, base=(one, other))
    assert verdict.outcome is Outcome.ENVIRONMENT_DRIFT
    assert brief_of(verdict).this_change == (
        "Not known. Two runs of the base commit differ on this machine."
    )


def test_a_drift_from_the_base_commit_says_what_it_was_compared_with() -> None:
    moved = entry(ran(parts={**ran().environment.parts, "driver": "550.54"}))
    verdict = judged(both(since=2), against=moved, base=base_runs())
    assert verdict.outcome is Outcome.CODE_DRIFT
    brief = brief_of(verdict)
    assert (
        "The base commit, run here, gives the committed baseline's result, so it is this change "
        "that moves it." in brief.happened
    )
    assert brief.this_change == (
        "Yes. The base commit on this machine, with the same packages, gives a different result."
    )


def test_a_default_run_alone_that_differs_is_named() -> None:
    equal = NONDETERMINISTIC.model_copy(
        update={"repeat": REPRODUCED.repeat, "answers": Answers(repeat=Answer.OUTSIDE)}
    )
    assert brief_of(equal).happened.startswith(
        "The strict runs are identical, but a default run of the same work is not: they differ"
    )


@example("x" * 100)
@given(HOSTILE)
def test_any_text_leaves_two_answers(text: str) -> None:
    for verdict in CASES.values():
        brief = brief_of(poisoned(verdict, text))
        assert brief.this_change.endswith(".")
        assert brief.happened


FINITE = st.floats(-1e300, 1e300)


@given(FINITE, FINITE)
def test_two_numbers_are_shown_apart_when_they_are_apart(one: float, other: float) -> None:
    left, right = pair(repr(one), repr(other))
    assert (left == right) == (repr(one) == repr(other)) or one == other
    assert float(left) == pytest.approx(one, rel=1e-3)


def test_a_changed_setting_is_the_cause_before_the_class() -> None:
    assert CODE_DRIFT.diagnosis is not None
    plain = CODE_DRIFT.diagnosis.model_copy(update={"optimizer_settings": ()})
    assert (
        "Cause: the gradients equal the baseline's"
        in brief_of(CODE_DRIFT.model_copy(update={"diagnosis": plain})).happened
    )


def _known(verdict: Verdict) -> bool:
    return not brief_of(verdict).this_change.startswith("Not known")


def test_it_is_this_change_only_where_the_decision_says_so() -> None:
    yes = {name for name, verdict in CASES.items() if brief_of(verdict).this_change[:4] == "Yes."}
    assert yes == {"code-drift", "data-brought", "nan", "not-comparable"}
    assert not any(_known(CASES[name]) for name in ("error", "nondeterministic"))


def test_a_change_of_the_training_settings_is_not_judged_by_runs_of_the_base_commits() -> None:
    settings = PolicyChange(file="repro-gate.yml", what="train.command", before="a", after="b")
    limit = settings.model_copy(update={"what": "train.timeout_seconds"})
    verdict = REPRODUCED.model_copy(update={"settings_from": "base", "policy_changes": (limit,)})
    assert brief_of(verdict).this_change == "No change in the result."
    verdict = verdict.model_copy(update={"policy_changes": (settings, limit)})
    assert brief_of(verdict).this_change == (
        "Not known. It changes train.command, but the gate ran the base commit's settings. With "
        "those, "
        "the result is unchanged."
    )


@each_row(
    ("settings_from", "answer"),
    [
        ("base", "No. The base branch's settings count; its baseline was recorded with others."),
        ("head", "Yes. It adds the settings; the baseline was recorded with others."),
        ("work tree", "Only if it changes the settings; the machine does not matter here."),
    ],
)
def test_settings_that_the_baseline_was_not_recorded_with_are_the_changes_where_it_brings_them(
    settings_from: str, answer: str
) -> None:
    other = OtherSetting(key="train.env", before="{}", after='{"OMP_NUM_THREADS": "1"}')
    update = {"baseline": None, "other_settings": (other,), "settings_from": settings_from}
    assert brief_of(CASES["not-comparable"].model_copy(update=update)).this_change == answer


def test_where_the_declared_data_changed_no_machine_is_named() -> None:
    verdict = judged(
        both(first="batch", since=2),
        against=WITH_DATA,
        base=base_runs(first="batch", since=4),
        request=replace(REQUEST, settings=MINI),
        data=MOVED_DATA,
        base_data=MOVED_DATA,
    )
    assert verdict.outcome is Outcome.CODE_DRIFT
    assert (
        "That is against the base commit run here: the committed baseline does not apply, since "
        "the declared data changed."
    ) in brief_of(verdict).happened


def test_a_metric_that_was_not_compared_is_no_result_that_did_not_move() -> None:
    passed = Finding(
        code="metric-not-compared", severity=Severity.WARNING, message="acc is text", remedy=""
    )
    verdict = REPRODUCED.model_copy(update={"findings": (passed,)})
    assert brief_of(verdict).this_change == (
        "No change in what was compared. The findings list what was not compared."
    )


def test_tensors_that_differ_beside_equal_metrics_are_not_called_within_tolerance() -> None:
    assert WITHIN_TOLERANCE.baseline is not None
    moved = WITHIN_TOLERANCE.baseline.model_copy(update={"metrics": (), "tensors": (HEAD,)})
    brief = brief_of(WITHIN_TOLERANCE.model_copy(update={"baseline": moved}))
    assert "within tolerance" not in f"{brief.happened} {brief.this_change}"
    assert brief.happened.endswith("after the last step, and no tolerance bounds them.")
    assert brief.this_change == "Yes. It changes weights or buffers, but no metric."


def test_the_rank_that_differs_first_is_named_where_not_all_do() -> None:
    found = NONDETERMINISTIC.diagnosis
    assert found is not None
    line = found.suspects[0].model_copy(update={"possible": False, "rank": 1})
    named = found.model_copy(update={"ranks": (1,), "suspects": (line,)})
    told = brief_of(NONDETERMINISTIC.model_copy(update={"diagnosis": named})).happened
    assert " of rank 1. Cause: rank 1: " in told
    everywhere = named.model_copy(update={"ranks": ()})
    plain = brief_of(NONDETERMINISTIC.model_copy(update={"diagnosis": everywhere})).happened
    assert "rank" not in plain


def test_a_possible_line_of_another_rank_has_its_own_number() -> None:
    found = NONDETERMINISTIC.diagnosis
    assert found is not None
    line = found.suspects[0].model_copy(update={"possible": True, "rank": 0})
    named = found.model_copy(update={"ranks": (1, 2), "suspects": (line,)})
    told = brief_of(NONDETERMINISTIC.model_copy(update={"diagnosis": named})).happened
    assert "Cause: ranks 1 and 2: " in told
    assert "Possibly: rank 0: " in told


def test_a_drift_is_shown_before_the_resume_that_differs() -> None:
    told = brief_of(RESUME_AND_RESULT_DIFFER).happened
    assert told.startswith("Apart from the resume, the result differs from the baseline. Loss at ")
    assert " The run that was resumed after step 12 differs " in told
    assert "instead of" in told.partition("The run that was resumed")[0]
    assert told.endswith("the second moment (exp_avg_sq) are missing.")
