"""Findings on operators: which lack a deterministic form, and which torch's flag does not cover.

The flag is `torch.use_deterministic_algorithms`.
"""

from __future__ import annotations

from gate.evidence.operator_records import (
    FlagReach,
    OperatorAudit,
    OperatorReport,
    OperatorRow,
    OperatorUse,
    Span,
)
from gate.evidence.run_evidence import EvidenceSet, RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.training.operator_tables import (
    AUTOTUNER_REMEDY,
    AUTOTUNER_WHY,
    CUDA,
    DOCUMENTED,
    OWN_REMEDY,
    OWN_WHY,
    InStrictMode,
    Release,
    admitting_entry,
    is_watched_operator,
    module_row,
    operator_row,
    release_of,
    remedy_for,
    row_on_cuda,
    uncovered_on_cuda,
)
from gate.training.runs import RunMode
from gate.verdict.findings import notice, warning
from gate.verdict.verdict import Finding, Severity

SHOWN_NAMES = 8
SHOWN_RANGES = 3


def operator_report(evidence: EvidenceSet, failure: str = "") -> OperatorReport | None:
    """Return the rows of the operator audit, else what the first strict run shows without one.

    None where there is nothing to report: no audit was requested, and the run met no such operator.
    """
    operator_audit_runs = evidence.runs_of(RunMode.AUDIT)
    run = (operator_audit_runs or evidence.runs_of(RunMode.STRICT))[0]
    audit = run.operator_audit
    rows = operator_rows(audit, release_of(run.environment.parts.get("torch", "")))
    if not rows and not operator_audit_runs and not failure:
        return None
    return OperatorReport(
        rows=rows, complete=bool(operator_audit_runs), dropped=audit.dropped, failure=failure
    )


def operator_rows(
    operator_audit: OperatorAudit, release: Release = DOCUMENTED
) -> tuple[OperatorRow, ...]:
    """Return torch's alerts, then what its flag is not known to cover, then what CUDA would add.

    `release` is the release of the torch that trained.
    """
    alerts = [_alert_row(use) for use in operator_audit.uses if use.source == "alert"]
    calls = [row for use in operator_audit.uses if use.source == "call" and (row := _call_row(use))]
    modules = [row for name in operator_audit.modules if (row := _module_row(name, release))]
    autotuners = [
        OperatorRow(
            operator=tuner.kernel,
            reach=FlagReach.NOT_KNOWN,
            why=f"{AUTOTUNER_WHY} ({tuner.configurations} configurations)",
            remedy=AUTOTUNER_REMEDY,
        )
        for tuner in operator_audit.autotuners
    ]
    extensions = [
        OperatorRow(
            operator=name,
            reach=FlagReach.NOT_KNOWN,
            why="a compiled extension of torch",
            remedy=OWN_REMEDY,
        )
        for name in operator_audit.extensions
    ]
    on_cuda = [
        row
        for use in operator_audit.uses
        if use.source == "call"
        for row in _rows_on_cuda(use, release)
    ]
    # An operator that CUDA replaces needs no action, so it comes last.
    on_cuda.sort(key=lambda row: row.reach is FlagReach.REPLACED_ON_CUDA)
    return (*alerts, *calls, *modules, *autotuners, *extensions, *on_cuda)


def _alert_row(use: OperatorUse) -> OperatorRow:
    return _counted(use, FlagReach.NO_FORM, remedy=remedy_for(use.operator))


def _call_row(use: OperatorUse) -> OperatorRow | None:
    """Return a row, or None where the table says that the operator is harmless there."""
    row = operator_row(use.operator, use.device, use.direction)
    if row is not None:
        return _counted(use, FlagReach.NOT_KNOWN, why=row.why, remedy=row.remedy, source=row.source)
    # The table has this operator, but no row for this device or direction: its source says
    # harmless.
    if is_watched_operator(use.operator):
        return None
    return _counted(use, FlagReach.NOT_KNOWN, why=OWN_WHY, remedy=OWN_REMEDY)


