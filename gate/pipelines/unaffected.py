"""Decides whether a pull request changes anything that its training gets; if not, an entry answers.

No code of the pull request runs for this. Its tree is hashed, and the training's own Python reports
its environment, isolated like a run but without the script. Every doubt leads to a training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gate.baseline.entry import Baseline, BaselineEntry, Baselines, entry_name
from gate.baseline.select import may_stand_alone
from gate.data.data_sets import same_data
from gate.errors import GateError
from gate.evidence.run_evidence import EvidenceSet
from gate.isolation.modes import RunIsolation
from gate.pipelines.case import Gated
from gate.pipelines.prepared import Prepared
from gate.pipelines.snapshots import is_of_training
from gate.settings.data import Verify
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import ReachedLevel
from gate.settings.load import (
    answering_digest,
    settings_digest,
    training_digest,
    training_settings,
)
from gate.text.phrases import count
from gate.text.untrusted_text import safe_line
from gate.training.child_environment import PASSED_FROM_HOST
from gate.training.environment import PACKAGES, Environment, moved_packages
from gate.training.probe import probe_training
from gate.training.runs import Commit
from gate.training.timeline import OwnWork
from gate.verdict import findings
from gate.verdict.request import GateRequest
from gate.verdict.verdict import (
    NotRun,
    Outcome,
    RecordedPass,
    RunPurpose,
    Verdict,
    WhyNotRun,
)

SHOWN = 3
SHOWN_CHARACTERS = 80


def recorded_answer(prepared: Prepared, baselines: Baselines) -> tuple[Gated | None, str]:
    """Return the answer of an entry of the trusted baseline; None if the commit has to be trained.

    The text says why it is trained although the settings ask for an answer.
    """
    request, progress = prepared.request, prepared.adapters.progress
    if not request.may_answer:
        return None, ""
    with prepared.call.own(OwnWork.JUDGING):
        why = _obstacle(request, prepared, baselines)
        entries = () if why else tuple(_fitting(request, prepared, baselines.base))
        if not why and not entries:
            why = _why_none_fits(request, prepared, baselines.base)
        if not why:
            here = _environment(prepared)
            # names the refusal if the environment of no entry fits
            newest = max(entries, key=lambda candidate: candidate.recorded_at)
            entries = tuple(entry for entry in entries if here and _same(entry.environment, here))
            why = "" if entries else _moved_words(newest, here)
    if why:
        progress.step(f"trains although runs.unaffected is answer: {why}")
        return None, why
    return _answer(
        prepared, baselines.base, max(entries, key=lambda candidate: candidate.recorded_at)
    ), ""


def _obstacle(request: GateRequest, prepared: Prepared, baselines: Baselines) -> str:
    """Return what makes this call train regardless of the files, or an empty text."""
    head, settings = prepared.snapshots[Commit.HEAD], request.settings
    obstacles = (
        (baselines.head is not None, "the pull request includes a new baseline"),
        (bool(request.policy_changes), "the pull request changes what decides"),
        (
            # the base path exists only if the base commit's lock file differs and its packages are
            # installed
            bool(request.environment_change.files or prepared.adapters.base_path),
            "the pull request changes the environment",
        ),
        (bool(head.changed_files), "there are uncommitted changes"),
        (request.resumes, "resume makes runs in this call"),
        # an audit counts operators of this commit, which needs a run
        (settings.operator_audit, "operator_audit makes a run in every call"),
        (settings.cluster.on_nodes, "the nodes of a cluster are not asked for their environment"),
        # without train.files every file may reach the training, so no change is harmless
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
    """Decide whether command or variables of the training name a folder of head in the checkout.

    The pull request could add a file there, such as a start-up file of an environment. A run would
    get that file although `train.files` does not name it.
    """
    launcher, train = prepared.launchers[Commit.HEAD], prepared.request.settings.train
    host = launcher.isolation.host_variables(launcher.host, train.pass_env)
    # PATH and LD_LIBRARY_PATH are among them, and their folders may contain files of the change
    passed = (host.get(name, "") for name in PASSED_FROM_HOST)
    top, tree = prepared.request.top.resolve(), prepared.snapshots[Commit.HEAD].tree
    for text in (*passed, *train.env.values(), *train.command):
        for path in (Path(part) for part in text.split(os.pathsep) if part.startswith(os.sep)):
            # a path outside of the checkout may be a link into it
            for place in (path, path.resolve()):
                inside = place.relative_to(top).parts if place.is_relative_to(top) else None
                # a folder that the commit leaves empty, such as an ignored .venv, is the machine's
                # own
                if inside == () or (inside and prepared.adapters.files.exists(tree / inside[0])):
                    return True
    return False


def _same(recorded: Environment, here: Environment) -> bool:
    """Decide whether the environments are equal in every part.

    Packages count as imported in all cases: a new package here may be one that a run would import.
    """
    # with no imports recorded, `moved` compares all packages
    return not recorded.model_copy(update={"imported": ()}).moved(here)


def _fitting(
    request: GateRequest, prepared: Prepared, trusted: Baseline | None
) -> Iterator[BaselineEntry]:
    """Yield the entries that were recorded with exactly what head's training would get."""
    # every condition here is listed for users in docs/cost.md#no-run
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


