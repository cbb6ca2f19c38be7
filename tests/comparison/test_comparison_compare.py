from __future__ import annotations

from evidence_cases import PARTS, evidence_of, manifest_of, settings_of
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.checks import run_self_test
from gate.comparison.compare import compare_results, compare_steps
from gate.comparison.differences import Comparison, StepFaultKind, TensorChange
from gate.evidence.run_evidence import CheckpointManifest, RunEvidence
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.training.environment import Environment

COMPARE = settings_of().compare
VALUES = st.lists(st.floats(allow_nan=False), min_size=1, max_size=5).map(tuple)


def _compare(expected: RunEvidence, observed: RunEvidence) -> Comparison:
    return compare_results(expected, observed, COMPARE, ("one", "two"))


def test_equal_runs_are_equal_and_say_how_much_was_compared() -> None:
    found = _compare(evidence_of(), evidence_of())
    assert found.numerically_equal
    assert (found.compared_points, found.compared_steps, found.compared_tensors) == (3, 3, 2)
    assert found.first_step is None


def test_the_first_differing_step_is_the_earliest_of_all_fingerprints() -> None:
    found = _compare(evidence_of(), evidence_of(values=(2.5, 9.0, 9.5)))
    assert found.first_step == 2
    (fault,) = found.step_faults
    assert (fault.kind, fault.message) == (
        StepFaultKind.PARAMETERS,
        "parameters differ from step 2 on (2 of 3 steps)",
    )


def test_a_changed_tensor_shows_both_sides() -> None:
    (delta,) = _compare(evidence_of(), evidence_of(weights=b"WEIGHTS")).tensors
    assert (delta.name, delta.kind) == ("weight", TensorChange.CHANGED)
    assert delta.expected.startswith("U8[7] ")
    assert delta.expected != delta.observed


def test_a_changed_value_shows_its_kind_and_two_digests() -> None:
    def manifest(content: bytes) -> CheckpointManifest:
        one = manifest_of(epoch=content)
        value = one.tensors[0].model_copy(update={"dtype": "int", "shape": ()})
        return one.model_copy(update={"tensors": (value,)})

    left, right = (
        evidence_of().model_copy(update={"checkpoint": manifest(content)})
        for content in (b"1", b"2")
    )
    (delta,) = _compare(left, right).tensors
    assert delta.expected.startswith("int value ")
    assert delta.expected != delta.observed


def test_missing_and_extra_tensors_are_told_apart() -> None:
    left = evidence_of().model_copy(update={"checkpoint": manifest_of(a=b"1")})
    right = evidence_of().model_copy(update={"checkpoint": manifest_of(b=b"1")})
    found = _compare(left, right)
    assert [delta.kind for delta in found.tensors] == [TensorChange.MISSING, TensorChange.EXTRA]
    assert not found.something_compared


def test_manifests_of_two_algorithms_are_never_equal() -> None:
    other = evidence_of().checkpoint.model_copy(update={"algorithm": "other/1"})
    found = _compare(evidence_of(), evidence_of().model_copy(update={"checkpoint": other}))
    assert found.tensors[0].name == "(digest algorithm)"


def test_steps_of_two_algorithms_are_not_compared() -> None:
    left, right = (StepDigest(step=1, parameters=f"{name}:00") for name in ("sha256", "poly64"))
    (fault,), compared = compare_steps(StepDigests.of([left]), StepDigests.of([right]))
    assert (fault.kind, compared) == (StepFaultKind.ALGORITHM, 0)
    assert fault.message == "per-step digests were made with two algorithms and cannot be compared"


def test_another_step_count_is_told() -> None:
    (fault,), _ = compare_steps(evidence_of().steps, evidence_of().steps[:-1])
    assert (fault.kind, fault.message) == (
        StepFaultKind.COUNT,
        "3 optimizer steps expected, 2 found",
    )


def test_environment_parts_are_compared_one_by_one() -> None:
    moved = {**PARTS, "cpu": "two", "driver": "9"}
    found = _compare(evidence_of(), evidence_of(parts=moved))
    assert [(c.part, c.expected, c.observed, c.comparable) for c in found.environment] == [
        ("cpu", "one", "two", True),
        ("driver", "none", "9", False),
    ]
    assert not found.comparable_environment


@given(VALUES, VALUES)
def test_swapping_the_sides_swaps_the_differences(
    left: tuple[float, ...], right: tuple[float, ...]
) -> None:
    there = _compare(evidence_of(values=left), evidence_of(values=right))
    back = _compare(evidence_of(values=right), evidence_of(values=left))
    assert there.numerically_equal == back.numerically_equal
    assert there.first_step == back.first_step
    assert [d.step for d in there.metrics] == [d.step for d in back.metrics]


@given(VALUES)
def test_a_result_equals_itself(values: tuple[float, ...]) -> None:
    run = evidence_of(values=values)
    assert _compare(run, run).numerically_equal


@given(VALUES)
def test_the_self_test_catches_every_planted_fault(values: tuple[float, ...]) -> None:
    assert all(probe.caught for probe in run_self_test(evidence_of(values=values), COMPARE))


def test_the_self_test_plants_six_probes() -> None:
    assert len(run_self_test(evidence_of(), COMPARE)) == 6


def test_packages_that_moved_are_named() -> None:
    before, after = (
        evidence_of(parts={**PARTS, "packages": digest * 64}).model_copy(
            update={
                "environment": Environment(
                    parts={**PARTS, "packages": digest * 64}, packages=packages
                )
            }
        )
        for digest, packages in (
            ("a", ("gone==1", "numpy==2.4.5", "same==1")),
            ("b", ("new==3", "numpy==2.4.6", "same==1")),
        )
    )
    (change,) = _compare(before, after).environment
    assert change.details == ("gone 1 removed", "new 3 added", "numpy 2.4.5 → 2.4.6")