def _rows_on_cuda(use: OperatorUse, release: Release) -> tuple[OperatorRow, ...]:
    """Return what a call on a different device would do on CUDA, where torch reports nothing."""
    if use.device == CUDA:
        return ()
    beyond = uncovered_on_cuda(use.operator, use.direction)
    if beyond is not None:
        reach = FlagReach.NOT_KNOWN_ON_CUDA
        return (_counted(use, reach, why=beyond.why, remedy=beyond.remedy, source=beyond.source),)
    row = row_on_cuda(use.operator, use.direction, release)
    if row is None:
        return ()
    refused = row.strict is InStrictMode.REFUSED
    counted = _counted(
        use,
        FlagReach.REFUSED_ON_CUDA if refused else FlagReach.REPLACED_ON_CUDA,
        remedy=remedy_for(use.operator.removeprefix("aten::")) if refused else "",
        source=row.source,
    )
    return (counted.model_copy(update={"operator": row.shown}),)


def _module_row(name: str, release: Release) -> OperatorRow | None:
    """Return a row, or None for a module outside the table: the harness was not asked about it."""
    row = module_row(name, release)
    if row is None:
        return None
    return OperatorRow(
        operator=name,
        reach=FlagReach.NOT_KNOWN,
        why=row.why,
        remedy=row.remedy,
        source=row.source,
    )


def _counted(
    use: OperatorUse, reach: FlagReach, *, remedy: str, why: str = "", source: str = ""
) -> OperatorRow:
    calls = sorted({span.calls for span in use.spans})
    few_and_many = calls[:1] + calls[-1:] if len(calls) > 1 else calls
    return OperatorRow(
        operator=use.operator,
        reach=reach,
        why=why,
        calls_per_step=" to ".join(f"{number:,}" for number in few_and_many),
        steps=_ranges(use.spans),
        where=use.place + (" (backward)" if use.direction == "backward" else ""),
        remedy=remedy,
        source=source,
    )


def _ranges(spans: tuple[Span, ...]) -> str:
    """Return steps as `1-3, 7`; neighbours are joined, even if their numbers of calls differ."""
    joined: list[tuple[int, int]] = []
    for span in spans:
        if joined and joined[-1][1] + 1 == span.first:
            joined[-1] = (joined[-1][0], span.last)
        else:
            joined.append((span.first, span.last))
    words = [str(first) if first == last else f"{first}-{last}" for first, last in joined]
    rest = len(words) - SHOWN_RANGES
    return ", ".join(words[:SHOWN_RANGES]) + (f" and {rest} more" if rest > 0 else "")


def weaker_level(settings: GateSettings, run: RunEvidence) -> tuple[Finding, ...]:
    """Did the strict runs allow operators without a deterministic form?"""
    allowed = settings.determinism.allow_operators
    if not allowed:
        return ()
    # An entry that is no longer used still weakens every later run, so it is named.
    used = {use.operator for use in run.operator_audit.uses if use.source == "alert"}
    names = ", ".join(f"{name} ({'used' if name in used else 'not used'})" for name in allowed)
    return warning(
        "weaker-level",
        message=f"weaker than full determinism: determinism.allow_operators admits {names}. "
        "The strict runs used torch's warn_only mode, in which attention keeps kernels that "
        "full strict mode would replace; the gate refuses those unless they are listed",
        remedy="Replace the operators and empty the list.",
    )


def refused_and_went_on(run: RunEvidence) -> tuple[Finding, ...]:
    """Did the script catch torch's error, and so train something different?"""
    return tuple(
        Finding(
            code="operator-refused",
            severity=Severity.WARNING,
            message=f"strict mode refused {refusal.operator} at {refusal.place}, step "
            f"{refusal.step}, and the script continued: default mode trains something else",
            remedy=f"{remedy_for(refusal.operator)} To allow it at a weaker level: "
            f"{admitting_entry((refusal.operator,))}",
        )
        for refusal in run.operator_audit.refused[:SHOWN_NAMES]
    )


def operator_audit_failed(report: OperatorReport | None) -> tuple[Finding, ...]:
    """Was an operator audit requested that failed?"""
    if report is None or not report.failure:
        return ()
    return notice(
        "operator-audit-failed",
        message=f"the operators could not be counted: {report.failure}",
        remedy="The verdict does not depend on the audit; run `repro-gate operators` separately.",
    )


def beyond_the_flag(report: OperatorReport | None) -> tuple[str, ...]:
    """Return what deterministic mode does not guarantee, as a line of what was not exercised."""
    rows = report.rows if report else ()
    unreached = [row.operator for row in rows if row.reach is FlagReach.NOT_KNOWN]
    names = list(dict.fromkeys(unreached))
    if not names:
        return ()
    rest = len(names) - SHOWN_NAMES
    more = f" and {rest} more" if rest > 0 else ""
    return (f"determinism flag not known to apply: {', '.join(names[:SHOWN_NAMES])}{more}",)
