"""The noise floor with a played training, whose weights and gradients are known."""

from __future__ import annotations

from gate_bench import Bench
from played_training import Project

from gate.comparison.measurements import NoiseDocument
from gate.pipelines.measurement import measure_noise
from gate.settings.load import parse_settings


def _noise(priced: Bench, runs: int | None = 3) -> NoiseDocument:
    return measure_noise(priced.request(), priced.adapters(), runs=runs)


def test_equal_reruns_have_no_noise_and_no_tolerance(priced: Bench) -> None:
    noise = _noise(priced)
    assert (noise.distinct_results, noise.first_diverging_step) == (1, None)
    assert noise.undetected_share is not None
    assert 0.77 < noise.undetected_share < 0.78
    assert noise.weights.largest_relative_l2 == 0
    assert noise.weights.elements == 8
    assert "no metric moved" in noise.snippet


def test_reruns_that_differ_are_counted_and_measured(priced: Bench, project: Project) -> None:
    project.play(default={"random": True})
    noise = _noise(priced)
    assert (noise.distinct_results, noise.first_diverging_step) == (3, 3)
    assert noise.undetected_share is None
    assert noise.weights.elements_that_differ > 0
    assert noise.metrics[0].gap_step == 3
    assert noise.metrics[0].tolerance > noise.metrics[0].largest_gap


def test_only_the_first_runs_values_stay_on_the_disk(priced: Bench) -> None:
    _noise(priced, runs=2)
    kept = {path.parent.name for path in (priced.out / "evidence").glob("*/*.safetensors")}
    assert kept == {"default-1"}


def test_the_snippet_is_a_settings_section(priced: Bench, project: Project) -> None:
    project.play(default={"random": True})
    noise = _noise(priced)
    text = f"version: 1\ntrain: {{command: python a.py, max_steps: 3}}\n{noise.snippet}"
    (tolerance,) = parse_settings(text.encode(), "snippet").compare.tolerances
    assert tolerance.absolute == noise.metrics[0].tolerance
    assert tolerance.metric == noise.metrics[0].name


def test_the_order_of_sums_is_tried_on_the_trainings_gradients(priced: Bench) -> None:
    noise = _noise(priced, runs=2)
    assert noise.reduction is not None
    assert noise.reduction.worst_tensor == "gradient/000000"
    assert noise.reduction.most_distinct_sums > 1


def test_without_gradients_the_report_says_so(priced: Bench, project: Project) -> None:
    project.play(gradients=False)
    noise = _noise(priced, runs=2)
    assert noise.reduction is None
    assert noise.notes == ("the harness saved no gradients",)


def test_the_number_of_runs_comes_from_the_settings(priced: Bench, project: Project) -> None:
    project.settings("noise: {runs: 2}")
    assert _noise(priced, runs=None).runs == 2
