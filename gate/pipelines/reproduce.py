"""Runs a package again on this machine and judges it by its own numbers, without a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from gate.baseline.select import key_place
from gate.comparison.compare import compare_results
from gate.comparison.data_moves import data_moves
from gate.comparison.differences import Comparison
from gate.comparison.level_judgement import judge_level, seed_result
from gate.comparison.level_records import LevelResult
from gate.comparison.statistical_tests import (
    MetricSpread,
    SpreadPlace,
    last_values,
    spreads,
    values_of_seeds,
)
from gate.diagnosis.diagnosis import Diagnosis, ResumeResult, ResumeState
from gate.diagnosis.resume_causes import diagnose_resume
from gate.errors import EvidenceError, RunError
from gate.evidence.run_evidence import EvidenceSet, RunEvidence, SeededRun
from gate.evidence.step_work import SeedResult
from gate.isolation.confined_look import LARGE_ANSWER_BYTES, read_apart, reading_seconds
from gate.package.seal_records import Expected, VerifiedPackage
from gate.pipelines.adapters import Adapters
from gate.pipelines.comparisons import diagnosis_of, most_telling, repeats_of, resume_result
from gate.pipelines.kept_evidence import KeptEvidence, open_kept_package
from gate.pipelines.opening import (
    MAX_CHANGED_LINES,
    OLD_HINT,
    EnvironmentPart,
    OpenedPackage,
    Reproduction,
    ReproductionCall,
    ReproductionOutcome,
    SealChecked,
    check_same_file,
    open_for_reproduction,
)
from gate.pipelines.prepared import prepare
from gate.pipelines.resume_runs import run_resumed
from gate.pipelines.seed_results import head_results, unfit_seeds
from gate.pipelines.seed_runs import run_seeds
from gate.pipelines.snapshots import held_out
from gate.pipelines.trainings import Trainings
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import SEEDS_END, Level
from gate.system.clock import SystemClock
from gate.system.files.port import Files
from gate.system.git.changes import ChangedLines
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line
from gate.training.environment import Environment
from gate.training.plan import plan_record
from gate.training.runs import RunMode
from gate.verdict.facts import Decision, answer_of
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Answer, Outcome

PACKAGE_SIDE: Final = "the package"
WORK_TREE: Final = "work tree"
Opened = tuple[KeptEvidence, SealChecked]
OPENED: Final[RecordForm[Opened]] = RecordForm(Opened)
# the caller decides who has to have sealed the package
Verified = Callable[[Path, Expected], VerifiedPackage]
RESUMES: Final = frozenset((ResumeState.EXACT, ResumeState.WITHIN))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    """The results of the runs here, compared with those in the package."""

    evidence: EvidenceSet
    then: RunEvidence
    comparison: Comparison
    repeat: Comparison
    same_code: bool
    spread: tuple[MetricSpread, ...]
    judged: LevelResult | None
    resume: ResumeResult | None
    resume_then: ResumeResult | None


def checked_and_run(
    call: ReproductionCall,
    verified: Verified | None,
    files: Files,
    adapters_for: Callable[[Path], Adapters],
) -> Reproduction:
    """Check a package's seal and run the package; without `verified` the seal is not checked.

    Raises `AttestationError` for an invalid seal, and what `reproduce` raises.
    """
    started_at = SystemClock().now()
    # checked before anything runs: the package itself names the command that is started below
    kept, seal = _opened(call.package, verified, files)
    # the package is read before the output folder is claimed, so an unusable one changes nothing
    with held_out(call.out, files):
        opened = open_for_reproduction(call, kept, files, adapters_for)
        return reproduce(opened, seal, seeds=call.seeds, started_at=started_at)


def _opened(package: Path, verified: Verified | None, files: Files) -> Opened:
    """Read in a confined child what the package contains and who sealed it."""

    def look() -> Opened:
        kept = open_kept_package(files, package)
        return kept, _seal_checked(package, kept, verified)

    return read_apart(
        OPENED,
        look,
        what=safe_line(str(package)),
        seconds=reading_seconds(package),
        answer_bytes=LARGE_ANSWER_BYTES,
    )


def _seal_checked(package: Path, kept: KeptEvidence, verified: Verified | None) -> SealChecked:
    """Return who sealed the package; raise `AttestationError` for an invalid seal."""
    if verified is None:
        return SealChecked()
    if kept.call is None:
        raise EvidenceError("the package does not say which call it is of", hint=OLD_HINT)
    # the seal must be about the commit that the package itself names as its own
    seal = verified(package, Expected(commit=kept.call.commit))
    # the file was opened twice; refuse it if it was replaced in between
    check_same_file(kept, seal.package_sha256)
    return SealChecked(key_id=seal.key_id, identity=seal.identity)


def reproduce(
    opened: OpenedPackage,
    seal: SealChecked,
    *,
    seeds: int,
    started_at: datetime,
) -> Reproduction:
    """Run the package's commit at least twice and compare with the package's results.

    Raises what a gate call raises for a failed run, and `EvidenceError` for a package without a
    strict run.
    """
    # asked now: git does not look at the clone after a training
    changed = _changed_lines(opened)
    seen = _run(opened, seeds)
    outcome = _outcome(seen, opened.kept.settings or opened.request.settings)
    now = opened.adapters.clock.now()
    kept, request = opened.kept.evidence, opened.request
    code = "" if request.commit == kept.commit else request.commit or WORK_TREE
    return Reproduction(
        outcome=outcome,
        commit=kept.commit,
        code=code,
        same_code=seen.same_code,
        changed_lines=changed,
        changed_files=seen.evidence.changed_files[:MAX_CHANGED_LINES],
        source=opened.source,
        package_sha256=opened.kept.package_sha256,
        seal=seal,
        made_at=kept.created_at,
        created_at=now.isoformat(),
        wall_seconds=(now - started_at).total_seconds(),
        runs=len(seen.evidence.runs),
        environment=environment_parts(
            seen.comparison, seen.then.environment, seen.evidence.runs[0].environment
        ),
        data_moved=data_moves(kept.data, seen.evidence.data),
        comparison=seen.comparison,
        repeat=seen.repeat,
        spread=seen.spread,
        judged=seen.judged,
        resume=seen.resume,
        resume_then=None if seen.resume_then is None else seen.resume_then.state,
        diagnosis=None if outcome.good else _diagnosis(outcome, seen),
    )


def _changed_lines(opened: OpenedPackage) -> tuple[ChangedLines, ...]:
    """Return the changed lines if another commit than the package's is run."""
    commit, other = opened.kept.evidence.commit, opened.request.commit
    if other is None or other == commit:
        return ()
    return opened.adapters.git.changed_lines(commit, other).hunks[:MAX_CHANGED_LINES]


