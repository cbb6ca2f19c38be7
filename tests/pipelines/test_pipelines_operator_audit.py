from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import Project

from gate.errors import RunError
from gate.pipelines.gate import take_operator_audit
from gate.verdict.verdict import Outcome

USE = {
    "source": "alert",
    "operator": "put_",
    "device": "any",
    "direction": "forward",
    "file": "train.py",
    "line": 7,
    "spans": [[1, 3, 1]],
}
REFUSED = {"operator": "put_", "file": "train.py", "line": 7, "step": 2}


def test_an_operator_audit_is_one_more_run_that_is_not_judged(
    bench: Bench, project: Project
) -> None:
    bench.record()
    project.settings("operator_audit: true\n")
    project.play(counted={"uses": [USE]})
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert [run.label for run in verdict.runs][-1] == "audit-1"
    assert verdict.operator_audit is not None
    assert (verdict.operator_audit.complete, verdict.operator_audit.rows[0].operator) == (
        True,
        "put_",
    )


def test_an_operator_audit_that_fails_leaves_the_verdict_as_it_is(
    bench: Bench, project: Project
) -> None:
    bench.record()
    project.settings("operator_audit: true\n")
    project.play(audit={"exit": 1})
    verdict = bench.gate().verdict
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    (told,) = [one.message for one in verdict.findings if one.code == "operator-audit-failed"]
    assert "python3 train.py exited with 1" in told


def test_a_run_that_strict_mode_ended_says_which_operator(bench: Bench, project: Project) -> None:
    project.play(exit=1, counted={"refused": [REFUSED]})
    with pytest.raises(RunError, match=r"strict mode refused put_ at train\.py:7, step 2") as fault:
        bench.gate()
    assert "allow_operators: ['put_']" in fault.value.hint


def test_an_operator_audit_by_itself_is_one_run(bench: Bench, project: Project) -> None:
    project.play(counted={"uses": [USE], "modules": ["flash_attn"]})
    found = take_operator_audit(bench.request(), bench.adapters())
    assert [row.operator for row in found.rows] == ["put_", "flash_attn"]
    assert found.complete


def test_an_allowed_operator_passes_at_a_weaker_level(bench: Bench, project: Project) -> None:
    project.settings("determinism: {allow_operators: [put_]}\n")
    project.play(counted={"uses": [USE]})
    bench.record()
    verdict = bench.gate().verdict
    assert verdict.passes
    (told,) = [one.message for one in verdict.findings if one.code == "weaker-level"]
    assert "admits put_ (used)" in told
