"""NaN and infinity: what is said of them, whose they are, and the lines that allow a constant."""

from __future__ import annotations

import math
from dataclasses import replace

import yaml
from each_row import each_row
from report_outcomes import (
    OLD_PARTS,
    PLAIN,
    REQUEST,
    base_runs,
    both,
    entry,
    judged,
    not_finite_from,
    ran,
    settings,
)

from gate.evidence.run_evidence import NotFiniteTensor, RunEvidence
from gate.report.brief import brief_of
from gate.report.wording import headline
from gate.settings.gate_settings import NotFiniteAllowed
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Outcome, Verdict

BOUND = "state/model/0/noise.upper_bound"
SECOND = 'state/model/0/a "quoted" mask'


def pair(step: int = 1, **fields: object) -> tuple[RunEvidence, RunEvidence]:
    one, other = both(**fields)
    return not_finite_from(step, one), not_finite_from(step, other)


BOUNDS = (
    NotFiniteTensor(name=BOUND, nan=0, infinite=1),
    NotFiniteTensor(name=SECOND, nan=0, infinite=4),
)


def holding(*leaves: NotFiniteTensor, request: GateRequest = REQUEST) -> Verdict:
    one, other = both()
    runs = tuple(run.model_copy(update={"not_finite": leaves}) for run in (one, other))
    return judged((runs[0], runs[1]), against=entry(ran(), under=request.settings), request=request)


def test_a_number_at_one_step_is_not_said_to_last() -> None:
    one, other = both()
    runs = [not_finite_from(24, run, value=math.inf) for run in (one, other)]
    verdict = judged((runs[0], runs[1]), against=PLAIN)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.ERROR, 3)
    assert headline(verdict) == "failed: the loss is infinite at step 24 (baseline: 0.4718)"


@each_row(
    ("verdict", "answer"),
    [
        (judged(pair()), "Not known. There is no baseline and no run of the base commit"),
        (judged(pair(), against=entry(ran(parts=OLD_PARTS))), "Not known. More than this pull"),
        (judged(pair(), against=PLAIN, same_code=True), "Not known. More than this pull"),
        (
            judged(pair(), against=entry(ran(parts=OLD_PARTS)), base=base_runs()),
            "Yes. The base commit, run on this machine, is finite.",
        ),
        (
            judged(
                pair(),
                against=entry(ran(parts=OLD_PARTS)),
                base=tuple(not_finite_from(1, run) for run in base_runs()),
            ),
            "No. The base commit's result here is not finite either.",
        ),
    ],
)
def test_it_is_this_change_only_where_the_other_side_is_finite(
    verdict: Verdict, answer: str
) -> None:
    assert brief_of(verdict).this_change.startswith(answer)
    assert "doctor" not in " ".join(step.command for step in verdict.next_steps)


def test_a_tensor_comes_with_the_lines_that_allow_it() -> None:
    step = holding(*BOUNDS).next_steps[-1]
    assert step.text == (
        "If the tensor is intended to hold it, such as a mask or a bound, add to repro-gate.yml of "
        "the base branch:"
    )
    rules = yaml.safe_load(step.command)["compare"]["allow_not_finite"]
    allowed = tuple(NotFiniteAllowed.model_validate(rule) for rule in rules)
    assert [rule.pattern for rule in allowed] == [BOUND, SECOND]
    pasted = replace(REQUEST, settings=settings(compare={"allow_not_finite": allowed}))
    assert holding(*BOUNDS, request=pasted).passes


def test_a_tensor_with_nan_goes_before_one_with_infinity() -> None:
    verdict = holding(
        NotFiniteTensor(name=BOUND, nan=0, infinite=1),
        NotFiniteTensor(name=SECOND, nan=2, infinite=0),
    )
    assert headline(verdict) == f"failed: {SECOND} holds 2 NaN"


def test_a_constant_infinity_is_a_notice() -> None:
    runs = tuple(run.model_copy(update={"constant_infinities": (BOUND,)}) for run in both())
    verdict = judged((runs[0], runs[1]), against=PLAIN)
    (found,) = (one for one in verdict.findings if one.code == "constant-infinity")
    assert verdict.passes
    assert found.message == (
        f"{BOUND}: infinite before the first forward pass, and unchanged at the end"
    )