def _run(opened: OpenedPackage, seeds: int) -> _Seen:
    request, kept = _with_seeds(opened.request, seeds), opened.kept.evidence
    settings, then = request.settings, kept.runs_of(RunMode.STRICT)[0]
    further: tuple[SeededRun, ...] = ()
    with prepare(
        request, opened.adapters, recorded=kept.data, at_a_time=request.strict_runs
    ) as prepared:
        trainings = Trainings(prepared)
        runs = trainings.together(plan_record(request.strict_runs))
        repeat = most_telling(repeats_of(runs, settings))
        names = (PACKAGE_SIDE, runs[0].run.label)
        against = compare_results(then, runs[0], settings.compare, names)
        differs = repeat.numerically_equal and not against.numerically_equal
        # as many seeds as are requested, or else the package's own
        if differs and (seeds or kept.seeded):
            further = run_seeds(trainings, runs[0])
        # only if the package's call resumed too; if runs differ, a resume proves nothing
        resumes = kept.resume is not None and repeat.numerically_equal
        resumed = run_resumed(trainings, runs[0]) if resumes else ()
        evidence = trainings.ended.evidence((*runs, *resumed), further)
    resume = resume_result(evidence, runs[0], settings, due=resumes)
    if resume is not None and resume.fault is not None and settings.policy.resume == "fail":
        fault = resume.fault
        raise RunError(
            f"the resume could not be repeated: {fault.message}",
            hint=fault.hint,
            details=fault.details,
        )
    same_code = evidence.snapshot_digest == kept.snapshot_digest
    # with other code, a spread would excuse the very change that the user asks about
    excusable = same_code and not against.numerically_equal
    return _Seen(
        evidence=evidence,
        then=then,
        comparison=against,
        repeat=repeat,
        same_code=same_code,
        spread=_spread(kept, runs[0], further, seeds, settings) if excusable else (),
        judged=_judged(kept, evidence, settings) if further and not seeds else None,
        resume=resume,
        resume_then=resume_result(kept, then, settings, due=False) if resumes else None,
    )


def _with_seeds(request: GateRequest, seeds: int) -> GateRequest:
    """Return the request with `seeds` seeds of its own, if the caller asks for some."""
    if not seeds:
        return request
    settings = request.settings
    # seeds follow train.seed and wrap around at 2^32, the limit of NumPy's seed
    seeds_asked = tuple((settings.train.seed + number) % SEEDS_END for number in range(seeds))
    policy = settings.policy.model_copy(update={"level": Level.STATISTICAL})
    here = settings.model_copy(update={"seeds": seeds_asked, "policy": policy})
    return replace(request, settings=here)