def _why_none_fits(request: GateRequest, prepared: Prepared, trusted: Baseline | None) -> str:
    """Return why the entry closest to this commit cannot answer."""
    if trusted is None or not trusted.entries:
        return "the base commit has no entry of a baseline"
    training = training_settings(request.settings)
    files = answering_digest(prepared.snapshots[Commit.HEAD].part_digest, request.settings)
    entry = max(
        trusted.entries,
        key=lambda candidate: (
            candidate.training == training,
            candidate.files_sha256 == files,
            candidate.recorded_at,
        ),
    )
    return next(_unlike(entry, training, files, prepared))


def _unlike(
    entry: BaselineEntry, training: Mapping[str, str], files: str, prepared: Prepared
) -> Iterator[str]:
    """Yield the differences between an entry and this commit, at least one."""
    request, settings = prepared.request, prepared.request.settings
    named = f"entry {entry_name(entry)}"
    moved = sorted(
        key
        for key in entry.training.keys() | training.keys()
        if entry.training.get(key) != training.get(key)
    )
    if moved:
        yield f"{named} was recorded with other settings: {_listed(moved)}"
    if not entry.files_sha256:
        yield f"{named} does not list all that its training read: {_unseen(settings)}"
    if entry.files_sha256 != files:
        changed = _changed_files(request, prepared, entry)
        if changed:
            yield f"files of the training changed since {named} was recorded: {_listed(changed)}"
        yield f"a setting that judges, or a file of train.files, is not that of {named}"
    if not same_data(entry.data, prepared.data):
        yield f"declared data is not that of {named}: {_listed(_other_data(entry, prepared))}"
    now = prepared.adapters.clock.now().isoformat()
    age, most = entry.age_days(now), settings.baseline.stale_after_days
    if age > most:
        yield f"{named} is {age} days old, and baseline.stale_after_days is {most}"
    if entry.provisional:
        yield f"{named} is provisional: no second call has given its result"
    if entry.equal_runs < settings.baseline.record_repeats:
        yield f"{named} rests on {count(entry.equal_runs, 'run')}, fewer than record_repeats"
    yield f"{named} is quarantined, or misses a threshold of the policy"


def _changed_files(
    request: GateRequest, prepared: Prepared, entry: BaselineEntry
) -> tuple[str, ...]:
    """Return the training's files that differ from the entry's commit, or else from the base's."""
    head = prepared.snapshots[Commit.HEAD].commit
    for before in (entry.commit, request.base_commit):
        try:
            changed = prepared.adapters.git.changed_between(before, head) if before else ()
        except GateError:
            # a shallow clone may lack that commit
            continue
        if of_training := tuple(path for path in changed if is_of_training(request, path)):
            return of_training
    return ()


def _unseen(settings: GateSettings) -> str:
    """Return which setting keeps some reads of a training from being seen."""
    if settings.isolation.network:
        return "isolation.network is true"
    if settings.train.pass_env:
        return f"train.pass_env hands on {_listed(settings.train.pass_env)}"
    if settings.preprocess is not None:
        return "preprocess writes files"
    return (
        "it started another program, read an undeclared file, or ran code out of sight; the "
        "sources on the page of a run name the line"
    )


def _other_data(entry: BaselineEntry, prepared: Prepared) -> tuple[str, ...]:
    sides = [
        {data_set.name: data_set.sha256 for data_set in sets}
        for sets in (entry.data, prepared.data)
    ]
    names = sorted(sides[0].keys() | sides[1].keys())
    return tuple(name for name in names if sides[0].get(name) != sides[1].get(name))


def _moved_words(entry: BaselineEntry, here: Environment | None) -> str:
    named = f"entry {entry_name(entry)}"
    if here is None:
        return "the training's Python does not say which environment it is"
    moved = entry.environment.model_copy(update={"imported": ()}).moved(here)
    words = [f"{name} is {here.part(name)}, not {entry.environment.part(name)}" for name in moved]
    if PACKAGES in moved:
        packages = moved_packages(entry.environment.model_copy(update={"imported": ()}), here)
        names = _listed([package.name for package in packages.counted]) or "another digest"
        words[moved.index(PACKAGES)] = f"packages moved ({names})"
    return f"the environment is not that of {named}: {_listed(words)}"


def _listed(names: Sequence[str]) -> str:
    """Return the first names in one line; they come from files and settings of a commit."""
    shown = ", ".join(safe_line(name)[:SHOWN_CHARACTERS] for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _environment(prepared: Prepared) -> Environment | None:
    """Return the environment that the training's own Python reports; None if it reports none."""
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
        # the probe used the account and the place of a run, so leave both as before a run
        adapters.clean_up(launcher.isolation)
        prepared.aside.put(prepared.place)
        adapters.files.fresh_folder(prepared.place)
    if seen.problem or not seen.parts:
        return None
    return Environment(parts=dict(seen.parts), packages=seen.packages, origins=dict(seen.origins))


def _answer(prepared: Prepared, trusted: Baseline | None, entry: BaselineEntry) -> Gated:
    # as before every verdict, check that the hashed files are still the files on disk
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
    """Return a pass that rests on the runs of an entry; `evidence` contains no run."""
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
        data=tuple(data_set.model_copy(update={"parts": ()}) for data_set in evidence.data),
        environment=entry.environment,
        checkpoint_root=entry.checkpoint.root,
        snapshot_digest=evidence.snapshot_digest,
        settings_digest=evidence.settings_digest,
        # the verdict must not suggest that this commit ran
        not_exercised=("this commit: nothing of it was run",),
        not_run=(
            NotRun(part=RunPurpose.STRICT_RUNS, why=WhyNotRun.UNAFFECTED, runs=request.strict_runs),
        ),
    )
