"""The class of a cause once the outcome is known."""

from __future__ import annotations

from gate.diagnosis.classes import BY_CLAIM, DATA
from gate.diagnosis.determinism_causes import CauseClass
from gate.diagnosis.diagnosis import Diagnosis
from gate.evidence.trace import Claim, TraceFinding
from gate.verdict.verdict import Outcome


def concluded_class(diagnosis: Diagnosis, outcome: Outcome) -> CauseClass | None:
    """The class once it is known what was compared, and what two traced runs showed.

    Traces of one commit prove a class where fingerprints left it open. They tell other data from
    another order: that takes tensors that other calls made, and no other real numbers. That the
    commit's code is the cause is said only where nothing else moved.
    """
    recorded = diagnosis.cause_class
    trace = diagnosis.trace
    if recorded is None and diagnosis.kind in DATA and trace is not None:
        if trace.claim is Claim.OTHER_TENSORS:
            return CauseClass.DATA_ORDER
        if trace.real_numbers and outcome is not Outcome.NONDETERMINISTIC:
            return CauseClass.DATA
    # known from the digests, whatever the runs show
    if outcome is Outcome.DATA_DRIFT:
        return CauseClass.DATA
    if outcome is Outcome.NONDETERMINISTIC:
        return recorded or _proved(trace)
    if recorded is CauseClass.CODE:
        changed = CauseClass.PRECISION if trace is not None and trace.precision else recorded
        return changed if outcome is Outcome.CODE_DRIFT else None
    return recorded


def _proved(found: TraceFinding | None) -> CauseClass | None:
    if found is None:
        return None
    if found.claim is Claim.NONDETERMINISTIC_OPERATOR:
        torchs = found.operator.startswith("aten::")
        return CauseClass.OPERATOR if torchs else CauseClass.KERNEL
    return BY_CLAIM.get(found.claim)
