from __future__ import annotations

import pytest
from diagnosed_runs import seeded, turned, with_fingerprints
from each_row import each_row
from evidence_cases import PARTS, evidence_of, manifest_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.compare import compare_results
from gate.comparison.differences import EventKind, OptimizerSettingChange
from gate.diagnosis.causes import DRIFT, REPEAT, UPDATE
from gate.diagnosis.diagnosis import CauseClass, Diagnosis
from gate.diagnosis.first_divergence import diagnose_drift, diagnose_repeat
from gate.diagnosis.suspects import NOTHING_KNOWN, KnownLines
from gate.evidence.observations import Override, OverrideKind, Source, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.report.brief import cause_words


def _diagnose(observed: RunEvidence, expected: RunEvidence | None = None) -> Diagnosis:
    settings = settings_of().compare
    compared = compare_results(
        expected or evidence_of(), observed, settings, ("strict-1", "strict-2")
    )
    found = diagnose_repeat(compared, NOTHING_KNOWN, one_cpu_thread=False)
    assert found is not None
    return found


def test_equal_runs_need_no_diagnosis() -> None:
    same = compare_results(evidence_of(), evidence_of(), settings_of().compare, ("a", "b"))
    assert diagnose_repeat(same, NOTHING_KNOWN, one_cpu_thread=False) is None
    assert diagnose_drift(same) is None


def test_a_moved_environment_comes_first() -> None:
    found = _diagnose(evidence_of(values=(9.0, 9.0, 9.0), parts={**PARTS, "threads": "2"}))
    assert (found.kind, found.subject) == ("environment", "threads")
    assert "threads 1 → 2" in found.cause


def test_another_number_of_steps_comes_next() -> None:
    found = _diagnose(evidence_of(values=(2.5, 2.25)))
    assert (found.kind, found.subject) == ("steps", "optimizer steps")
    assert found.first_step == 3


def test_a_first_loss_that_differs_points_at_a_seed() -> None:
    found = _diagnose(evidence_of(values=(9.0, 2.25, 2.125)))
    assert (found.first_step, found.kind, found.subject) == (1, "loss", "loss")
    assert "an unseeded random source" in found.cause


def test_a_later_loss_after_equal_weights_points_at_data_or_forward_pass() -> None:
    found = _diagnose(evidence_of(values=(2.5, 9.0, 9.5)))
    assert found.first_step == 2
    assert found.cause.startswith("the loss of step 2 differs, although the weights are equal")


def test_parameters_after_an_equal_loss_point_at_the_backward_pass() -> None:
    other = evidence_of(values=(2.5, 9.0, 9.5)).model_copy(
        update={"metrics": evidence_of().metrics}
    )
    found = _diagnose(other)
    assert (found.first_step, found.kind) == (2, "parameters")


def test_no_sentence_speaks_of_a_loss_that_was_not_recorded() -> None:
    (loss,) = evidence_of().metrics
    (moved,) = evidence_of(values=(2.5, 9.0, 9.5)).metrics
    printed = (loss.model_copy(update={"name": "stdout.loss"}),)
    expected = evidence_of().model_copy(update={"metrics": printed})
    weights = evidence_of(values=(2.5, 9.0, 9.5)).model_copy(update={"metrics": printed})
    assert _diagnose(weights, expected).cause.startswith(
        "in step 2 all that is recorded before is equal, but the updated parameters are not"
    )
    compared = compare_results(expected, weights, settings_of().compare, ("baseline", "strict-1"))
    drift = diagnose_drift(compared)
    assert drift is not None
    assert drift.cause.startswith("in step 2 all that is recorded before equals the baseline's, ")
    number = (moved.model_copy(update={"name": "stdout.loss"}),)
    metric = _diagnose(expected.model_copy(update={"metrics": number}), expected)
    assert metric.cause.startswith("weights are equal so far, but a metric that the script writes")


