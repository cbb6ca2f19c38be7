"""Compared commits without any process: runs of base and head, and their document."""

from __future__ import annotations

from pathlib import Path

from evidence_cases import COMMIT, LOSSES, evidence_of, evidence_set_of, settings_of

from gate.evidence.run_evidence import RunEvidence
from gate.pipelines.compare_commits import Compared, compared_document
from gate.training.runs import Commit, RunMode
from gate.verdict.request import GateRequest

BASE = "b" * 40


def request_of(**sections: object) -> GateRequest:
    """Return a request about base and head, under settings with these sections."""
    return GateRequest(
        top=Path("/nowhere"),
        project=".",
        config_name="repro-gate.yml",
        settings=settings_of(**{"cost": {"warmup_steps": 0, "min_steps": 2}, **sections}),
        settings_text=b"",
        settings_from="work tree",
        out=Path("/nowhere/out"),
        commit=COMMIT,
        base_commit=BASE,
    )


def run_of(commit: Commit, mode: RunMode, number: int, **changes: object) -> RunEvidence:
    """Return a run with the label that the plan gives it; `changes` go to `evidence_of`."""
    kind = {Commit.BASE: "base", Commit.HEAD: mode.value}[commit]
    kind += "-default" if (commit, mode) == (Commit.BASE, RunMode.DEFAULT) else ""
    run = evidence_of(f"{kind}-{number}", **changes)  # type: ignore[arg-type] # by name
    record = run.run.model_copy(update={"commit": commit, "mode": mode})
    return run.model_copy(update={"run": record})


def compared_of(
    base: dict[str, object] | None = None,
    head: dict[str, object] | None = None,
    *,
    rounds: int = 2,
    request: GateRequest | None = None,
    other: RunEvidence | None = None,
) -> Compared:
    """Compare two commits whose runs are as `base` and `head` say; `other` replaces one run."""
    runs = [
        run_of(commit, mode, number, **(changes or {}))
        for number in range(1, rounds + 1)
        for commit, changes in ((Commit.BASE, base), (Commit.HEAD, head))
        for mode in (RunMode.STRICT, RunMode.DEFAULT)
    ]
    if other is not None:
        runs = [other if run.run.label == other.run.label else run for run in runs]
    evidence = evidence_set_of(*runs)
    document = compared_document(
        request or request_of(), evidence, base_name="main", isolation="none"
    )
    return Compared(document=document, runs=evidence.runs)


MOVED = (LOSSES[0], LOSSES[1] * 1.001, LOSSES[2])
