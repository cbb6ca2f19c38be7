from __future__ import annotations

from evidence_cases import PARTS, evidence_of, settings_of

from gate.comparison.compare import compare_results
from gate.diagnosis.first_divergence import diagnose
from gate.records.evidence import RunEvidence
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