def test_a_metric_of_the_script_alone_points_at_its_computation() -> None:
    (loss,) = evidence_of().metrics
    speed = loss.model_copy(update={"name": "file.speed"})
    (faster,) = evidence_of(values=(2.5, 3.0, 3.5)).metrics
    one = evidence_of().model_copy(update={"metrics": (loss, speed)})
    two = evidence_of().model_copy(
        update={"metrics": (loss, faster.model_copy(update={"name": "file.speed"}))}
    )
    found = _diagnose(two, one)
    assert (found.first_step, found.kind, found.subject) == (2, "metric", "file.speed")


def test_a_difference_in_the_end_state_alone_is_told() -> None:
    found = _diagnose(evidence_of(weights=b"WEIGHTS"))
    assert (found.first_step, found.kind, found.subject) == (None, "state", "weight")


def test_a_missing_series_alone_is_told() -> None:
    (loss,) = evidence_of().metrics
    extra = loss.model_copy(update={"name": "file.extra"})
    found = _diagnose(evidence_of().model_copy(update={"metrics": (loss, extra)}))
    assert (found.kind, found.subject) == ("metric-missing", "file.extra")
    assert "a metric was written in only one run" in found.cause


@each_row(
    ("fingerprint", "told"),
    [
        ("structure", "in a different order"),
        ("initial", "starts from different weights"),
        ("random.numpy", "the runs drew from it, or seeded it, differently"),
        ("batch", "the data loader returns a different batch"),
        ("gradients", "the loss of step 1 is equal, but the gradients are not"),
        ("optimizer", "the optimizer's state is not"),
    ],
)
def test_each_fingerprint_points_to_its_class_of_cause(fingerprint: str, told: str) -> None:
    same = {"parameters": "a:1", "gradients": "a:1"}
    found = _diagnose(
        with_fingerprints({**same, fingerprint: "a:2"}, {"parameters": "a:3"}),
        with_fingerprints({**same, fingerprint: "a:1"}, {"parameters": "a:4"}),
    )
    assert (found.kind, found.first_step) == (fingerprint.partition(".")[0], 1)
    assert found.subject == fingerprint
    assert told in found.cause
    assert found.details.endswith("After it: parameters at step 2.")


def test_a_generator_is_called_by_its_name() -> None:
    same = {"parameters": "a:1", "gradients": "a:1"}
    found = diagnose_drift(
        compare_results(
            with_fingerprints({**same, "random.python": "a:2"}, {"parameters": "a:3"}),
            with_fingerprints({**same, "random.python": "a:1"}, {"parameters": "a:4"}),
            settings_of().compare,
            ("baseline", "strict-1"),
        )
    )
    assert found is not None
    assert found.cause.startswith("Python's generator is not in the baseline's state")


def test_a_cause_leaves_room_for_the_other_answers_in_the_first_lines() -> None:
    sentences = [cause.sentence for cause in (*DRIFT.values(), *REPEAT.values(), UPDATE)]
    assert [one for one in sentences if len(one.split()) > 18] == []


def test_of_fingerprints_that_differ_in_one_step_the_earlier_cause_counts() -> None:
    one, other = (
        dict.fromkeys(("optimizer", "parameters", "gradients", "batch"), f"a:{text}")
        for text in "12"
    )
    found = _diagnose(
        with_fingerprints(one, values=(2.5,)), with_fingerprints(other, values=(2.5,))
    )
    assert found.kind == "batch"
    assert found.details.endswith(
        "After it: gradients at step 1, parameters at step 1, optimizer at step 1."
    )


def test_equal_gradients_and_other_parameters_point_at_the_update() -> None:
    found = _diagnose(
        with_fingerprints({"parameters": "a:1", "gradients": "a:1"}, values=(2.5,)),
        with_fingerprints({"parameters": "a:2", "gradients": "a:1"}, values=(2.5,)),
    )
    assert (found.kind, found.first_step) == ("parameters", 1)
    assert "the update itself differs" in found.cause


