"""Whether a pull request changes anything that its training gets; where not, an entry answers.

No code of the change runs for it: its tree is hashed, and the training's own Python is asked for
its environment, kept apart as a run is, without the script. Every doubt ends in a training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gate.baseline.entry import Baseline, BaselineEntry, Baselines, entry_name
from gate.baseline.select import may_stand_alone
from gate.errors import GateError
from gate.evidence.run_evidence import EvidenceSet
from gate.isolation.modes import RunIsolation
from gate.pipelines.case import Gated
from gate.pipelines.prepared import Prepared
from gate.settings.data import Verify
from gate.settings.levels import ReachedLevel
from gate.settings.load import (
    answering_digest,
    settings_digest,
    training_digest,
    training_settings,
)
from gate.training.child_environment import PASSED_FROM_HOST
from gate.training.environment import Environment
from gate.training.probe import probe_training
from gate.training.runs import Commit
from gate.training.timeline import OwnWork
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


def answered(prepared: Prepared, baselines: Baselines) -> Gated | None:
    """The answer of an entry of the trusted baseline; None where the commit has to be trained."""
    request, progress = prepared.request, prepared.adapters.progress
    if not request.may_answer:
        return None
    with prepared.call.own(OwnWork.JUDGING):
        why = _obstacle(request, prepared, baselines)
        entries = () if why else tuple(_fitting(request, prepared, baselines.base))
        if not why and not entries:
            why = "no entry of the baseline was recorded with these files, settings and data"
        if not why:
            here = _environment(prepared)
            entries = tuple(one for one in entries if here and _same(one.environment, here))
            why = "" if entries else "no entry of the baseline was recorded in this environment"
    if why:
        progress.step(f"trains although runs.unaffected is answer: {why}")
        return None
    return _answer(prepared, baselines.base, max(entries, key=lambda one: one.recorded_at))


def _obstacle(request: GateRequest, prepared: Prepared, baselines: Baselines) -> str:
    """What this call has to train for, whatever its files are; empty where there is nothing."""
    head, settings = prepared.snapshots[Commit.HEAD], request.settings
    obstacles = (
        (baselines.head is not None, "the pull request includes a new baseline"),
        (bool(request.policy_changes), "the pull request changes what decides"),
        (
            # the base commit has a lock file of its own, where packages of either were installed
            bool(request.environment_change.files or prepared.adapters.base_path),
            "the pull request changes the environment",
        ),
        (bool(head.changed_files), "there are uncommitted changes"),
        (request.resumes, "resume makes runs in this call"),
        (settings.operator_audit, "operator_audit makes a run in every call"),
        (settings.cluster.on_nodes, "the nodes of a cluster are not asked for their environment"),
        (not head.part_digest, "train.files names no files"),
        (
            any(source.verify is Verify.SAMPLE for source in settings.data),
            "of declared data only a sample is read (verify: sample)",
        ),
        (
            _leads_into_the_commit(prepared),
            "programs, libraries or modules of the training are in a folder of the pull request",
        ),
    )
    return next((words for stands, words in obstacles if stands), "")


def _leads_into_the_commit(prepared: Prepared) -> bool:
    """Whether the training's command or variables name a folder of the checkout that head fills.

    What the change puts there, such as a start-up file into an environment below the checkout, a
    run would get beside `train.files`.
    """
    launcher, train = prepared.launchers[Commit.HEAD], prepared.request.settings.train
    host = launcher.isolation.host_variables(launcher.host, train.pass_env)
    passed = (host.get(name, "") for name in PASSED_FROM_HOST)
    top, tree = prepared.request.top.resolve(), prepared.snapshots[Commit.HEAD].tree
    for text in (*passed, *train.env.values(), *train.command):
        for path in (Path(part) for part in text.split(os.pathsep) if part.startswith(os.sep)):
            for place in (path, path.resolve()):
                inside = place.relative_to(top).parts if place.is_relative_to(top) else None
                if inside == () or (inside and prepared.adapters.files.exists(tree / inside[0])):
                    return True
    return False


def _same(recorded: Environment, here: Environment) -> bool:
    """Whether nothing at all moved: a package that is new here may be one that a run would take."""
    return not recorded.model_copy(update={"imported": ()}).moved(here)


def _fitting(
    request: GateRequest, prepared: Prepared, trusted: Baseline | None
) -> Iterator[BaselineEntry]:
    """The entries that were recorded with exactly what head's training would get."""
    settings, now = request.settings, prepared.adapters.clock.now().isoformat()
    training = training_settings(settings)
    files = answering_digest(prepared.snapshots[Commit.HEAD].part_digest, settings)
    for entry in trusted.entries if trusted else ():
        if (
            entry.files_sha256 == files
            and entry.training == training
            and may_stand_alone(entry, prepared.data, settings)
            and entry.age_days(now) <= settings.baseline.stale_after_days
        ):
            yield entry


def _environment(prepared: Prepared) -> Environment | None:
    """That of the training's own Python, asked as `doctor` asks it; None where it does not say."""
    launcher, adapters = prepared.launchers[Commit.HEAD], prepared.adapters
    try:
        with adapters.progress.running("asking the training's Python for its environment"):
            seen = probe_training(
                prepared.request.settings,
                launcher.isolation,
                prepared.place,
                adapters.files,
                adapters.processes,
                launcher.host,
            )
    except GateError:
        return None
    finally:
        adapters.clean_up(launcher.isolation)
        prepared.aside.put(prepared.place)
        adapters.files.fresh_folder(prepared.place)
    if seen.problem or not seen.parts:
        return None
    return Environment(parts=dict(seen.parts), packages=seen.packages, origins=dict(seen.origins))


def _answer(prepared: Prepared, trusted: Baseline | None, entry: BaselineEntry) -> Gated:
    # as before every verdict: what was hashed is what lies there
    prepared.refuse_changed()
    request, head = prepared.request, prepared.snapshots[Commit.HEAD]
    evidence = EvidenceSet(
        commit=head.commit,
        base_commit=request.base_commit,
        snapshot_digest=head.digest,
        settings_digest=settings_digest(request.settings),
        training_digest=training_digest(request.settings),
        created_at=prepared.adapters.clock.now().isoformat(),
        runs=(),
        data=prepared.data,
        base_data=prepared.declared.sets(Commit.BASE),
        files_digest=head.part_digest,
    )
    isolation = prepared.isolation.of_a_run
    verdict = unaffected_verdict(request, entry, evidence, isolation)
    return Gated(verdict=verdict, evidence=evidence, documents=(), baseline=trusted, proposed=None)


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
