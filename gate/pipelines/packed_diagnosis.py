"""Diagnoses a package again: it has settings and baseline, so the rules of a gate call decide."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gate.baseline.entry import Baselines
from gate.isolation.modes import Isolation, IsolationMode
from gate.package.packing import CallDocument
from gate.pipelines.case import case_of
from gate.pipelines.diagnose import Retold, diagnose_kept, environment_of_evidence
from gate.pipelines.gate import judge
from gate.pipelines.kept_evidence import KeptEvidence
from gate.settings.gate_settings import GateSettings
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Outcome, Verdict


def diagnose_again(kept: KeptEvidence) -> Retold:
    """Return the first difference in kept evidence; of a package, with the outcome of its call.

    A folder of evidence has no settings, so any difference in it counts. Raises `EvidenceError` if
    there is no strict run to start from.
    """
    retold = diagnose_kept(kept)
    if kept.settings is None or kept.call is None:
        return retold
    verdict = _judged(kept, kept.settings, kept.call)
    decided = kept.outcome if kept.outcome is not verdict.outcome else None
    if verdict.outcome is Outcome.NO_BASELINE and verdict.provisional is None:
        return retold.model_copy(update={"decided": decided})
    first = None if retold.verdict is None else retold.verdict.diagnosis
    if verdict.passes and verdict.diagnosis is None and first is not None:
        # a pass within tolerance needs no diagnosis in its call, but has a first difference
        verdict = verdict.model_copy(update={"diagnosis": first})
    differs = not verdict.passes or verdict.diagnosis is not None
    return retold.model_copy(update={"verdict": verdict if differs else None, "decided": decided})


def _judged(kept: KeptEvidence, settings: GateSettings, call: CallDocument) -> Verdict:
    """Return the verdict by the rules of a gate call, without what only that call could know."""
    evidence, resume = kept.evidence, settings.resume
    config = PurePosixPath(call.config)
    request = GateRequest(
        top=Path(),
        project=config.parent.as_posix(),
        config_name=config.name,
        settings=settings,
        settings_text=kept.settings_text,
        settings_from="package",
        out=Path(),
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        environment_change=environment_of_evidence(evidence),
        # only such a call owes the runs of a resume that is made at night
        nightly=resume is not None and resume.when == "nightly" and evidence.resume is not None,
    )
    same_code = frozenset(() if evidence.changed_files else (evidence.commit,))
    baselines = Baselines(base=kept.baseline, head=None, same_code=same_code)
    # nothing is trained here, and how the runs were isolated changes no outcome
    isolation = Isolation(mode=IsolationMode.NONE, credentials=None, reason="")
    return judge(case_of(request, baselines, evidence, isolation)).verdict
