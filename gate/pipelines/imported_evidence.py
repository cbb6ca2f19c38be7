"""Evidence that another job made: its folder, taken over as untrusted bytes.

Nothing in the folder is executed. This call derives again everything that the event, the commit and
the settings say. Only that job can know metrics, digests of steps and the environment: these are
claims, and the verdict says so.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gate.comparison.checks import never_passes
from gate.comparison.compare import compare_results
from gate.errors import EvidenceError, RepositoryError, StorageError
from gate.evidence.capture import (
    FIRST_STATE,
    MAX_STATE_BYTES,
    SAVED_FOLDER,
    SECOND_STATE,
    captured_digests,
    ends_diverged,
    roots_fit,
    saved_digests,
    saved_member,
)
from gate.evidence.evidence_folder import (
    MANIFEST_NAME,
    EvidenceFolder,
    WrittenDocument,
    read_evidence_set,
)
from gate.evidence.lock_files import LockFile
from gate.evidence.rank_environments import leave_out_packages
from gate.evidence.run_evidence import DivergedStates, EvidenceSet, KeptFile, RunEvidence
from gate.evidence.usable import refuse_unusable
from gate.isolation.cluster_settings import ClusterSettings
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.isolation.modes import Isolation, IsolationMode, IsolationSettings, Separation, WriteGuard
from gate.package.packing import keep_code
from gate.pipelines.adapters import Adapters
from gate.pipelines.fresh_process import FreshReader
from gate.pipelines.reader_questions import MAX_TEXT, Ask, SavedQuestion, StateAnswer, StateQuestion
from gate.pipelines.snapshots import copy_part, export_snapshot, prepare_out
from gate.pipelines.tree_files import locks_of_commits
from gate.settings.gate_settings import GateSettings
from gate.settings.load import settings_digest, training_digest
from gate.system.files.port import Files
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line, short_text
from gate.training.plan import (
    plan_base,
    plan_base_here,
    plan_gate,
    plan_interrupted,
    plan_operator_audit,
    plan_resumed,
    plan_seeds,
    training_of,
)
from gate.training.runs import (
    BASE_HERE,
    CarriedCheckpoint,
    Commit,
    PlannedRun,
    RunMode,
    RunRecord,
    Snapshot,
)
from gate.verdict.request import GateRequest

ALTERED_HINT = "The folder is not what one `repro-gate run` wrote; run the job again."


def records_of(evidence: EvidenceSet) -> tuple[RunRecord, ...]:
    """Return the record of every run in the evidence, including the runs of further seeds."""
    seeded = (seed.run for seed in evidence.seeded)
    return (*(run.run for run in evidence.runs), *seeded)


def plain_isolation(settings: GateSettings) -> GateSettings:
    """Return the settings without container image and cluster nodes.

    A process that only reads files needs neither.
    """
    here = {"isolation": IsolationSettings(), "cluster": ClusterSettings()}
    return settings.model_copy(update=here)


def kept_here(
    evidence: EvidenceSet,
    request: GateRequest,
    adapters: Adapters,
    folder: Path,
    isolation: Isolation,
) -> tuple[DivergedStates | None, Isolation]:
    """Copy the kept files under their digests, and check the kept states against the runs.

    Return how far the second state is from the first, and the isolation with the reader's state.
    Raises `EvidenceError` for a missing, unexpected or altered file.
    """
    kept_names = {f"{record.label}/output.txt" for record in records_of(evidence)} | {FIRST_STATE}
    # compared with the settings here: the evidence must not decide what it has to contain
    saved = _saved_files(evidence, request.settings)
    kept_names |= {kept.name for kept in saved}
    # no file more: the package would contain it, and its reader would trust it
    if {kept.name for kept in evidence.kept} != kept_names or len(evidence.kept) != len(kept_names):
        raise EvidenceError("the evidence has missing or unexpected files", hint=ALTERED_HINT)
    second = _second_state(evidence)
    target = request.out / "evidence"
    for record in records_of(evidence):
        adapters.files.fresh_folder(target / record.label)
    for kept in (*evidence.kept, *second):
        _copy(kept, folder, target, adapters.files)
    reading = request.out / "work" / "taken"
    adapters.files.fresh_folder(reading)
    own = adapters.isolate(plain_isolation(request.settings), (reading,))
    try:
        with FreshReader(
            adapters.files, adapters.answering, adapters.progress, own.credentials
        ) as reader:
            _check_kept(evidence, request, target, reader)
            apart = _apart_here(evidence, target, reading, reader)
    finally:
        adapters.clean_up(own)
    return apart, replace(isolation, reading=reader.parser_unsandboxed_reason)


def _check_kept(
    evidence: EvidenceSet, request: GateRequest, target: Path, reader: FreshReader
) -> None:
    # the digests in the documents are claims until the states themselves have been hashed here
    names = (FIRST_STATE, *(kept.name for kept in _second_state(evidence)))
    for run, name in zip(evidence.runs_of(RunMode.STRICT), names, strict=False):
        state = reader.ask(StateQuestion(path=target / name))
        _check_state(run, name, captured_digests(run), state)
    if _saved_files(evidence, request.settings):
        _check_saved(evidence, request, reader.ask)


def _apart_here(
    evidence: EvidenceSet, target: Path, folder: Path, reader: FreshReader
) -> DivergedStates | None:
    """Return how far the second state is from the first; None if no second state is kept."""
    apart = None
    for kept in _second_state(evidence):
        # measure the distance here: the other job's figure is only a claim
        first = next(member for member in evidence.kept if member.name == FIRST_STATE)
        distance = reader.distance((target / first.name, first.sha256), target / kept.name, folder)
        apart = DivergedStates(state=kept, distance=distance)
    return apart


def _copy(kept: KeptFile, folder: Path, target: Path, files: Files) -> None:
    """Copy one file; raise `EvidenceError` if its digest differs or it cannot be read."""
    try:
        files.refuse_links(folder / kept.name, below=folder)
        digest = files.copy_file(folder / kept.name, target / kept.name, max_bytes=MAX_STATE_BYTES)
    except StorageError as error:
        raise EvidenceError(
            f"{kept.name} cannot be read: {short_text(error.message)}", hint=error.hint
        ) from error
    if digest != kept.sha256:
        raise EvidenceError(f"{kept.name}: is not the file listed in set.json", hint=ALTERED_HINT)


def _second_state(evidence: EvidenceSet) -> tuple[KeptFile, ...]:
    """Return the second strict run's state, which only evidence of different runs contains.

    Raises `EvidenceError` if the state is kept although the two strict runs are equal.
    """
    if evidence.apart is None:
        return ()
    if evidence.apart.state.name != SECOND_STATE or not ends_diverged(
        *evidence.runs_of(RunMode.STRICT)[:2]
    ):
        raise EvidenceError(
            "the evidence keeps a state that the gate never keeps", hint=ALTERED_HINT
        )
    return (evidence.apart.state,)


def _saved_files(evidence: EvidenceSet, settings: GateSettings) -> tuple[KeptFile, ...]:
    """Return the files that the script saved, if the settings have them packed.

    Raises `EvidenceError` if evidence and settings disagree on it.
    """
    packed = settings.train.checkpoint is not None and settings.package.checkpoint
    if (evidence.saved is not None) != packed:
        raise EvidenceError(
            "the evidence and the settings disagree on what the script saved", hint=ALTERED_HINT
        )
    return tuple(kept for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))


def _check_saved(evidence: EvidenceSet, request: GateRequest, ask: Ask) -> None:
    """Raise `EvidenceError` if the script's saved files differ from those that its run recorded."""
    run, train = evidence.runs_of(RunMode.STRICT)[0], request.settings.train
    place = request.out / "evidence" / run.run.label / saved_member(evidence)
    shown = (train.checkpoint or "")[:MAX_TEXT]
    question = SavedQuestion(path=place, shown=shown, train=train)
    _check_state(run, place.name, saved_digests(run), ask(question))


