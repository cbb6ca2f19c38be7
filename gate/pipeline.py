"""The story on one page: run, judge, record. Each function hands one room's product to the next."""

from __future__ import annotations

from dataclasses import dataclass

from gate.baseline.record import first_not_finite, propose_entry, read_baseline, with_entry
from gate.baseline.select import Selection, select_entry
from gate.comparison.canary import run_canary
from gate.comparison.compare import compare_results
from gate.comparison.cost import determinism_cost
from gate.diagnosis.first_divergence import diagnose
from gate.errors import EvidenceError, RunError, SettingsError
from gate.execution.plan import plan_base, plan_census, plan_gate, plan_record
from gate.records.baseline import Baseline
from gate.records.census import CensusReport
from gate.records.comparison import Comparison
from gate.records.evidence import EvidenceSet, RunEvidence
from gate.records.request import GateRequest
from gate.records.runs import Isolation
from gate.records.verdict import Outcome, Verdict
from gate.session import Edges, Session
from gate.settings.load import settings_digest, training_digest
from gate.verdict.assemble import Assessment, assemble
from gate.verdict.lattice import Facts, decide
from gate.verdict.operators import census_report

MAX_BASELINE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Gated:
    """What a gate call found: the verdict, what it rests on, and the baseline it would propose."""

    verdict: Verdict
    evidence: EvidenceSet
    baseline: Baseline | None
    proposed: Baseline | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baselines:
    """The baseline that decides, and the one that the pull request itself brings, if it does."""

    trusted: Baseline | None
    brought: Baseline | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """The runs of a gate call, not judged; `census_failure` says why one of them is not there."""

    evidence: EvidenceSet
    isolation: Isolation
    census_failure: str = ""


def gate(request: GateRequest, edges: Edges) -> Gated:
    """Run the training, run the base commit where only that can decide, and judge."""
    # what decides is read before any training code runs
    baselines = read_baselines(request, edges)
    ran = train_all(request, edges, baselines)
    return judge(request, baselines, ran.evidence, ran.isolation, census_failure=ran.census_failure)


def train_all(request: GateRequest, edges: Edges, baselines: Baselines) -> Ran:
    """All runs of a gate call, the base commit's too where only those can decide."""
    with Session(request, edges) as session:
        runs = tuple(session.run(planned) for planned in plan_gate())
        if _needs_base_run(request, runs[0], baselines.trusted):
            runs += tuple(session.run(planned) for planned in plan_base())
        counted, failure = _census_run(session) if request.settings.census else ((), "")
        evidence = session.evidence((*runs, *counted))
        return Ran(evidence=evidence, isolation=session.isolation, census_failure=failure)


def take_census(request: GateRequest, edges: Edges) -> CensusReport:
    """One run that counts operators; nothing is judged."""
    with Session(request, edges) as session:
        evidence = session.evidence((session.run(plan_census()),))
    report = census_report(evidence)
    return report if report is not None else CensusReport(complete=True)


def _census_run(session: Session) -> tuple[tuple[RunEvidence, ...], str]:
    """The census, or why it could not be taken: the verdict does not hang on it."""
    try:
        return (session.run(plan_census()),), ""
    except (RunError, EvidenceError) as fault:
        return (), fault.message


def judge(
    request: GateRequest,
    baselines: Baselines,
    evidence: EvidenceSet,
    isolation: Isolation,
    *,
    census_failure: str = "",
) -> Gated:
    """Compare what was run with itself, with the baseline and with the base; decide."""
    compare = request.settings.compare
    first, second = evidence.labelled("strict")[:2]
    default, base = evidence.labelled("default"), evidence.labelled("base")
    trusted = baselines.trusted
    selection = _select(request, first, trusted)
    entry = selection.entry
    repeat = _repeat((first, second), request)
    not_finite = first_not_finite(first.metrics)
    facts = Facts(
        settings=request.settings,
        repeat=repeat,
        canary=() if not_finite else run_canary(first, compare),
        not_finite=not_finite,
        baseline=compare_results(entry, first, compare, ("baseline", "strict-1"))
        if entry
        else None,
        same_training=selection.same_training,
        proposed=_proposed(request, first, baselines.brought),
        base_run=compare_results(base[0], first, compare, ("base-1", "strict-1")) if base else None,
        base_repeat=_repeat(base, request) if base else None,
        cost=determinism_cost((first, second), default, request.settings.cost),
    )
    assessment = Assessment(
        evidence=evidence,
        facts=facts,
        entry=entry,
        diagnosis=diagnose(repeat),
        default_repeat=_repeat(default, request) if default else None,
        isolation=isolation,
        settings_digest=settings_digest(request.settings),
        census=census_report(evidence, census_failure),
    )
    verdict = assemble(assessment, request)
    recordable = repeat.numerically_equal and not not_finite and not evidence.changed_files
    proposed = (
        with_entry(trusted, propose_entry(evidence, first, repeat, reason=request.baseline_reason))
        if recordable
        else None
    )
    return Gated(verdict=verdict, evidence=evidence, baseline=trusted, proposed=proposed)


