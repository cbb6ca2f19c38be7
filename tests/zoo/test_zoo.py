"""The zoo itself: each fault is one line, its truth is of one language, and the gate sees none."""

from __future__ import annotations

import ast

import pytest
from planted import MARK, Form, Planted, in_form, planted_faults
from zoo import Score, told

from gate.diagnosis.diagnosis import CauseClass
from gate.verdict.verdict import Outcome

FAULTS = {planted.name: planted for planted in planted_faults()}
# one of each kind, for every run of the tests; `make test-zoo` diagnoses all
SAMPLE = ("drift_activation", "drift_clipping", "repeat_hand_batches", "repeat_urandom_seed")


def test_there_are_forty_and_half_of_them_are_drifts() -> None:
    drifts = [planted for planted in FAULTS.values() if planted.base is not None]
    assert len(FAULTS) >= 40
    assert abs(2 * len(drifts) - len(FAULTS)) <= 4


@pytest.mark.parametrize("planted", FAULTS.values(), ids=FAULTS)
def test_a_script_holds_the_fault_and_not_the_truth(planted: Planted) -> None:
    ast.parse(planted.script)
    assert MARK not in planted.script
    assert planted.summary not in planted.script
    assert {*planted.classes} <= {*CauseClass, "none"}
    assert planted.outcome in {*Outcome}
    line = planted.script.splitlines()[planted.line - 1]
    assert line.strip()
    if planted.base is not None:
        ast.parse(planted.base)
        pairs = zip(planted.script.splitlines(), planted.base.splitlines(), strict=True)
        assert [number for number, (a, b) in enumerate(pairs, 1) if a != b] == [planted.line]


def test_each_form_keeps_the_line_at_fault() -> None:
    for planted in FAULTS.values():
        for form in (Form.CHECKPOINT, Form.METRICS):
            formed = in_form(planted, form)
            if formed is None:
                continue
            ast.parse(formed.script)
            assert formed.script != planted.script
            pairs = zip(formed.script.splitlines(), planted.script.splitlines(), strict=False)
            moved = [number for number, (a, b) in enumerate(pairs, 1) if a != b]
            assert len(moved) == 1, planted.name
            assert moved[0] < planted.line


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_named(name: str, form: Form) -> None:
    planted = in_form(FAULTS[name], form)
    assert planted is not None
    found = told(planted)
    assert (found.score, found.reason) == (Score.RIGHT, ""), found.sentence
