"""The self-test: before judging, plant faults and demand that each is caught.

A comparator that has gone blind (a renamed field, an empty list, a bad merge) would call
everything equal. So copies of this very run's evidence are damaged, each in one of the ways that
`run_self_test` lists, and each damage must show.
"""

from __future__ import annotations

import math

from gate.comparison.check_records import SelfTestProbe
from gate.comparison.compare import compare_results
from gate.evidence.point import Point
from gate.evidence.points import Points
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import ComparisonSettings
from gate.training.environment import Environment

RENAMED = "(self_test)"


def run_self_test(evidence: RunEvidence, settings: ComparisonSettings) -> tuple[SelfTestProbe, ...]:
    """Damage copies of `evidence` and report what the comparators saw.

    The untouched copy is a probe as well: a comparator that always finds a difference is broken
    in the other direction. Where there is nothing to damage, the probe counts as missed.
    """
    probes = {
        "untouched copy is equal": _differs(evidence, evidence, settings) is False,
        "one flipped bit in a metric": _differs(evidence, _flip_metric(evidence), settings),
        "one flipped bit in a tensor": _differs(evidence, _flip_tensor(evidence), settings),
        "one missing step": _differs(evidence, _drop_step(evidence), settings),
        "one renamed tensor": _differs(evidence, _rename_tensor(evidence), settings),
        "one altered environment part": not compare_results(
            evidence, _move_environment(evidence), settings, ("original", "copy")
        ).same_environment,
    }
    return tuple(SelfTestProbe(name=name, caught=caught) for name, caught in probes.items())


def _differs(original: RunEvidence, copy: RunEvidence, settings: ComparisonSettings) -> bool:
    comparison = compare_results(original, copy, settings, ("original", "copy"))
    return not comparison.numerically_equal


def _flip_metric(evidence: RunEvidence) -> RunEvidence:
    """Move the last point of the first metric by one unit in the last place of a float64."""
    ordered = sorted(evidence.metrics, key=lambda series: not series.points)
    if not ordered or not ordered[0].points:
        return evidence
    first, *others = ordered
    points, last = first.points[:-1], first.points[-1]
    # towards zero (from zero upwards), so that the largest float does not step to infinity
    towards = -math.inf if last.value > 0 else math.inf
    moved = Point.of(last.step, math.nextafter(last.value, towards))
    changed = first.model_copy(update={"points": Points.of((*points, moved))})
    return evidence.model_copy(update={"metrics": (changed, *others)})


def _flip_tensor(evidence: RunEvidence) -> RunEvidence:
    if not evidence.checkpoint.tensors:
        return evidence
    *tensors, last = evidence.checkpoint.tensors
    # the lowest bit of the digest: any comparison of a prefix or a part of it would miss this
    flipped = f"{int(last.sha256, 16) ^ 1:064x}"
    return _with_tensors(evidence, (*tensors, last.model_copy(update={"sha256": flipped})))


def _drop_step(evidence: RunEvidence) -> RunEvidence:
    return evidence.model_copy(update={"steps": evidence.steps[:-1]})


def _rename_tensor(evidence: RunEvidence) -> RunEvidence:
    if not evidence.checkpoint.tensors:
        return evidence
    *tensors, last = evidence.checkpoint.tensors
    renamed = last.model_copy(update={"name": last.name + RENAMED})
    return _with_tensors(evidence, (*tensors, renamed))


def _move_environment(evidence: RunEvidence) -> RunEvidence:
    parts = {**evidence.environment.parts, "python": RENAMED}
    return evidence.model_copy(update={"environment": Environment(parts=parts)})


def _with_tensors(evidence: RunEvidence, tensors: tuple[object, ...]) -> RunEvidence:
    manifest = evidence.checkpoint.model_copy(update={"tensors": tensors})
    return evidence.model_copy(update={"checkpoint": manifest})