def test_a_loss_after_equal_batches_points_at_arithmetic() -> None:
    steps = ({"batch": "a:1", "parameters": "a:1"}, {"batch": "a:2", "parameters": "a:2"})
    found = _diagnose(
        with_fingerprints(*steps, values=(2.5, 9.0)),
        with_fingerprints(*steps, values=(2.5, 2.25)),
    )
    assert (found.kind, found.first_step) == ("loss", 2)
    assert found.cause == (
        "the loss of step 2 differs, although the weights and batch are equal: "
        "a nondeterministic operator in the forward pass"
    )


def test_a_step_that_was_not_observed_is_told() -> None:
    left = with_fingerprints(
        {"parameters": "a:1"}, {}, {"parameters": "a:2"}, values=(1.0, 2.0, 3.0)
    )
    right = with_fingerprints(
        {"parameters": "a:1"}, {}, {"parameters": "a:3"}, values=(1.0, 2.0, 4.0)
    )
    found = _diagnose(left, right)
    assert (found.kind, found.first_step) == ("loss", 3)
    assert found.cause == (
        "the loss of step 3 differs, and the last fingerprints before it are those of step 1"
    )
    assert (found.unrecorded_from, found.cause_class) == (2, None)
    assert "the weights were equal" not in found.cause


def _apart_from(step: int, kind: str, recorded: set[int]) -> Diagnosis:
    """A drift that begins at `step`, of six whose fingerprints were `recorded` at some alone."""

    def run(side: str) -> RunEvidence:
        steps = []
        for one in range(1, 7):
            text = f"a:{side if one >= step else ''}{one}"
            same = {"random.torch": f"a:{one}", "parameters": f"a:{one}"}
            moved = {"parameters": text} | ({kind: text} if kind == "random.torch" else {})
            steps.append(same | moved if one in recorded else {})
        # the loss shows it one step later, as that of an update does
        moved_by = 0.5 if side == "1" else 0.0
        values = tuple(9.0 - one + (moved_by if one > step else 0.0) for one in range(1, 7))
        return with_fingerprints(*steps, values=values)

    compared = compare_results(run(""), run("1"), settings_of().compare, ("a", "b"))
    found = diagnose_drift(compared)
    assert found is not None
    return found


@given(
    st.integers(2, 5),
    st.sampled_from(("parameters", "random.torch")),
    st.sets(st.integers(2, 5)).map(lambda some: some | {1, 6}),
)
def test_of_steps_without_fingerprints_nothing_is_said(
    step: int, kind: str, recorded: set[int]
) -> None:
    found = _apart_from(step, kind, recorded)
    assert found.first_step is not None
    # the step at which it begins is the one that is named, or one of those that are left open
    assert (found.unrecorded_from or found.first_step) <= step <= found.first_step
    if found.unrecorded_from is None:
        # all that comes before it was recorded
        assert found.first_step == step
        assert found.kind != "loss"
        return
    last = max(one for one in recorded if one < found.first_step)
    assert found.unrecorded_from == last + 1
    assert found.cause.endswith(f", and the last fingerprints before it are those of step {last}")
    assert "everything before it" not in found.cause
    if found.kind != "random":
        assert found.cause_class is None


def test_a_fingerprint_that_one_side_lacks_is_no_difference() -> None:
    bare = with_fingerprints({"parameters": "a:1"}, values=(2.5,))
    full = with_fingerprints({"parameters": "a:1", "batch": "a:1"}, values=(2.5,))
    comparison = compare_results(bare, full, settings_of().compare, ("baseline", "strict-1"))
    assert comparison.numerically_equal
    assert (comparison.fingerprints, comparison.compared_fingerprints) == ((), ("parameters",))


