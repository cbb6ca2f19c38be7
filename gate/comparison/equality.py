"""Whether results are equal bit for bit, without saying where they differ."""

from __future__ import annotations

from gate.comparison.compare import compare_steps
from gate.evidence.run_evidence import RunEvidence


def equal_results(left: RunEvidence, right: RunEvidence) -> bool:
    """Whether two runs agree in every number, every tensor, and every step that both observed.

    Never true for want of something to compare: both must hold numbers and tensors.
    """
    if not left.metrics or not left.checkpoint.tensors:
        return False
    faults, _ = compare_steps(left.steps, right.steps)
    same_state = (left.checkpoint.algorithm, left.checkpoint.root) == (
        right.checkpoint.algorithm,
        right.checkpoint.root,
    )
    return not faults and same_state and left.metrics == right.metrics


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
