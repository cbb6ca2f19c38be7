"""Whether results are equal bit for bit, without saying where they differ."""

from __future__ import annotations

from gate.comparison.compare import compare_steps
from gate.records.observed.evidence import RunEvidence


def equal_results(one: RunEvidence, other: RunEvidence) -> bool:
    """Whether two runs agree in every number, every tensor, and every step that both observed.

    Never true for want of something to compare: both must hold numbers and tensors.
    """
    if not one.metrics or not one.checkpoint.tensors:
        return False
    faults, _ = compare_steps(one.steps, other.steps)
    same_state = (one.checkpoint.algorithm, one.checkpoint.root) == (
        other.checkpoint.algorithm,
        other.checkpoint.root,
    )
    return not faults and same_state and one.metrics == other.metrics


def distinct_results(runs: tuple[RunEvidence, ...]) -> int:
    """How many different results there are: 1 only when every run equals every other one.

    Two runs that both equal a third may still differ where only they observed a step, so a run
    joins a result only when it equals all of its members.
    """
    results: list[list[RunEvidence]] = []
    for run in runs:
        # all and not any: equality at observed steps is not transitive
        fitting = (members for members in results if all(equal_results(run, m) for m in members))
        members = next(fitting, None)
        if members is None:
            results.append([run])
        else:
            members.append(run)
    return len(results)
