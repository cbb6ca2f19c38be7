"""Runs that another job made: its evidence folder, taken over as untrusted bytes.

Nothing of it is executed. What the event, the commit and the settings say is derived here again and
never taken from the folder; what only the job that ran can know (metrics, digests of steps, the
environment) is a claim, and the verdict says so.
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
from gate.pipelines.reading import MAX_TEXT, Ask, SavedQuestion, StateAnswer, StateQuestion
from gate.pipelines.snapshots import export_snapshot, part_of, prepare_out
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
    """Every run that there was, those of further seeds too."""
    seeded = (seed.run for seed in evidence.seeded)
    return (*(run.run for run in evidence.runs), *seeded)


def plain_isolation(settings: GateSettings) -> GateSettings:
    """Not as the settings say: no image is fetched and no node is taken to read a file."""
    here = {"isolation": IsolationSettings(), "cluster": ClusterSettings()}
    return settings.model_copy(update=here)


def kept_here(
    evidence: EvidenceSet,
    request: GateRequest,
    adapters: Adapters,
    folder: Path,
    isolation: Isolation,
) -> tuple[DivergedStates | None, Isolation]:
    """Copy what lies beside the documents under its digests, and look at the kept states."""
    kept_names = {f"{record.label}/output.txt" for record in records_of(evidence)} | {FIRST_STATE}
    saved = _saved_files(evidence, request.settings)
    kept_names |= {kept.name for kept in saved}
    # exactly these: a file more could be read by somebody who trusts the package
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
    names = (FIRST_STATE, *(kept.name for kept in _second_state(evidence)))
    for run, name in zip(evidence.runs_of(RunMode.STRICT), names, strict=False):
        state = reader.ask(StateQuestion(path=target / name))
        _check_state(run, name, captured_digests(run), state)
    if _saved_files(evidence, request.settings):
        _check_saved(evidence, request, reader.ask)


def _apart_here(
    evidence: EvidenceSet, target: Path, folder: Path, reader: FreshReader
) -> DivergedStates | None:
    """How far the second state is from the first, where it is kept."""
    apart = None
    for kept in _second_state(evidence):
        # measured here: what the other job says of it is not taken
        first = next(member for member in evidence.kept if member.name == FIRST_STATE)
        distance = reader.distance((target / first.name, first.sha256), target / kept.name, folder)
        apart = DivergedStates(state=kept, distance=distance)
    return apart


def _copy(kept: KeptFile, folder: Path, target: Path, files: Files) -> None:
    """One file, under its digest; `EvidenceError` when it is another or cannot be read."""
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
    """The second strict run's state, when the folder has it; only one that differs is kept."""
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
    """The files that the script saved, where the settings have them packed."""
    packed = settings.train.checkpoint is not None and settings.package.checkpoint
    if (evidence.saved is not None) != packed:
        raise EvidenceError(
            "the evidence and the settings disagree on what the script saved", hint=ALTERED_HINT
        )
    return tuple(kept for kept in evidence.kept if kept.name.startswith(SAVED_FOLDER))


def _check_saved(evidence: EvidenceSet, request: GateRequest, ask: Ask) -> None:
    """Are the files that the script saved those that its strict run is judged by?"""
    run, train = evidence.runs_of(RunMode.STRICT)[0], request.settings.train
    place = request.out / "evidence" / run.run.label / saved_member(evidence)
    shown = (train.checkpoint or "")[:MAX_TEXT]
    question = SavedQuestion(path=place, shown=shown, train=train)
    _check_state(run, place.name, saved_digests(run), ask(question))


def _check_state(run: RunEvidence, name: str, digests: dict[str, str], answer: StateAnswer) -> None:
    """Is the kept state the one that its strict run is judged by, NaN and infinity included?"""
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
    """Evidence that is now in this call's own output folder, and how its runs say they ran."""

    evidence: EvidenceSet
    isolation: Isolation
    documents: tuple[WrittenDocument, ...]


def read_evidence_apart(files: Files, folder: Path) -> EvidenceSet:
    """A folder that another job wrote, as `read_evidence_set` reads it, in a confined child.

    This process may hold the key, and text takes many times its size in memory. Raises
    `EvidenceError` as that does, and for what takes too long or too much.
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

    Raises `EvidenceError` for whatever is missing, altered, of another commit, or made under other
    settings; the output folder then holds nothing to judge.
    """
    refuse_missing(request, adapters.files, folder)
    for name in adapters.files.list_names(folder, max_names=MAX_NAMES):
        # an artifact can hold links, and one that leads out would be read as evidence
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
            # this gate's clock: a seal must not be as old or as new as another job wants it
            "created_at": adapters.clock.now().isoformat(),
            "apart": apart,
            "locks": locks[Commit.HEAD],
            "base_locks": locks.get(Commit.BASE, ()),
            "runs": tuple(leave_out_packages(run, ignored) for run in imported.runs),
        }
    )
    documents = EvidenceFolder(adapters.files, request.out / "evidence").write(evidence)
    return ImportedRuns(evidence=evidence, isolation=isolation, documents=documents)