def _check_state(run: RunEvidence, name: str, digests: dict[str, str], answer: StateAnswer) -> None:
    """Raise `EvidenceError` if a kept state is not the one that its run recorded.

    The positions of NaN and infinity have to match too.
    """
    odd = (*(leaf.name for leaf in run.not_finite), *run.constant_infinities)
    not_finite = {name for name in odd if name in digests}
    if digests != {leaf.name: leaf.sha256 for leaf in answer.leaves} or not_finite != set(
        answer.not_finite
    ):
        raise EvidenceError(f"{name}: is not the state of run {run.run.label}", hint=ALTERED_HINT)


MAX_NAMES = 1000
SNAPSHOT = "snapshot"
MOVED_HINT = (
    "Both jobs must read them from the same base commit: if the base branch moved in between, "
    "run the first job again."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedRuns:
    """Evidence that is now in this call's output folder, and the isolation that its runs report."""

    evidence: EvidenceSet
    isolation: Isolation
    documents: tuple[WrittenDocument, ...]


def read_evidence_apart(files: Files, folder: Path) -> EvidenceSet:
    """Read a folder that another job wrote, in a confined child.

    This process may hold the key (T5), and parsed text takes many times its size in memory. Raises
    `EvidenceError` like `read_evidence_set`, and also if the child exceeds its time or memory.
    """
    return read_apart(
        RecordForm(EvidenceSet),
        lambda: read_evidence_set(files, folder),
        what=f"the evidence in {safe_line(str(folder))}",
        seconds=reading_seconds(folder),
        answer_bytes=LARGE_ANSWER_BYTES,
    )


def take_over(request: GateRequest, adapters: Adapters, folder: Path) -> ImportedRuns:
    """Check a folder of evidence against what is known here, and copy it to the output folder.

    Raises `EvidenceError` if anything is missing, altered, of another commit or made under other
    settings. The output folder then contains nothing to judge.
    """
    # before the output folder is touched, since the evidence could be inside it
    refuse_missing(request, adapters.files, folder)
    for name in adapters.files.list_names(folder, max_names=MAX_NAMES):
        # an artifact can contain links; one that leads out of the folder would be read as evidence
        adapters.files.refuse_links(folder / name, below=folder)
    imported = read_evidence_apart(adapters.files, folder)
    prepare_out(request.out, adapters.files)
    work = request.out / "work"
    adapters.files.fresh_folder(work)
    try:
        _check_origin(imported, request, _exported_digest(request, adapters, work))
        _check_files(imported, request, adapters, work)
        _check_runs(imported, request)
        isolation = _claimed_isolation(imported)
        apart, isolation = kept_here(imported, request, adapters, folder, isolation)
        locks = _locks_here(request, adapters, work)
        _keep_code(imported, request, adapters, work, locks[Commit.HEAD])
    finally:
        adapters.files.remove_tree(work)
        adapters.release()
    ignored = request.settings.environment.ignore
    evidence = imported.model_copy(
        update={
            "base_commit": request.base_commit,
            # this gate's clock: the other job must not choose the age of a seal
            "created_at": adapters.clock.now().isoformat(),
            "apart": apart,
            "locks": locks[Commit.HEAD],
            "base_locks": locks.get(Commit.BASE, ()),
            # again: whether the other job left these packages out is only its claim
            "runs": tuple(leave_out_packages(run, ignored) for run in imported.runs),
        }
    )
    documents = EvidenceFolder(adapters.files, request.out / "evidence").write(evidence)
    return ImportedRuns(evidence=evidence, isolation=isolation, documents=documents)


def refuse_missing(request: GateRequest, files: Files, folder: Path) -> None:
    """Raise `EvidenceError` for a folder without evidence, or one that this call would empty."""
    _refuse_own_folder(request, folder)
    if not files.exists(folder / MANIFEST_NAME):
        other = files.exists(folder) and not folder.is_dir()
        raise EvidenceError(
            f"{folder} is not a folder" if other else f"there is no evidence in {folder}",
            hint="The job that runs the training failed, or its artifact was not downloaded to "
            "that folder: look at that job's log.",
        )


def _refuse_own_folder(request: GateRequest, folder: Path) -> None:
    # resolved, because a link could lead back into the output folder
    if folder.resolve().is_relative_to(request.out.resolve()):
        raise EvidenceError(
            f"the evidence in {folder} is inside the output folder, which is emptied",
            hint="Keep the other job's evidence elsewhere, or use a different --out.",
        )


def _exported_digest(request: GateRequest, adapters: Adapters, work: Path) -> str:
    """Return the digest of the commit's tree, computed here; its files are hashed, not parsed."""
    commit = request.commit or adapters.git.resolve("HEAD")
    target = work / SNAPSHOT
    adapters.files.fresh_folder(target)
    return adapters.git.export_commit(commit, target)


def _check_files(
    imported: EvidenceSet, request: GateRequest, adapters: Adapters, work: Path
) -> None:
    """Raise `EvidenceError` if the runs got other files than `train.files` names in this commit.

    A proposed entry may depend on this digest, so it is computed here.
    """
    files = request.settings.train.files
    here = copy_part(request, work / SNAPSHOT, work / "part", adapters.files) if files else ""
    if imported.files_digest != here:
        raise EvidenceError(
            "the runs got different files than train.files names", hint=ALTERED_HINT
        )


def _locks_here(
    request: GateRequest, adapters: Adapters, work: Path
) -> dict[Commit, tuple[LockFile, ...]]:
    """Return the lock files of head and base, read from the commits and not from the evidence."""
    trees = {Commit.HEAD: work / SNAPSHOT}
    if request.base_commit:
        # a shallow clone lacks the base commit; then the changes of the pull request stay unknown
        with suppress(RepositoryError):
            base = export_snapshot(Commit.BASE, request, adapters, work)
            trees[Commit.BASE] = base.tree
    folder = work / "locks"
    adapters.files.fresh_folder(folder)
    isolation = adapters.isolate(plain_isolation(request.settings), (folder,))
    try:
        with FreshReader(
            adapters.files, adapters.answering, adapters.progress, isolation.credentials
        ) as reader:
            return locks_of_commits(request, trees, folder, adapters.files, reader.ask)
    finally:
        adapters.clean_up(isolation)


def _keep_code(
    imported: EvidenceSet,
    request: GateRequest,
    adapters: Adapters,
    work: Path,
    locks: tuple[LockFile, ...],
) -> None:
    """Keep the commit's code for the package, from the tree that was exported here."""
    here = Snapshot(
        commit=imported.commit,
        tree=work / SNAPSHOT,
        workdir=request.settings.train.workdir,
        digest=imported.snapshot_digest,
    )
    keep_code(request, adapters.git, here, locks, adapters.files)


def _check_origin(evidence: EvidenceSet, request: GateRequest, tree_digest: str) -> None:
    """Raise `EvidenceError` for evidence of another commit, changed files or other settings."""
    if request.commit is not None and evidence.commit != request.commit:
        raise EvidenceError(
            f"the evidence is of commit {short_text(evidence.commit[:12])}, not of "
            f"{request.commit[:12]}",
            hint=f"To judge that commit, give --commit {safe_line(evidence.commit[:12])}; or let "
            "`repro-gate run` train this one.",
        )
    if evidence.changed_files or evidence.snapshot_digest != tree_digest:
        raise EvidenceError(
            "the evidence was not made from this commit's own files", hint=ALTERED_HINT
        )
    # compare with the settings that decide here; the other job may have obeyed head's
    digests = (settings_digest(request.settings), training_digest(request.settings))
    if (evidence.settings_digest, evidence.training_digest) != digests:
        raise EvidenceError(
            "the evidence was made under different settings than those used here",
            hint=MOVED_HINT,
        )
    if (
        evidence.runs_of(RunMode.STRICT, Commit.BASE)
        and evidence.base_commit != request.base_commit
    ):
        raise EvidenceError(
            "the evidence contains runs of a different base commit", hint=MOVED_HINT
        )


def _check_runs(evidence: EvidenceSet, request: GateRequest) -> None:
    """Raise `EvidenceError` unless the runs are exactly those that a gate call makes."""
    # rebuild the plan: the folder's own account of what was requested is only a claim
    base, own = plan_base(), plan_base(Commit.BASE)
    # each run of the base commit names its environment, which shows which of the two plans applies
    owned = any(run.run.environment is Commit.BASE for run in evidence.runs)
    chosen = own if owned else base
    gated = plan_gate(request.strict_runs, priced=request.priced)
    planned = {run.label: run for run in (*gated, *chosen, plan_base_here(), plan_operator_audit())}
    labels = tuple(run.run.label for run in evidence.runs)
    planned_labels = tuple(
        run.label
        for run in planned.values()
        if run.commit is Commit.HEAD and run.label != plan_operator_audit().label
    )
    bases: tuple[tuple[str, ...], ...] = ((),)
    if request.base_commit:
        alone = tuple(run.label for run in chosen)
        bases = ((), alone, (*alone, BASE_HERE)) if owned else ((), alone)
    operator_audit = (plan_operator_audit().label,) if request.settings.operator_audit else ()
    resumed = tuple(run.label for run in _resume_runs(evidence, request))
    planned |= {run.label: run for run in _resume_runs(evidence, request)}
    # `refuse_lone_run` decides later whether a single run is enough
    lone = (planned_labels[:1],) if request.one_may_do else ()
    # a fault can end the resumed runs early; it is then reported instead of their result
    allowed = {
        (*own_runs, *based, *resumed[:made], *counted)
        for own_runs in (planned_labels, *lone)
        for based in bases
        for made in range(len(resumed) + 1)
        for counted in ((), operator_audit)
    }
    if labels not in allowed and not _stopped_early(labels, planned_labels, evidence, request):
        raise EvidenceError(
            f"the evidence contains the runs {short_text(', '.join(labels))}", hint=ALTERED_HINT
        )
    for run in evidence.runs:
        _check_run(run, planned[run.run.label], request)
    _check_seeds(evidence, request)


def _resume_runs(evidence: EvidenceSet, request: GateRequest) -> tuple[PlannedRun, ...]:
    """Return the interrupted and the resumed run as this call plans them; none without a resume.

    Raises `EvidenceError` if the evidence is of another resume.
    """
    resume, attempt = request.settings.resume, evidence.resume
    if resume is None or attempt is None:
        return ()
    if (attempt.checkpoint, attempt.at_step) != (resume.checkpoint, resume.at_step):
        raise EvidenceError("the evidence is of a different resume", hint=ALTERED_HINT)
    carried = CarriedCheckpoint(place=resume.checkpoint, step=attempt.step, files=())
    return plan_interrupted(resume), plan_resumed(resume, carried, request.settings.train)


def _stopped_early(
    labels: tuple[str, ...], expected: tuple[str, ...], evidence: EvidenceSet, request: GateRequest
) -> bool:
    """Decide whether runs are missing because two strict runs differ, or one can never pass.

    No missing run could turn these outcomes into a pass.
    """
    strict = evidence.runs_of(RunMode.STRICT)
    if labels != tuple(label for label in expected if label in labels):
        return False
    return never_passes(strict, request.settings.compare.allow_not_finite) or any(
        not compare_results(
            strict[0], run, request.settings.compare, (strict[0].run.label, run.run.label)
        ).numerically_equal
        for run in strict[1:]
    )


def _check_seeds(evidence: EvidenceSet, request: GateRequest) -> None:
    """Raise `EvidenceError` unless all runs of further seeds are there as planned, or none is."""
    planned = plan_seeds(request.settings)
    labels = [seeded.run.label for seeded in evidence.seeded]
    if labels and labels != [run.label for run in planned]:
        raise EvidenceError(
            f"the evidence contains the runs {short_text(', '.join(labels))}", hint=ALTERED_HINT
        )
    for seed, run in zip(evidence.seeded, planned, strict=False):
        _check_record(seed.run, run, request)
        if (seed.result.seed, seed.result.variant) != (run.seed, run.variant):
            raise EvidenceError(
                f"run {run.label}: has a different seed or variant than requested",
                hint=ALTERED_HINT,
            )


def _check_record(record: RunRecord, planned: PlannedRun, request: GateRequest) -> None:
    command = training_of(planned, request.settings.train).command
    # an interrupted run ends by a signal, or with the exit code of the script's own handler
    code = 0 if planned.preemption is None else record.exit_code
    cluster, isolation = request.settings.cluster, record.isolation
    asked = (planned.mode, planned.commit, planned.environment, command, code, False)
    given = (record.mode, record.commit, record.environment)
    ended = (record.argv, record.exit_code, record.timed_out)
    # the place of the runs is part of what the base commit's settings require
    places = (cluster.on_nodes, cluster.allocations > 1)
    placed = (isolation.job is not None, isolation.other_nodes)
    if asked != (*given, *ended) or places != placed:
        raise EvidenceError(
            f"run {record.label}: did not run or end as the settings require", hint=ALTERED_HINT
        )


def _check_run(run: RunEvidence, planned: PlannedRun, request: GateRequest) -> None:
    record = run.run
    _check_record(record, planned, request)
    if not roots_fit(run.checkpoint):
        raise EvidenceError(
            f"run {record.label}: its checkpoint digest does not match its tensors",
            hint=ALTERED_HINT,
        )
    refuse_unusable(run, request.settings)


def _claimed_isolation(evidence: EvidenceSet) -> Isolation:
    """Return the weakest isolation that any run reports."""
    runs = [record.isolation for record in records_of(evidence)]
    # a run with weaker isolation could have changed what the other runs read or left
    weakest = min((run.mode for run in runs), key=lambda mode: mode.strength)
    guards = [run.guard for run in runs if run.guard is not None]
    return Isolation(
        job=next((run.job for run in runs if run.job is not None), None),
        # each property counts only if every run reports it
        other_nodes=all(run.other_nodes for run in runs),
        mode=weakest,
        credentials=None,
        reason="as reported by the job that ran it",
        network=any(run.network for run in runs),
        device_groups=tuple(sorted({group for run in runs for group in run.device_groups})),
        guard=max(guards, key=list(WriteGuard).index, default=None)
        if weakest is IsolationMode.UID
        else None,
        own=tuple(
            separation for separation in Separation if all(separation in run.own for run in runs)
        ),
    )