def record_baseline(request: GateRequest, edges: Edges, reason: str) -> Baseline:
    """Run twice under strict settings; a result that is fit for it goes into the baseline."""
    # what a training may have touched is not read after it
    known = _work_tree_baseline(request, edges)
    with Session(request, edges) as session:
        evidence = session.evidence(tuple(session.run(planned) for planned in plan_record()))
    repeat = _repeat(evidence.runs, request)
    entry = propose_entry(evidence, evidence.runs[0], repeat, reason=reason)
    return with_entry(known, entry)


def accept_baseline(request: GateRequest, edges: Edges, proposed: bytes, reason: str) -> Baseline:
    """Take the entry that the last gate call proposed, with the reason why it may move."""
    source = "proposed-baseline.json"
    candidate = read_baseline(proposed, source)
    if candidate is None or not candidate.entries:
        raise SettingsError(f"{source}: holds no entry", hint="Run `repro-gate gate` first.")
    newest = max(candidate.entries, key=lambda entry: entry.recorded_at)
    entry = newest.model_copy(update={"reason": reason})
    return with_entry(_work_tree_baseline(request, edges), entry)


def _repeat(runs: tuple[RunEvidence, ...], request: GateRequest) -> Comparison:
    """The first two runs of one kind against each other."""
    first, second = runs[:2]
    return compare_results(
        first, second, request.settings.compare, (first.run.label, second.run.label)
    )


def read_baselines(request: GateRequest, edges: Edges) -> Baselines:
    """The base commit's baseline decides on a pull request, else the work tree's.

    Raises `DocumentError` for a broken file, before anything is trained.
    """
    if request.base_commit is None or not request.pull_request:
        return Baselines(trusted=_work_tree_baseline(request, edges), brought=None)
    trusted = _baseline_at(request.base_commit, request, edges)
    brought = _baseline_at(request.commit, request, edges) if request.commit else None
    return Baselines(trusted=trusted, brought=None if brought == trusted else brought)


def _baseline_at(commit: str, request: GateRequest, edges: Edges) -> Baseline | None:
    path = request.repository_path(request.settings.baseline.path)
    return read_baseline(edges.git.read_file(commit, path), f"{path} at {commit[:12]}")


def _work_tree_baseline(request: GateRequest, edges: Edges) -> Baseline | None:
    path = request.top / request.repository_path(request.settings.baseline.path)
    if not edges.files.exists(path):
        return None
    data = edges.files.read_bytes(path, max_bytes=MAX_BASELINE_BYTES)
    return read_baseline(data, str(path.relative_to(request.top)))


def _select(request: GateRequest, run: RunEvidence, baseline: Baseline | None) -> Selection:
    comparable = request.settings.compare.comparable_environment
    return select_entry(baseline, run.environment, training_digest(request.settings), comparable)


def _proposed(
    request: GateRequest, run: RunEvidence, brought: Baseline | None
) -> Comparison | None:
    """The run against the baseline that the pull request itself brings, when it brings one."""
    selection = _select(request, run, brought)
    if selection.entry is None or not selection.same_training:
        return None
    names = ("the pull request's baseline", "strict-1")
    return compare_results(selection.entry, run, request.settings.compare, names)


def _needs_base_run(request: GateRequest, run: RunEvidence, trusted: Baseline | None) -> bool:
    """Whether the environment moved so that only the base commit, run here, can decide."""
    if request.base_commit is None or not request.settings.policy.run_base_on_drift:
        return False
    selection = _select(request, run, trusted)
    if selection.entry is None or not selection.same_training:
        return False
    compare = request.settings.compare
    against = compare_results(selection.entry, run, compare, ("baseline", "strict-1"))
    if against.same_environment:
        return False
    facts = Facts(
        settings=request.settings,
        repeat=compare_results(run, run, compare, ("strict-1", "strict-1")),
        canary=run_canary(run, compare) if not first_not_finite(run.metrics) else (),
        baseline=against,
    )
    return decide(facts).outcome is Outcome.ENVIRONMENT_DRIFT