def test_the_first_divergence_is_the_earliest_over_series_and_fingerprints() -> None:
    one = with_fingerprints({"parameters": "a:1"}, {"parameters": "a:2"})
    other = with_fingerprints({"parameters": "a:9"}, {"parameters": "a:8"}, values=(2.5, 9.0))
    found = _diagnose(other, one)
    assert (found.kind, found.first_step) == ("parameters", 1)


def test_a_loss_is_never_said_to_follow_weights_of_its_own_step() -> None:
    """Adam's first update is the sign of the gradient, so weights may agree once more."""
    steps = ({"batch": "a:1", "parameters": "a:1"}, {"batch": "a:2", "parameters": "a:2"})
    other = ({"batch": "a:1", "parameters": "a:1"}, {"batch": "a:2", "parameters": "a:3"})
    found = _diagnose(with_fingerprints(*other, values=(9.0, 9.5)), with_fingerprints(*steps))
    assert (found.kind, found.first_step) == ("loss", 1)
    assert "an unseeded random source" in found.cause
    same = {"initial": "a:1", "batch": "a:1", "parameters": "a:1"}
    seen = _diagnose(with_fingerprints(same, values=(9.0,)), with_fingerprints(same, values=(2.5,)))
    assert seen.cause.startswith("the loss of step 1 differs, although the weights and batch")
    assert "a step before" not in seen.cause


@pytest.mark.parametrize("fingerprint", ["loss", "gradients", "parameters"])
def test_on_one_cpu_thread_no_operator_of_torch_is_blamed(fingerprint: str) -> None:
    same = {"initial": "a:1", "parameters": "a:1", "gradients": "a:1"}
    changed = same if fingerprint == "loss" else {**same, fingerprint: "a:2"}
    one = with_fingerprints(same, same, values=(2.5, 2.25))
    other = with_fingerprints(changed, same, values=(9.0 if fingerprint == "loss" else 2.5, 8.0))
    compared = compare_results(one, other, settings_of().compare, ("strict-1", "strict-2"))
    found = diagnose_repeat(compared, NOTHING_KNOWN, one_cpu_thread=True)
    assert found is not None
    assert found.kind == fingerprint
    assert "nondeterministic operator" not in found.cause


def test_a_generator_without_a_seed_is_named_with_its_line() -> None:
    one, other = (with_fingerprints({"batch": f"a:{text}"}, values=(float(text),)) for text in "12")
    override = Override(
        rank=0, pid=7, step=1, kind=OverrideKind.ENTROPY, name="numpy.random.default_rng",
        before="", after="none given", file="train.py", line=28, closed=False, restored=False,
    )  # fmt: skip
    compared = compare_results(one, other, settings_of().compare, ("strict-1", "strict-2"))
    found = diagnose_repeat(compared, KnownLines(overrides=(override,)), one_cpu_thread=True)
    assert found is not None
    assert [str(suspect.place) for suspect in found.suspects] == ["train.py:28"]
    assert found.remedy.startswith("Give train.py:28 a constant seed.")


def _with_overrides(one: RunEvidence, other: RunEvidence, *overrides: Override) -> Diagnosis:
    compared = compare_results(one, other, settings_of().compare, ("strict-1", "strict-2"))
    found = diagnose_repeat(compared, KnownLines(overrides=overrides), one_cpu_thread=False)
    assert found is not None
    return found


FINGERPRINTS = ("structure", "initial", "random", "batch", "gradients", "parameters", "optimizer")
OF_ARITHMETIC = ("gradients", "parameters", "optimizer")


@each_row("fingerprint", FINGERPRINTS)
def test_a_setting_that_was_turned_back_explains_arithmetic_before_a_seed_does(
    fingerprint: str,
) -> None:
    one, other = (
        with_fingerprints({fingerprint: f"a:{text}", "parameters": f"a:{text}"}, values=(2.5,))
        for text in "12"
    )
    found = _with_overrides(one, other, seeded(), turned("cudnn_benchmark"))
    kinds = [suspect.kind for suspect in found.suspects]
    assert kinds == (["setting", "unseeded"] if fingerprint in OF_ARITHMETIC else ["unseeded"])


