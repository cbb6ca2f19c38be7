"""What one comparison comes to by the rules of the settings: equal, inside, outside."""

from __future__ import annotations

from gate.comparison.differences import Comparison
from gate.settings.gate_settings import GateSettings
from gate.verdict.verdict import Answer


def agree(comparison: Comparison, settings: GateSettings) -> bool:
    """Whether two results are one by the rules of the settings."""
    return comparison.numerically_equal or (comparison.comparable and inside(comparison, settings))


def inside(comparison: Comparison, settings: GateSettings) -> bool:
    """Metrics within tolerance, and weights and buffers within a limit of their own.

    Without such a limit a tolerance of metrics lets tensors differ, since weights cannot stay equal
    where the loss may move; without any tolerance the gate is exact. What has another type or
    shape is another model, however near its numbers are.
    """
    compare = settings.compare
    tensors_may_differ = bool(compare.tolerances)
    if compare.tensors is not None:
        tensors_may_differ = compare.tensors.relative > 0
    tensors_differ = bool(comparison.tensors or comparison.step_faults)
    return (
        comparison.metrics_within
        and not comparison.retyped
        and comparison.first_tensor_beyond is None
        and (tensors_may_differ or not tensors_differ)
    )


def repeat_answer(comparison: Comparison | None) -> Answer:
    """What two runs of one commit come to."""
    if comparison is None:
        return Answer.NOT_COMPARED
    # no tolerance: two runs of one commit
    return Answer.EQUAL if comparison.numerically_equal else Answer.OUTSIDE


def answer_of(comparison: Comparison | None, settings: GateSettings) -> Answer:
    """What one comparison comes to by the rules of the settings."""
    if comparison is None:
        return Answer.NOT_COMPARED
    if comparison.numerically_equal:
        return Answer.EQUAL
    if not comparison.comparable:
        return Answer.NOT_COMPARABLE
    if not inside(comparison, settings):
        return Answer.OUTSIDE
    return Answer.REFUSED if settings.policy.require_bitwise else Answer.INSIDE
