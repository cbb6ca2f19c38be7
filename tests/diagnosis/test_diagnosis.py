from __future__ import annotations

import pytest
from evidence_cases import PARTS, evidence_of, settings_of

from gate.comparison.compare import compare_results
from gate.diagnosis.first_divergence import diagnose
from gate.records.evidence import RunEvidence, StepDigest
from gate.records.verdict import Diagnosis


def _diagnose(observed: RunEvidence, expected: RunEvidence | None = None) -> Diagnosis:
    settings = settings_of().compare
    found = diagnose(
        compare_results(expected or evidence_of(), observed, settings, ("strict-1", "strict-2"))
    )
    assert found is not None
    return found


def test_equal_runs_need_no_diagnosis() -> None:
    same = compare_results(evidence_of(), evidence_of(), settings_of().compare, ("a", "b"))
    assert diagnose(same) is None


def test_a_moved_environment_comes_first() -> None:
    found = _diagnose(evidence_of(values=(9.0, 9.0, 9.0), parts={**PARTS, "threads": "2"}))
    assert (found.stream, found.subject) == ("environment", "threads")
    assert "threads 1 became 2" in found.cause


def test_another_number_of_steps_comes_next() -> None:
    found = _diagnose(evidence_of(values=(2.5, 2.25)))
    assert (found.stream, found.subject) == ("steps", "3 optimizer steps expected, 2 found")


def test_a_first_loss_that_differs_points_at_a_seed() -> None:
    found = _diagnose(evidence_of(values=(9.0, 2.25, 2.125)))
    assert (found.first_step, found.stream, found.subject) == (1, "loss", "guest.loss")
    assert "a random source that the seeds do not reach" in found.cause


def test_a_later_loss_after_equal_weights_points_at_data_or_forward_pass() -> None:
    found = _diagnose(evidence_of(values=(2.5, 9.0, 9.5)))
    assert found.first_step == 2
    assert found.cause.startswith("the weights were equal up to step 1, then the loss differs")


def test_parameters_after_an_equal_loss_point_at_the_backward_pass() -> None:
    other = evidence_of(values=(2.5, 9.0, 9.5)).model_copy(
        update={"metrics": evidence_of().metrics}
    )
    found = _diagnose(other)
    assert (found.first_step, found.stream) == (2, "parameters")


def test_a_metric_of_the_script_alone_points_at_its_computation() -> None:
    (loss,) = evidence_of().metrics
    speed = loss.model_copy(update={"name": "file.speed"})
    (faster,) = evidence_of(values=(2.5, 3.0, 3.5)).metrics
    one = evidence_of().model_copy(update={"metrics": (loss, speed)})
    two = evidence_of().model_copy(
        update={"metrics": (loss, faster.model_copy(update={"name": "file.speed"}))}
    )
    found = _diagnose(two, one)
    assert (found.first_step, found.stream, found.subject) == (2, "metric", "file.speed")


def test_a_difference_in_the_end_state_alone_is_told() -> None:
    found = _diagnose(evidence_of(weights=b"other"))
    assert (found.first_step, found.stream, found.subject) == (None, "state", "weight")


def test_a_missing_series_alone_is_told() -> None:
    (loss,) = evidence_of().metrics
    extra = loss.model_copy(update={"name": "file.extra"})
    found = _diagnose(evidence_of().model_copy(update={"metrics": (loss, extra)}))
    assert found.subject == "file.extra"


def _with_streams(*steps: dict[str, str], values: tuple[float, ...] = (2.5, 2.25)) -> RunEvidence:
    """A run whose step digests are given; a step without `parameters` was not observed."""
    digests = tuple(
        StepDigest(
            step=step,
            parameters=streams.get("parameters", ""),
            streams={name: text for name, text in streams.items() if name != "parameters"},
        )
        for step, streams in enumerate(steps, start=1)
    )
    return evidence_of(values=values).model_copy(update={"steps": digests})


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ("structure", "in another order"),
        ("initial", "its weights differ before the first step"),
        ("random.numpy", "one run drew from it, or seeded it"),
        ("batch", "the data loader gives another batch"),
        ("gradients", "the loss is equal and the gradients are not"),
        ("optimizer", "the optimizer's state is not"),
    ],
)
def test_each_stream_points_to_its_class_of_cause(stream: str, told: str) -> None:
    same = {"parameters": "a:1", "gradients": "a:1"}
    found = _diagnose(
        _with_streams({**same, stream: "a:2"}, {"parameters": "a:3"}),
        _with_streams({**same, stream: "a:1"}, {"parameters": "a:4"}),
    )
    assert (found.stream, found.first_step) == (stream.partition(".")[0], 1)
    assert found.subject == stream
    assert told in found.cause
    assert found.cause.endswith("After it: parameters at step 2")


def test_of_streams_that_differ_in_one_step_the_earlier_cause_counts() -> None:
    one, other = (
        dict.fromkeys(("optimizer", "parameters", "gradients", "batch"), f"a:{text}")
        for text in "12"
    )
    found = _diagnose(_with_streams(one, values=(2.5,)), _with_streams(other, values=(2.5,)))
    assert found.stream == "batch"
    assert found.cause.endswith(
        "After it: gradients at step 1, parameters at step 1, optimizer at step 1"
    )


def test_equal_gradients_and_other_parameters_point_at_the_update() -> None:
    found = _diagnose(
        _with_streams({"parameters": "a:1", "gradients": "a:1"}, values=(2.5,)),
        _with_streams({"parameters": "a:2", "gradients": "a:1"}, values=(2.5,)),
    )
    assert (found.stream, found.first_step) == ("parameters", 1)
    assert "another learning rate" in found.cause


def test_a_loss_after_equal_batches_points_at_arithmetic() -> None:
    steps = ({"batch": "a:1", "parameters": "a:1"}, {"batch": "a:2", "parameters": "a:2"})
    found = _diagnose(
        _with_streams(*steps, values=(2.5, 9.0)), _with_streams(*steps, values=(2.5, 2.25))
    )
    assert (found.stream, found.first_step) == ("loss", 2)
    assert found.cause.startswith("the weights were equal up to step 1, so was the batch")


def test_a_step_that_was_not_observed_is_told() -> None:
    left = _with_streams({"parameters": "a:1"}, {}, {"parameters": "a:2"}, values=(1.0, 2.0, 3.0))
    right = _with_streams({"parameters": "a:1"}, {}, {"parameters": "a:3"}, values=(1.0, 2.0, 4.0))
    found = _diagnose(left, right)
    assert (found.stream, found.first_step) == ("loss", 3)
    assert "last observed at step 1; a higher record.overhead_budget observes more" in found.cause


def test_a_stream_that_one_side_lacks_is_no_difference() -> None:
    bare = _with_streams({"parameters": "a:1"}, values=(2.5,))
    full = _with_streams({"parameters": "a:1", "batch": "a:1"}, values=(2.5,))
    comparison = compare_results(bare, full, settings_of().compare, ("baseline", "strict-1"))
    assert comparison.numerically_equal
    assert (comparison.streams, comparison.compared_streams) == ((), ("parameters",))
