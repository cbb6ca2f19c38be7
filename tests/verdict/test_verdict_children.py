from __future__ import annotations

import pytest
from evidence_cases import evidence_of

from gate.evidence.observations import UnattestedChild, WeakerChild
from gate.verdict.findings import uninstrumented_subprocesses, weaker_children
from gate.verdict.verdict import Finding, Severity


def child(line: int = 5, file: str = "train.py") -> UnattestedChild:
    return UnattestedChild(
        rank=0,
        pid=1,
        command="python -I inner.py",
        reason="runs in isolated mode and ignores PYTHONPATH",
        file=file,
        line=line,
    )


def found(*children: UnattestedChild) -> tuple[Finding, ...]:
    return uninstrumented_subprocesses(evidence_of().model_copy(update={"children": children}))


def test_a_run_without_such_children_has_no_finding() -> None:
    assert found() == ()


def test_a_child_without_the_harness_is_told_once_for_each_place() -> None:
    (finding,) = found(child(), child())
    assert (finding.code, finding.severity) == ("uninstrumented-subprocess", Severity.WARNING)
    assert finding.message == (
        "Python was started without the harness: train.py:5 started `python -I inner.py`, which "
        "runs in isolated mode and ignores PYTHONPATH"
    )
    assert "fine for a helper that does not train" in finding.remedy


def test_the_first_children_are_shown_and_the_rest_counted() -> None:
    (finding,) = found(*map(child, range(1, 6)))
    assert finding.message.endswith("; and 2 more")


def test_a_child_that_no_line_was_seen_to_start_is_told_too() -> None:
    (finding,) = found(child(file="", line=0))
    assert "a process of the training started `python -I inner.py`" in finding.message


@pytest.mark.parametrize(
    ("variable", "effect"),
    [
        ("PYTHONHASHSEED", "set and hash order differ from run to run there"),
        ("OMP_NUM_THREADS", "sums may be split differently among threads there"),
        ("NCCL_ALGO", "what it makes deterministic is not deterministic there"),
    ],
)
def test_a_child_without_a_variable_is_told_with_what_follows(variable: str, effect: str) -> None:
    lost = WeakerChild(
        rank=0, pid=1, command="python a.py", variables=(variable,), file="train.py", line=17
    )
    run = evidence_of().model_copy(update={"weaker_children": (lost, lost)})
    (finding,) = weaker_children(run)
    assert finding.message == (
        f"train.py:17 started Python without the {variable} that the gate set: {effect}"
    )
