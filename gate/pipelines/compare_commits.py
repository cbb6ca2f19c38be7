"""Compares base and head on request: both in one plan, side by side, without a judgement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gate.checkpoint.digest import captured_digest
from gate.comparison.base_head import metrics_beside, speed_ratio
from gate.comparison.checks import first_not_finite
from gate.comparison.compare import compare_results, distinct_results
from gate.comparison.differences import Comparison
from gate.comparison.measurements import (
    MAX_PLACES,
    MAX_TENSORS,
    Closeness,
    ComparedCommits,
    ComparedSide,
)
from gate.comparison.performance import performance_of
from gate.errors import EvidenceError, RepositoryError, RunError, SettingsError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.pipelines.adapters import Adapters
from gate.pipelines.policy_files import HeadFiles
from gate.pipelines.prepared import prepare
from gate.pipelines.reader_questions import SettingsChangesQuestion
from gate.pipelines.snapshots import prepare_out
from gate.pipelines.trainings import Trainings
from gate.settings.policy_change import PolicyChange
from gate.training.plan import plan_compare
from gate.training.runs import Commit, PlannedRun, RunMode
from gate.verdict.facts import answer_of
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Answer

SHORT = 12
BASE, HEAD = "base", "head"
WHOLE_FILE, FORMATTING = "the whole file", "formatting only"
# from best to worst; `REFUSED` means that only `require_bitwise` objects, within tolerance
CLOSENESS = {
    Answer.EQUAL: Closeness.EQUAL,
    Answer.INSIDE: Closeness.WITHIN_TOLERANCE,
    Answer.REFUSED: Closeness.WITHIN_TOLERANCE,
    Answer.OUTSIDE: Closeness.APART,
    Answer.NOT_COMPARABLE: Closeness.NOT_COMPARABLE,
}
ORDER = tuple(dict.fromkeys(CLOSENESS.values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The document, and its runs, from which a page is drawn."""

    document: ComparedCommits
    runs: tuple[RunEvidence, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sides:
    """The runs by commit and mode, and the caller's name for the base."""

    evidence: EvidenceSet
    base_name: str

    def strict(self, commit: Commit) -> tuple[RunEvidence, ...]:
        return self.evidence.runs_of(RunMode.STRICT, commit)

    def default(self, commit: Commit) -> tuple[RunEvidence, ...]:
        return self.evidence.runs_of(RunMode.DEFAULT, commit)


def compare_commits(
    request: GateRequest, adapters: Adapters, *, base_name: str, rounds: int
) -> Compared:
    """Run base and head in `rounds` rounds and compare them.

    Raises `SettingsError` if there is only one commit, or an odd number of rounds would favour one.
    """
    if request.base_commit is None:
        raise SettingsError(
            "--base names no commit", hint="Name a branch, a tag, a hash or HEAD~1."
        )
    if rounds % 2:
        raise SettingsError(
            f"--runs {rounds}: an odd number lets one of the two commits go first more often",
            hint=f"Use --runs {rounds + 1}.",
        )
    _refuse_one_commit(request, adapters, base_name)
    # before any training code runs, like every read of the clone
    changes, notes = _settings_changes(request, adapters)
    # on request the base commit runs even if the policy never runs it
    with prepare(request, adapters, runs_base=True) as prepared:
        trainings = Trainings(prepared)
        runs = tuple(_run(trainings, planned, base_name) for planned in plan_compare(rounds))
        evidence = trainings.ended.evidence(runs)
        isolation = trainings.ended.isolation.described
    document = compared_document(request, evidence, base_name=base_name, isolation=isolation)
    updates = {"settings_changes": changes, "notes": (*notes, *document.notes)}
    return Compared(document=document.model_copy(update=updates), runs=evidence.runs)


def _refuse_one_commit(request: GateRequest, adapters: Adapters, base_name: str) -> None:
    head = request.commit or adapters.git.resolve("HEAD")
    if head != request.base_commit:
        return
    # Uncommitted changes count as a separate head, if they are allowed. The output folder is no
    # such change, but git ignores it only after `prepare_out`.
    prepare_out(request.out, adapters.files)
    if request.commit is None and adapters.git.changed_files():
        return
    raise SettingsError(
        f"--base {base_name} is the commit itself, {head[:SHORT]}: there is nothing to compare",
        hint="Name another commit, such as HEAD~1; `repro-gate noise` repeats one and the same.",
    )


def _settings_changes(
    request: GateRequest, adapters: Adapters
) -> tuple[tuple[PolicyChange, ...], tuple[str, ...]]:
    """Return what the base's settings file says differently, or a note why that is unknown."""
    base = request.base_commit or ""
    file = request.repository_path(request.config_name)
    before = adapters.git.read_file(base, file)
    if before is None:
        return (), (f"the base commit has no {file}: both ran under the work tree's",)
    with HeadFiles(adapters, request.top) as files:
        changes = files.changes(SettingsChangesQuestion, file, before, request.settings_text)
    if [change.what for change in changes] == [WHOLE_FILE]:
        # only the base's file can be unreadable here: the work tree's was read before
        why = changes[0].after
        return (), (f"the base commit's {file} {why}; both ran under the work tree's",)
    return tuple(change for change in changes if change.what != FORMATTING), ()


def _run(trainings: Trainings, planned: PlannedRun, base_name: str) -> RunEvidence:
    """Make a run; name a failing base by the name that the caller gave it."""
    if planned.commit is Commit.BASE and trainings.prepared.own_environments:
        planned = replace(planned, environment=Commit.BASE)
    try:
        return trainings.run(planned)
    except (RunError, EvidenceError, RepositoryError) as fault:
        if planned.commit is not Commit.BASE:
            raise
        hint = f"Name a base that trains under this repro-gate.yml. {fault.hint}".strip()
        raise RunError(
            f"the base commit ({base_name}): {fault.message}", hint=hint, details=fault.details
        ) from fault


def compared_document(
    request: GateRequest, evidence: EvidenceSet, *, base_name: str, isolation: str
) -> ComparedCommits:
    """Return the runs of both commits side by side, without the changes of settings."""
    sides, cost = _Sides(evidence=evidence, base_name=base_name), request.settings.cost
    base, head = sides.strict(Commit.BASE), sides.strict(Commit.HEAD)
    first = _between(base[0], head[0], request)
    sites = [_side(request, sides, commit) for commit in (Commit.BASE, Commit.HEAD)]
    metrics = metrics_beside(base[0], head[0], first)
    names = {series.name for run in (base[0], head[0]) for series in run.metrics}
    return ComparedCommits(
        closeness=_closeness(base, head, request),
        repeatable=all(side.strict_results == 1 for side in sites),
        base=sites[0],
        head=sites[1],
        created_at=evidence.created_at,
        settings_digest=evidence.settings_digest,
        training_digest=evidence.training_digest,
        isolation=isolation,
        seed=request.settings.train.seed,
        rounds=len(base),
        order=tuple(run.run.label for run in evidence.runs),
        first=first.first,
        base_steps=first.steps_expected,
        head_steps=first.steps_observed,
        metrics=metrics,
        metrics_omitted=len(names) - len(metrics),
        compared_tensors=first.compared_tensors,
        differing_tensors=len(first.tensors),
        tensors=first.tensors[:MAX_TENSORS],
        optimizer_settings=first.optimizer_settings,
        environment=head[0].environment,
        environment_changes=first.environment,
        performance=performance_of(evidence.runs, cost),
        ratios=(
            speed_ratio(RunMode.STRICT, base, head, cost),
            speed_ratio(
                RunMode.DEFAULT, sides.default(Commit.BASE), sides.default(Commit.HEAD), cost
            ),
        ),
        notes=_notes(request, sides),
    )


def _side(request: GateRequest, sides: _Sides, commit: Commit) -> ComparedSide:
    evidence, runs = sides.evidence, sides.strict(commit)
    is_base = commit is Commit.BASE
    # each place once over all runs, because a script that seeds does so in every run
    places = dict.fromkeys(
        override.place for run in runs for override in run.overrides if override.seeds
    )
    return ComparedSide(
        name=sides.base_name if is_base else HEAD,
        commit=(request.base_commit or "") if is_base else evidence.commit,
        changed_files=() if is_base else evidence.changed_files,
        runs=len(runs),
        strict_results=distinct_results(runs),
        default_results=distinct_results(sides.default(commit)),
        checkpoint_digest=captured_digest(runs[0].checkpoint.tensors),
        seeded_at=tuple(places)[:MAX_PLACES],
    )


def _between(base: RunEvidence, head: RunEvidence, request: GateRequest) -> Comparison:
    return compare_results(base, head, request.settings.compare, (BASE, HEAD))


def _closeness(
    base: tuple[RunEvidence, ...], head: tuple[RunEvidence, ...], request: GateRequest
) -> Closeness:
    """Return the worst answer between the first run of each side and all runs of the other."""
    # two commits are only as close as their runs that are furthest apart
    pairs = [(base[0], run) for run in head] + [(run, head[0]) for run in base[1:]]
    answers = (answer_of(_between(*pair, request), request.settings) for pair in pairs)
    return max((CLOSENESS[answer] for answer in answers), key=ORDER.index)


def _notes(request: GateRequest, sides: _Sides) -> tuple[str, ...]:
    """Return what a reader should know before trusting a figure."""
    evidence, notes = sides.evidence, list[str]()
    for commit in (Commit.BASE, Commit.HEAD):
        allowed = request.settings.compare.allow_not_finite
        odd = first_not_finite(sides.strict(commit), allowed)
        if odd is not None:
            where = "at the end" if odd.step is None else f"at step {odd.step}"
            notes.append(f"{commit.value}: {odd.name} is not finite {where} ({odd.value})")
    missed = evidence.gpu_missed
    return (*notes, *((f"the training used no GPU: {missed.found}",) if missed else ()))