def test_a_benchmarking_cudnn_is_the_first_suspect_with_its_line() -> None:
    one, other = evidence_of(values=(2.5, 2.25)), evidence_of(values=(2.5, 9.0))
    found = _with_overrides(one, other, turned("cudnn_benchmark"))
    assert cause_words(found) == "train.py:12 changed cudnn_benchmark from off to on (step 1)"
    assert (found.kind, found.first_step) == (EventKind.LOSS, 2)
    assert found.remedy.startswith(
        "Leave cudnn_benchmark off at train.py:12: cuDNN then picks the algorithm that it "
        "measured as fastest, again in each run. If that is not it: "
    )


def test_a_setting_that_was_turned_back_later_explains_nothing_before_it() -> None:
    one, other = evidence_of(values=(2.5, 2.25, 2.0)), evidence_of(values=(2.5, 9.0, 9.0))
    assert _with_overrides(one, other, turned("cudnn_benchmark", step=3)).suspects == ()


def test_a_setting_by_any_name_is_told_with_both_words() -> None:
    one, other = evidence_of(values=(2.5,)), evidence_of(values=(9.0,))
    found = _with_overrides(one, other, turned("nccl_algorithm", after=""))
    assert found.suspects[0].after == "unset"
    assert found.remedy.startswith("Leave nccl_algorithm off at train.py:12. If that is not it: ")


@each_row("kind", [kind for kind in EventKind if kind is not EventKind.ENVIRONMENT])
def test_each_class_has_words_for_drift_that_blame_no_chance(kind: EventKind) -> None:
    words = f"{DRIFT[kind].sentence} {DRIFT[kind].remedy}"
    assert "nondeterministic" not in words
    assert "changes to" in DRIFT[kind].remedy


LR = "state/optimizer/0/group/0/lr"


def test_a_drift_names_the_settings_of_the_optimizer_that_changed() -> None:
    before, after = (
        evidence_of().model_copy(
            update={
                "checkpoint": manifest_of(**{LR: rate.encode()}).model_copy(
                    update={"optimizer_settings": {LR: rate}}
                )
            }
        )
        for rate in ("0.1", "0.2")
    )
    compared = compare_results(before, after, settings_of().compare, ("baseline", "strict-1"))
    found = diagnose_drift(compared)
    assert found is not None
    change = OptimizerSettingChange(
        optimizer=0, name="lr", before="0.1", after="0.2", revert_to="0.1", alone=True
    )
    assert found.optimizer_settings == (change,)
    assert cause_words(found) == "lr 0.1 → 0.2"


def test_the_same_tensors_under_each_others_names_are_an_order_of_a_set() -> None:
    one, other = (
        evidence_of().model_copy(update={"checkpoint": manifest_of(first=left, second=right)})
        for left, right in ((b"abcd", b"efgh"), (b"efgh", b"abcd"))
    )
    found = _diagnose(other, one)
    assert (found.kind, found.cause_class) == ("state", CauseClass.STRUCTURE)
    assert "holds the same tensors in a different order, such as that of a set" in found.cause
    assert _diagnose(evidence_of(weights=b"WEIGHTS")).cause_class is CauseClass.CHECKPOINT


def _threaded(kind: SourceKind, call: str, line: int, step: int) -> Source:
    return Source(
        rank=0, step=step, kind=kind, call=call, before="", after="", file="train.py",
        line=line, stack=(), worker=False, thread=True,
    )  # fmt: skip


def _explained_by(*sources: Source) -> Diagnosis:
    compared = compare_results(
        evidence_of(), evidence_of(values=(2.5, 9.0, 9.0)), settings_of().compare, ("one", "two")
    )
    found = diagnose_repeat(compared, KnownLines(sources=sources), one_cpu_thread=True)
    assert found is not None
    return found


