"""Diagnoses kept evidence again, without a training and without settings to judge by.

The questions are those of a gate call, in its order. Did the preprocessing repeat? Do runs of the
commit differ? Does a resumed run? Does the commit differ from the base commit that ran beside it?
Does it differ from the baseline?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gate.baseline.entry import Baseline, BaselineEntry
from gate.baseline.select import select_entry
from gate.comparison.compare import compare_results, runs_of_the_same_work
from gate.comparison.data_moves import data_moves
from gate.comparison.differences import BASELINE_SIDE, Comparison
from gate.data.data_sets import brings_data, same_data, unrepeated_data
from gate.diagnosis.diagnosis import Diagnosis, ResumeResult
from gate.diagnosis.resume_causes import diagnose_resume
from gate.errors import EvidenceError
from gate.evidence.lock_files import MAX_BROUGHT_FILES, BroughtEnvironment
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.evidence.step_columns import PARAMETERS
from gate.pipelines.comparisons import diagnosis_of, kept_resume, most_telling
from gate.pipelines.kept_evidence import KeptEvidence
from gate.report.brief import brief_of
from gate.report.wording import short
from gate.settings.gate_settings import ComparisonSettings
from gate.text.digests import sha256_hex
from gate.text.document import Document
from gate.text.json_text import canonical_json
from gate.training.runs import Commit, RunMode
from gate.verdict.facts import Decision
from gate.verdict.resume_verdict import resume_fails, start_differs
from gate.verdict.verdict import Outcome, Verdict

DIAGNOSIS_SCHEMA: Final = "repro-gate.diagnosis/1"
Sentence = Annotated[str, Field(max_length=2000)]


class KeptDiagnosis(Document):
    """A diagnosis of kept evidence, without a judgement.

    `expected` and `observed` are the two sides that differ. Both are empty and `diagnosis` is None
    if nothing differs. `outcome` is a verdict's, or "equal"; of a package, that of its own verdict.
    `summary` has the words of the comment. `missing` names what the evidence lacks and why, one
    sentence each. `seal_checked` is always false: `repro-gate verify` checks seals.
    """

    schema_version: Literal["repro-gate.diagnosis/1"] = DIAGNOSIS_SCHEMA
    commit: str
    base_commit: str | None = None
    created_at: str
    outcome: str
    expected: str = ""
    observed: str = ""
    summary: str = ""
    diagnosis: Diagnosis | None = None
    missing: tuple[Sentence, ...] = ()
    seal_checked: Literal[False] = False


class Retold(Document):
    """What differs in kept evidence, as a verdict for the reports; None if nothing differs.

    `compared` names each pair of sides that was compared. `decided` is what the call of a package
    decided, None where that is the verdict's outcome or unknown.
    """

    commit: str
    verdict: Verdict | None
    decided: Outcome | None = None
    compared: tuple[str, ...]
    missing: tuple[Sentence, ...] = ()


PAIR: Final = 2
EQUAL: Final = "equal"
NO_BASELINE: Final = (
    "The baseline is not among the evidence, so no drift from it can be diagnosed: name its folder "
    "with --baseline."
)
NO_ENTRY: Final = (
    "The baseline holds no entry of this training (another command, step count, seed or machine), "
    "so no drift from it can be diagnosed."
)
NO_BASE_RUNS: Final = (
    "The base commit was not run: the gate does that when the environment changed, or when the "
    "change "
    "installs a new one."
)
NO_TRACE: Final = (
    "There is no operator trace: it needs two more trainings, which the gate makes after a "
    "difference unless diagnosis.escalate is false. So no operator is named."
)
NO_FULL_TRACE: Final = (
    "The operator traces themselves are not kept, since they can be large: they cannot be examined "
    "again."
)
NO_SECOND: Final = (
    "There is only one strict run, so nothing shows whether the commit is repeatable."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """A comparison that may be diagnosed, and the field of the verdict that it belongs to."""

    field: str
    outcome: Outcome
    comparison: Comparison


def diagnose_kept(kept: KeptEvidence) -> Retold:
    """Return the first difference in kept evidence, its cause, and what the evidence lacks.

    Raises `EvidenceError` if there is no strict run to start from.
    """
    evidence = kept.evidence
    strict = evidence.runs_of(RunMode.STRICT)
    if not strict:
        raise EvidenceError(
            "the evidence holds no strict run of the commit",
            hint="Only `repro-gate gate` and `repro-gate run` make evidence to diagnose.",
        )
    entry, why_none = _entry(kept, strict[0])
    # evidence in a folder has no settings, so compare without any tolerance
    settings = kept.settings.compare if kept.settings is not None else ComparisonSettings()
    compared = tuple(_compared(evidence, entry, settings))
    # the order of `_compared` is that of the decision: the first difference decides
    differing = next((pair for pair in compared if pair.comparison.differs), None)
    names = tuple(f"{pair.comparison.expected} and {pair.comparison.observed}" for pair in compared)
    missing = tuple(_missing(evidence, strict, differing, why_none))
    verdict = _first_of(evidence, strict[0], differing, entry)
    return Retold(commit=evidence.commit, verdict=verdict, compared=names, missing=missing)


def _first_of(
    evidence: EvidenceSet,
    first: RunEvidence,
    differing: _Compared | None,
    entry: BaselineEntry | None,
) -> Verdict | None:
    """Return the first difference, in the order in which a gate call asks; None without any."""
    if evidence.unrepeated is not None:
        return _plain_verdict(
            evidence, Outcome.NONDETERMINISTIC, unrepeated_data(evidence.unrepeated)
        ).model_copy(update={"unrepeated": evidence.unrepeated})
    if differing is not None and differing.field == "repeat":
        return _verdict(evidence, differing, entry)
    resumed = kept_resume(evidence, first)
    stopped = None if resumed is None else start_differs(resumed) or resume_fails(resumed)
    if resumed is not None and stopped is not None:
        return _resume_verdict(evidence, resumed, stopped)
    return None if differing is None else _verdict(evidence, differing, entry)


def _resume_verdict(evidence: EvidenceSet, resumed: ResumeResult, decision: Decision) -> Verdict:
    differs = decision.outcome is Outcome.RESUME_DIFFERS
    diagnosis = diagnose_resume(resumed) if differs else diagnosis_of(decision, evidence)
    return _plain_verdict(evidence, decision.outcome, decision.cause).model_copy(
        update={"resume": resumed, "diagnosis": diagnosis}
    )


def _compared(
    evidence: EvidenceSet, entry: BaselineEntry | None, settings: ComparisonSettings
) -> Iterator[_Compared]:
    first, *others = evidence.runs_of(RunMode.STRICT)
    label = first.run.label
    apart = Outcome.NONDETERMINISTIC
    if others:
        repeats = tuple(
            compare_results(first, run, settings, (label, run.run.label)) for run in others
        )
        yield _Compared(field="repeat", outcome=apart, comparison=most_telling(repeats))
    for alike in runs_of_the_same_work(first, evidence.runs_of(RunMode.DEFAULT), settings):
        yield _Compared(field="repeat", outcome=apart, comparison=alike)
    for base in evidence.runs_of(RunMode.STRICT, Commit.BASE)[:1]:
        against = compare_results(base, first, settings, (base.run.label, label))
        # separate environments exist only if the change installs another one
        own = not against.same_environment and bool(_moved_locks(evidence))
        drift = Outcome.DEPENDENCY_DRIFT if own else Outcome.CODE_DRIFT
        if brings_data(evidence.base_data, evidence.data):
            drift = Outcome.DATA_DRIFT
        yield _Compared(field="base_run", outcome=drift, comparison=against)
    if entry is not None:
        against = compare_results(entry, first, settings, (BASELINE_SIDE, label))
        drift = Outcome.CODE_DRIFT if against.same_environment else Outcome.ENVIRONMENT_DRIFT
        # other data cannot give the entry's result, whatever the code does
        if not same_data(entry.data, evidence.data):
            drift = Outcome.DATA_DRIFT
        yield _Compared(field="baseline", outcome=drift, comparison=against)


def _moved_locks(evidence: EvidenceSet) -> tuple[str, ...]:
    """Return the paths of lock files whose content differs between the two commits."""
    head, base = (
        {lock.path: lock.sha256 for lock in locks}
        for locks in (evidence.locks, evidence.base_locks)
    )
    moved = sorted(path for path in head.keys() | base.keys() if head.get(path) != base.get(path))
    return tuple(moved[:MAX_BROUGHT_FILES])


def environment_of_evidence(evidence: EvidenceSet) -> BroughtEnvironment:
    """Return what the change installs: lock files that moved, and an image that its runs had."""
    images = [
        next((run.run.isolation.image for run in evidence.runs_of(RunMode.STRICT, commit)), "")
        for commit in (Commit.BASE, Commit.HEAD)
    ]
    base_image, head_image = images if all(images) else ("", "")
    return BroughtEnvironment(
        files=_moved_locks(evidence), base_image=base_image, head_image=head_image
    )


def _entry(kept: KeptEvidence, run: RunEvidence) -> tuple[BaselineEntry | None, str]:
    """Return the closest entry of this training, or the reason why there is none."""
    if kept.baseline is None:
        return None, NO_BASELINE
    digest = kept.evidence.training_digest
    entries = tuple(
        entry
        for entry in kept.baseline.entries
        # the entry contains the settings, the evidence only their digest
        if sha256_hex(canonical_json(entry.training)) == digest
    )
    if not entries:
        return None, NO_ENTRY
    fitting = Baseline(entries=entries)
    comparable = kept.settings.compare.comparable_environment if kept.settings else ()
    chosen = select_entry(fitting, run.environment, entries[0].training, comparable).entry
    return (chosen, "") if chosen is not None else (None, NO_ENTRY)


def _plain_verdict(evidence: EvidenceSet, outcome: Outcome, cause: str) -> Verdict:
    return Verdict(
        outcome=outcome,
        passes=False,
        cause=cause,
        commit=evidence.commit,
        base_commit=evidence.base_commit,
        created_at=evidence.created_at,
        runs=tuple(run.run for run in evidence.runs),
        data=evidence.data,
    )


def _verdict(evidence: EvidenceSet, compared: _Compared, entry: BaselineEntry | None) -> Verdict:
    """Return the difference as a verdict for the reports, which is no judgement."""
    decision = Decision(
        outcome=compared.outcome, passes=False, cause="", decided=compared.comparison
    )
    diagnosis = diagnosis_of(decision, evidence)
    cause = diagnosis.cause if diagnosis is not None else ""
    # without an entry, data that the change itself moved is known from the base commit's
    data_brought = brings_data(evidence.base_data, evidence.data)
    own = evidence.base_data if data_brought else evidence.data
    recorded = own if entry is None else entry.data
    return _plain_verdict(evidence, compared.outcome, cause).model_copy(
        update={
            "brought": environment_of_evidence(evidence),
            "data_moved": data_moves(recorded, evidence.data),
            "data_brought": data_brought,
            "diagnosis": diagnosis,
            compared.field: compared.comparison,
        }
    )


def _missing(
    evidence: EvidenceSet,
    strict: tuple[RunEvidence, ...],
    differing: _Compared | None,
    why_no_entry: str,
) -> Iterator[str]:
    """Yield one sentence for each thing whose absence limits the diagnosis."""
    if len(strict) < PAIR:
        yield NO_SECOND
    if differing is not None:
        # parameters only show the result of a step, and no earlier quantity in it
        if set(differing.comparison.compared_fingerprints) <= {PARAMETERS}:
            yield _without_fingerprints(differing.comparison)
        if evidence.trace is None:
            yield NO_TRACE
        elif not evidence.trace.names_a_call:
            yield NO_FULL_TRACE
    # if runs of the commit differ, the baseline is irrelevant
    if why_no_entry and (differing is None or differing.field == "base_run"):
        yield why_no_entry
    if why_no_entry and differing is None and not evidence.runs_of(RunMode.STRICT, Commit.BASE):
        yield NO_BASE_RUNS


def _without_fingerprints(comparison: Comparison) -> str:
    return (
        f"{comparison.expected} and {comparison.observed} have no fingerprints in common but the "
        "parameters' (none were recorded, or at other steps), so nothing distinguishes what came "
        "before the update."
    )


def kept_diagnosis(retold: Retold, created_at: str) -> KeptDiagnosis:
    """Return the document for programs, with the words of the comment."""
    verdict = retold.verdict
    if verdict is None:
        return KeptDiagnosis(
            commit=retold.commit,
            created_at=created_at,
            outcome=EQUAL if retold.decided is None else retold.decided.value,
            summary=_summary(retold, EQUAL, equal_words(retold)),
            missing=retold.missing,
        )
    resumed = None if verdict.resume is None else verdict.resume.compared
    by_resume = resumed if verdict.outcome is Outcome.RESUME_DIFFERS else None
    compared = by_resume or _deciding(verdict)
    return KeptDiagnosis(
        commit=retold.commit,
        base_commit=verdict.base_commit,
        created_at=created_at,
        outcome=(retold.decided or verdict.outcome).value,
        expected=compared.expected if compared is not None else "",
        observed=compared.observed if compared is not None else "",
        summary=_summary(retold, verdict.outcome, brief_of(verdict).happened),
        diagnosis=verdict.diagnosis,
        missing=retold.missing,
    )


def _summary(retold: Retold, evidence_alone: str, happened: str) -> str:
    if retold.decided is None:
        return happened
    return f"{otherwise_words(retold.decided, evidence_alone)} {happened}"


def otherwise_words(decided: Outcome, evidence_alone: str) -> str:
    """Return the sentences for a call that decided otherwise than its evidence shows.

    `evidence_alone` is the outcome by the evidence, or "equal".
    """
    return (
        f"The package's own verdict is {decided}. Its call knew what the package does not have, "
        "such as a new baseline in the pull request: its verdict.json says why. Without that, the "
        f"evidence in the package gives {evidence_alone}:"
    )


def _deciding(verdict: Verdict) -> Comparison | None:
    """Return the first comparison in which something differs, in the order of the decision."""
    all_compared = (verdict.repeat, verdict.base_run, verdict.baseline)
    made = [comparison for comparison in all_compared if comparison is not None]
    differing = (comparison for comparison in made if comparison.differs)
    return next(differing, made[0] if made else None)


def equal_words(retold: Retold) -> str:
    """Return the sentence that nothing differs in what could be compared."""
    if not retold.compared:
        return f"Nothing to compare: commit {short(retold.commit)} ran once."
    return (
        f"Nothing to diagnose: of commit {short(retold.commit)}, {'; '.join(retold.compared)} are "
        "equal, bit for bit."
    )
