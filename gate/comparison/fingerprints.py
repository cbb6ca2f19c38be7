"""Fingerprints against each other: where each first differs."""

from __future__ import annotations

from gate.records.comparison import FingerprintDifference
from gate.records.observed.evidence import StepDigest


def compare_fingerprints(
    expected: tuple[StepDigest, ...], observed: tuple[StepDigest, ...]
) -> tuple[tuple[FingerprintDifference, ...], tuple[str, ...]]:
    """The fingerprints that differ, and the names of all that were compared, both sorted by name.

    Only steps at which both sides observed a fingerprint count; one that only one side has at all
    is passed over: a baseline keeps parameters alone.
    """
    left, right = _by_fingerprint(expected), _by_fingerprint(observed)
    # sampling intervals are each run's own, so two runs share only some of their observed steps
    common = {name: left[name].keys() & right[name].keys() for name in left.keys() & right.keys()}
    names = sorted(name for name, steps in common.items() if steps)
    differences = (_difference(name, left[name], right[name]) for name in names)
    return tuple(difference for difference in differences if difference is not None), tuple(names)


def _by_fingerprint(digests: tuple[StepDigest, ...]) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for digest in digests:
        for fingerprint, text in digest.with_parameters.items():
            found.setdefault(fingerprint, {})[digest.step] = text
    return found


def _difference(
    fingerprint: str, expected: dict[int, str], observed: dict[int, str]
) -> FingerprintDifference | None:
    equal_until = None
    for step in sorted(expected.keys() & observed.keys()):
        if expected[step] != observed[step]:
            return FingerprintDifference(
                fingerprint=fingerprint, first_step=step, equal_until=equal_until
            )
        equal_until = step
    return None
