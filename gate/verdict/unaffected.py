"""The verdict about a commit that was not run, since nothing that its training gets has changed."""

from __future__ import annotations

from gate.baseline.entry import BaselineEntry, entry_name
from gate.evidence.run_evidence import EvidenceSet
from gate.isolation.modes import RunIsolation
from gate.settings.levels import ReachedLevel
from gate.verdict import findings
from gate.verdict.request import GateRequest
from gate.verdict.verdict import (
    NotRun,
    Outcome,
    Part,
    RecordedPass,
    Verdict,
    WhyNotRun,
)


def unaffected_verdict(
    request: GateRequest, entry: BaselineEntry, evidence: EvidenceSet, isolation: RunIsolation
) -> Verdict:
    """A pass that rests on the runs of an entry; `evidence` holds what was compared, and no run."""
    recorded = RecordedPass(
        entry=entry_name(entry),
        commit=entry.commit,
        recorded_at=entry.recorded_at,
        runs=entry.equal_runs,
        files_sha256=entry.files_sha256,
        run_url=entry.run_url,
        package_sha256=entry.package_sha256,
    )
    changed = tuple(dict.fromkeys(change.file for change in request.policy_changes))
    return Verdict(
        outcome=Outcome.REPRODUCED,
        passes=True,
        level=ReachedLevel.BITWISE,
        cause="no run here: files, settings, data and environment of the training are those of "
        f"{recorded.described}",
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        base_branch=request.base_branch,
        created_at=evidence.created_at,
        workdir=request.repository_path(request.settings.train.workdir),
        settings_from=request.settings_from,
        isolation=isolation,
        findings=findings.changed_by_pull_request(changed, ""),
        baseline_facts=findings.baseline_facts(
            entry,
            entry.age_days(evidence.created_at),
            stale_after_days=request.settings.baseline.stale_after_days,
            from_base=True,
        ),
        unaffected=recorded,
        data=tuple(one.model_copy(update={"parts": ()}) for one in evidence.data),
        environment=entry.environment,
        checkpoint_root=entry.checkpoint.root,
        snapshot_digest=evidence.snapshot_digest,
        settings_digest=evidence.settings_digest,
        not_exercised=("this commit: nothing of it was run",),
        not_run=(
            NotRun(part=Part.STRICT_RUNS, why=WhyNotRun.UNAFFECTED, runs=request.strict_runs),
        ),
    )