def refuse_missing(request: GateRequest, files: Files, folder: Path) -> None:
    """`EvidenceError` for a folder without evidence, or one that the call would empty."""
    _refuse_own_folder(request, folder)
    if not files.exists(folder / MANIFEST_NAME):
        other = files.exists(folder) and not folder.is_dir()
        raise EvidenceError(
            f"{folder} is not a folder" if other else f"there is no evidence in {folder}",
            hint="The job that runs the training failed, or its artifact was not downloaded to "
            "that folder: look at that job's log.",
        )


def _refuse_own_folder(request: GateRequest, folder: Path) -> None:
    if folder.resolve().is_relative_to(request.out.resolve()):
        raise EvidenceError(
            f"the evidence in {folder} is inside the output folder, which is emptied",
            hint="Keep the other job's evidence elsewhere, or use a different --out.",
        )


def _exported_digest(request: GateRequest, adapters: Adapters, work: Path) -> str:
    """The digest of the commit's tree, made here: only its bytes are read."""
    commit = request.commit or adapters.git.resolve("HEAD")
    target = work / SNAPSHOT
    adapters.files.fresh_folder(target)
    return adapters.git.export_commit(commit, target)


def _check_files(
    imported: EvidenceSet, request: GateRequest, adapters: Adapters, work: Path
) -> None:
    """The digest of the files that the runs got, made here: an entry may rest on it."""
    files = request.settings.train.files
    here = part_of(request, work / SNAPSHOT, work / "part", adapters.files) if files else ""
    if imported.files_digest != here:
        raise EvidenceError(
            "the runs got different files than train.files names", hint=ALTERED_HINT
        )


def _locks_here(
    request: GateRequest, adapters: Adapters, work: Path
) -> dict[Commit, tuple[LockFile, ...]]:
    """Read from the commits, and not taken from the folder: what a lock says is known here too."""
    trees = {Commit.HEAD: work / SNAPSHOT}
    if request.base_commit:
        # a shallow clone lacks it: then nobody can say what the pull request changes
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
    """For the package, from the commit as it was exported here."""
    here = Snapshot(
        commit=imported.commit,
        tree=work / SNAPSHOT,
        workdir=request.settings.train.workdir,
        digest=imported.snapshot_digest,
    )
    keep_code(request, adapters.git, here, locks, adapters.files)


def _check_origin(evidence: EvidenceSet, request: GateRequest, tree_digest: str) -> None:
    """Is it about this commit, clean, and made under the settings that decide here?"""
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
    # of the settings that decide here: the other job may have obeyed the head's
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
    """Are there exactly the runs that a gate call makes, each as it would make it?"""
    # the plan is rebuilt: what a run was asked for is not taken from the folder
    base, own = plan_base(), plan_base(Commit.BASE)
    # each base run says whose environment it had, so it decides which of the two plans is meant
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
    # whether the first run was enough, `refuse_lone_run` asks
    lone = (planned_labels[:1],) if request.one_may_do else ()
    # a fault ends them early, and is reported instead of their result
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
    """The interrupted and the resumed run as this call would make them, if it makes any."""
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
    """Whether runs are missing because two strict ones differ, or one can never pass.

    Then none of those that are missing could make it a pass.
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
    """Are the runs of further seeds all there, or none, each as this call would make it?"""
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
    # the exit code of a run that was interrupted is that of a signal, or its handler's own
    code = 0 if planned.preemption is None else record.exit_code
    cluster, isolation = request.settings.cluster, record.isolation
    asked = (planned.mode, planned.commit, planned.environment, command, code, False)
    given = (record.mode, record.commit, record.environment)
    ended = (record.argv, record.exit_code, record.timed_out)
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
    """The weakest isolation that any run says it had."""
    runs = [record.isolation for record in records_of(evidence)]
    # one run that was kept apart less could have told the others
    weakest = min((run.mode for run in runs), key=lambda mode: mode.strength)
    guards = [run.guard for run in runs if run.guard is not None]
    return Isolation(
        job=next((run.job for run in runs if run.job is not None), None),
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