SHUFFLED = _threaded(SourceKind.DRAW, "random.shuffle", 18, 1)


def test_a_draw_in_a_thread_is_a_possibility_where_no_generator_differs() -> None:
    found = _explained_by(SHUFFLED)
    assert found.likely == ()
    assert (
        "Possibly: train.py:18 draws from random.shuffle() in a thread: what each thread draws, or "
        "the order in which it arrives, may differ"
    ) in cause_words(found)
    assert found.remedy.startswith(
        "Either give the thread at train.py:18 a seeded generator of its own, or take what threads "
        "hand over in a fixed order. If that is not it: "
    )


def test_a_queue_whose_order_was_told_a_little_later_is_possible_beside_the_draw() -> None:
    taken = _threaded(SourceKind.COMPLETION, "queue.Queue.get", 41, 4)
    found = _explained_by(SHUFFLED, taken)
    assert found.likely == ()
    assert cause_words(found).endswith(
        "Possibly: train.py:41 takes results from queue.Queue.get() as they complete; or "
        "train.py:18 draws from random.shuffle() in a thread"
    )
    in_time = _explained_by(SHUFFLED, taken.model_copy(update={"step": 2}))
    assert [one.call for one in in_time.likely] == ["queue.Queue.get"]


def test_a_line_that_makes_a_set_is_named_where_an_order_differs() -> None:
    made = Source(
        rank=0, step=1, kind=SourceKind.ADDRESS, call="set", before="", after="", file="train.py",
        line=7, stack=(), worker=False, thread=False,
    )  # fmt: skip
    known = KnownLines(sources=(made,))
    one, other = (
        evidence_of().model_copy(update={"checkpoint": manifest_of(first=left, second=right)})
        for left, right in ((b"abcd", b"efgh"), (b"efgh", b"abcd"))
    )
    order, value = (
        compare_results(before, after, settings_of().compare, ("strict-1", "strict-2"))
        for before, after in ((one, other), (evidence_of(), evidence_of(values=(9.0, 9.0, 9.0))))
    )
    found = diagnose_repeat(order, known, one_cpu_thread=True)
    assert found is not None
    assert cause_words(found).endswith(
        "Possibly: train.py:7 makes a set, whose order may differ in each run, first used in the "
        "final state"
    )
    assert found.remedy.startswith("Sort what the set at train.py:7 holds, or use a list.")
    other_fault = diagnose_repeat(value, known, one_cpu_thread=True)
    assert other_fault is not None
    assert not other_fault.suspects


@each_row("name", ["backward", "gradients", "parameters", "optimizer"])
def test_an_order_of_addresses_may_change_what_a_script_does_with_gradients(name: str) -> None:
    asked = Source(
        rank=0, step=1, kind=SourceKind.ADDRESS, call="id", before="", after="", file="train.py",
        line=16, stack=(), worker=False, thread=False,
    )  # fmt: skip
    one, other = (
        with_fingerprints({"parameters": "a:1", name: f"a:{side}"}, values=(2.5, side))
        for side in (1.0, 2.0)
    )
    compared = compare_results(one, other, settings_of().compare, ("strict-1", "strict-2"))
    found = diagnose_repeat(compared, KnownLines(sources=(asked,)), one_cpu_thread=True)
    assert found is not None
    assert [(suspect.place, suspect.possible) for suspect in found.suspects] == [
        ("train.py:16", True)
    ]
    assert found.remedy.startswith(
        "Sort by something that is equal in each run, and not by id() at train.py:16. If that is "
        "not it: "
    )


def test_a_thread_that_a_script_starts_is_to_be_waited_for_and_shares_no_generator() -> None:
    started = _threaded(SourceKind.THREAD, "threading.Thread", 22, 1)
    found = _explained_by(started)
    assert found.likely == ()
    assert found.remedy.startswith(
        "Let the training wait for the thread that train.py:22 starts, and give it generators of "
        "its own. If that is not it: "
    )
