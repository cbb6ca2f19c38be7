"""The zoo itself: each fault is one line, its truth is of one language, and the gate sees none."""

from __future__ import annotations

import ast

import pytest
from planted import MARK, Planted, planted_faults
from zoo import Score, told

from gate.records.determinism.causes import CauseClass
from gate.records.verdict import Outcome

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


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_planted_fault_is_named(name: str) -> None:
    found = told(FAULTS[name])
    assert (found.score, found.reason) == (Score.RIGHT, ""), found.sentence
