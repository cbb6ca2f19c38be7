"""A class of cause is named where it is proved, and nowhere else."""

from __future__ import annotations

import pytest

from gate.diagnosis.classes import proved_class
from gate.records.determinism.causes import CauseClass
from gate.records.observed.traced import Claim, TraceFinding

PROVED = {
    (Claim.NONDETERMINISTIC_OPERATOR, "aten::index_put_"): CauseClass.OPERATOR,
    (Claim.NONDETERMINISTIC_OPERATOR, "mylib::scatter"): CauseClass.KERNEL,
    (Claim.UNINITIALISED, "aten::empty"): CauseClass.UNINITIALISED_MEMORY,
    (Claim.RANDOM_STATE, "aten::bernoulli_"): CauseClass.RANDOM_STATE,
}


@pytest.mark.parametrize(("claim", "operator"), PROVED, ids=str)
def test_a_trace_proves_a_class_that_fingerprints_leave_open(claim: Claim, operator: str) -> None:
    found = TraceFinding(claim=claim, sentence="a call", operator=operator)
    assert proved_class(found) is PROVED[claim, operator]


@pytest.mark.parametrize(
    "claim", [Claim.CODE_PATH, Claim.OUTSIDE_VALUE, Claim.BELOW_DISPATCHER, Claim.NOT_FOUND]
)
def test_where_a_value_came_in_is_no_class(claim: Claim) -> None:
    assert proved_class(TraceFinding(claim=claim, sentence="a call")) is None
    assert proved_class(None) is None