def _spread(
    kept: EvidenceSet,
    first: RunEvidence,
    further: tuple[SeededRun, ...],
    seeds: int,
    settings: GateSettings,
) -> tuple[MetricSpread, ...]:
    """Compare each metric's last value with its spread, over seeds if there are any."""
    then = kept.runs_of(RunMode.STRICT)[0]
    if seeds:
        results = _with_first(first, further, settings)
        judged = last_values(then)
        values = {metric: values_of_seeds(results, metric) for metric in judged}
        return spreads(judged, values, SpreadPlace.SEEDS_HERE)
    judged = last_values(first)
    if kept.seeded:
        results = _with_first(then, kept.seeded, settings)
        values = {metric: values_of_seeds(results, metric) for metric in judged}
        return spreads(judged, values, SpreadPlace.SEEDS_THEN)
    runs = [last_values(run) for run in (then, *kept.runs_of(RunMode.DEFAULT))]
    values = {metric: tuple(run[metric] for run in runs if metric in run) for metric in judged}
    return spreads(judged, values, SpreadPlace.RUNS_THEN)


def _with_first(
    run: RunEvidence, further: tuple[SeededRun, ...], settings: GateSettings
) -> tuple[SeedResult, ...]:
    own = seed_result(run, settings.train.seed, "", settings.policy)
    return (own, *(seed.result for seed in further))


def _judged(kept: EvidenceSet, evidence: EvidenceSet, settings: GateSettings) -> LevelResult | None:
    """Apply the package's own level to its seeds and to those trained here."""
    if not settings.policy.level.needs_seeds or unfit_seeds(evidence, settings):
        return None
    return judge_level(
        head_results(kept, settings), head_results(evidence, settings), settings.policy
    )


def _outcome(seen: _Seen, settings: GateSettings) -> ReproductionOutcome:
    """Return the outcome; a resume matters only if everything else is reproduced."""
    outcome = _outcome_of_runs(seen, settings)
    resume, then = seen.resume, seen.resume_then
    if not outcome.good or settings.policy.resume == "warn" or resume is None:
        return outcome
    if _resumes(resume):
        return outcome
    if resume.state is ResumeState.NOT_REPEATED:
        return ReproductionOutcome.NOT_REPEATABLE
    # a package whose own resume differs promises none, so one that differs here is no news
    return ReproductionOutcome.RESUME_DIFFERS if then is None or _resumes(then) else outcome


def _resumes(resume: ResumeResult) -> bool:
    # a torn checkpoint after a kill is a failed resume, even if the resumed run is equal
    return resume.state in RESUMES and resume.torn is None


def _outcome_of_runs(seen: _Seen, settings: GateSettings) -> ReproductionOutcome:
    """Return the first outcome that applies, from the strictest on."""
    # asked first: runs that differ here say nothing about the package
    if not seen.repeat.numerically_equal:
        return ReproductionOutcome.NOT_REPEATABLE
    answer = answer_of(seen.comparison, settings)
    if answer is Answer.EQUAL:
        return ReproductionOutcome.REPRODUCED
    if answer is Answer.INSIDE:
        return ReproductionOutcome.WITHIN_TOLERANCE
    if seen.judged is not None:
        level = seen.judged.reached
        return (
            ReproductionOutcome.WITHIN_SPREAD
            if level is not None and seen.same_code
            else ReproductionOutcome.DIFFERS
        )
    # in an equal environment equal bits are promised, so no spread is an excuse there
    excused = seen.same_code and not seen.comparison.same_environment and seen.comparison.comparable
    if excused and seen.spread and all(spread.inside for spread in seen.spread):
        return ReproductionOutcome.WITHIN_SPREAD
    return ReproductionOutcome.DIFFERS


def _diagnosis(outcome: ReproductionOutcome, seen: _Seen) -> Diagnosis | None:
    """Return where the results first differ, diagnosed as in a gate call."""
    if outcome is ReproductionOutcome.RESUME_DIFFERS and seen.resume is not None:
        return diagnose_resume(seen.resume)
    if outcome is ReproductionOutcome.NOT_REPEATABLE:
        decided, kind = seen.repeat, Outcome.NONDETERMINISTIC
    elif not seen.same_code:
        decided, kind = seen.comparison, Outcome.CODE_DRIFT
    else:
        decided, kind = seen.comparison, Outcome.ENVIRONMENT_DRIFT
    return diagnosis_of(
        Decision(outcome=kind, passes=False, cause="", decided=decided), seen.evidence
    )


def environment_parts(
    comparison: Comparison, then: Environment, here: Environment
) -> tuple[EnvironmentPart, ...]:
    """Return every part of either environment, in the order of the key that chooses entries."""
    details = {change.part: change.details for change in comparison.environment}
    moved = set(then.moved(here))
    names = sorted(then.parts.keys() | here.parts.keys(), key=key_place)
    return tuple(
        EnvironmentPart(
            name=name,
            then=then.part(name),
            here=here.part(name),
            same=name not in moved,
            details=details.get(name, ()),
        )
        for name in names
    )
