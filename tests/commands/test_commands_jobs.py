"""`repro-gate run` and `repro-gate judge`."""

from __future__ import annotations

import json

from command_line import Run
from played_training import Project


def test_run_then_judge_come_to_a_verdict(project: Project, run: Run) -> None:
    ran = run("run", "-q", "--out", "ran")
    assert (ran.code, ran.out) == (0, f"evidence: {project.path / 'ran' / 'evidence'}\n")
    project.play(exit=1)
    judged = run("judge", "ran/evidence", "--out", "judged", "--commit", "HEAD^", "--json")
    assert (judged.code, judged.err) == (1, "")
    verdict = json.loads(judged.out)
    assert verdict["outcome"] == "no-baseline"
    assert "unverified-evidence" in [finding["code"] for finding in verdict["findings"]]
    other = run("judge", "ran/evidence", "--out", "judged")
    assert other.code == 3
    assert "error: the evidence is of commit" in other.err
    assert f"give --commit {verdict['commit'][:12]}; or let " in other.err


def test_a_training_that_fails_leaves_no_evidence_to_judge(project: Project, run: Run) -> None:
    project.play(exit=1)
    assert run("run", "-q", "--out", "ran").code == 3
    judged = run("judge", "ran/evidence", "--out", "judged")
    assert judged.code == 3
    assert "there is no evidence in ran/evidence" in judged.err


def test_evidence_that_is_not_there_empties_no_output_folder(project: Project, run: Run) -> None:
    assert run("gate", "-q", "--out", "out").code == 1
    kept = (project.path / "out" / "package.tar").read_bytes()
    judged = run("judge", "nope", "--out", "out")
    assert (judged.code, "error: there is no evidence in nope" in judged.err) == (3, True)
    assert (project.path / "out" / "package.tar").read_bytes() == kept
