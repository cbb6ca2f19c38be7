"""Turn a verdict into a report: which module writes which section, and in which order."""

from __future__ import annotations

from dataclasses import dataclass

from gate.comparison.differences import Comparison, MetricDelta, ToleranceUse
from gate.comparison.measurements import CalibratedTolerance, CalibrationDocument
from gate.evidence.operator_records import OperatorReport, OperatorRow
from gate.publishing.artifact import NOT_PUBLISHED, PublishedPackage
from gate.report import context
from gate.report.brief import brief_of, cause_words
from gate.report.diagnosis_sections import growth_section, trace_sections, tried_sections
from gate.report.difference_words import ulp_words
from gate.report.drawing import drawing
from gate.report.entry_words import history_section, moved_by
from gate.report.judged import (
    budget_section,
    data_section,
    level_sections,
    performance_section,
    time_words,
    timeline_section,
)
from gate.report.layout import (
    FAILURE_MODE,
    OUTCOME,
    Alert,
    Cell,
    Limits,
    Report,
    Row,
    Section,
    Table,
    table_of,
)
from gate.report.overview import overview
from gate.report.wording import (
    headline,
    icon,
    magnitude,
    percentage,
    sentences,
    short,
    short_if_digest,
    worst_first,
)
from gate.settings.levels import Derivation
from gate.text.phrases import count
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import DATA_MOVED, FAULT, FailureMode, Outcome, Severity, Verdict


def comparison_sections(
    name: str, comparison: Comparison | None, limits: Limits, *, judged: bool
) -> tuple[Section, ...]:
    """Return tables of the numbers, series, steps and tensors that differ.

    `judged` adds a column that says whether each number is within its tolerance; a repeat has no
    tolerance.
    """
    if comparison is None:
        return ()
    sections = (
        _numbers(name, comparison, limits, judged=judged),
        _faults(name, comparison, limits),
        _tensors(name, comparison, limits),
    )
    return tuple(section for section in sections if section is not None)


def _numbers(name: str, comparison: Comparison, limits: Limits, *, judged: bool) -> Section | None:
    if not comparison.metrics:
        return None
    headings = ("Metric", "Step", comparison.expected, comparison.observed, "Moved by", "ULP")
    table = table_of(
        (*headings, "Within tolerance") if judged else headings,
        (_number_row(delta, judged=judged) for delta in worst_first(comparison.metrics)),
        limits.deltas,
        1,
        2,
        3,
        4,
        5,
    )
    return Section(
        title=f"{name}: numbers that differ ({table.total:,})", table=table, leading=True
    )


def _number_row(delta: MetricDelta, *, judged: bool) -> Row:
    row = (
        Cell(delta.metric, code=True),
        Cell(str(delta.step)),
        Cell(delta.expected),
        Cell(delta.observed),
        Cell(moved_by(delta) if delta.relative is not None else magnitude(delta.absolute)),
        Cell(ulp_words(delta.ulp)),
    )
    return (*row, Cell("yes" if delta.within else "no")) if judged else row


def _faults(name: str, comparison: Comparison, limits: Limits) -> Section | None:
    rows: list[Row] = [
        (Cell(fault.metric, code=True), Cell(fault.reason)) for fault in comparison.series
    ]
    rows += [(Cell("steps"), Cell(fault.message)) for fault in comparison.step_faults]
    if not rows:
        return None
    table = table_of(("What", "Why"), rows, limits.deltas)
    return Section(
        title=f"{name}: steps and series that do not match ({table.total:,})",
        table=table,
        leading=True,
    )


def _tensors(name: str, comparison: Comparison, limits: Limits) -> Section | None:
    if not comparison.tensors:
        return None
    rows = (
        (
            Cell(delta.name, code=True),
            Cell(delta.kind.value),
            Cell(short_if_digest(delta.expected), code=True),
            Cell(short_if_digest(delta.observed), code=True),
        )
        for delta in comparison.tensors
    )
    headings = ("Tensor", "How", comparison.expected, comparison.observed)
    table = table_of(headings, rows, limits.deltas)
    title = f"{name}: tensors that differ ({table.total:,})"
    return Section(title=title, table=table, leading=True)


def environment_changes(comparison: Comparison | None, limits: Limits) -> Section | None:
    """Return a table of the environment's parts that moved since the baseline was recorded."""
    if comparison is None or comparison.same_environment:
        return None
    rows = (
        (
            Cell(change.part, code=True),
            Cell(short_if_digest(change.expected), code=True),
            Cell(short_if_digest(change.observed), code=True),
            Cell("yes" if change.comparable else "no"),
            Cell("; ".join(filter(None, (*change.details, change.share)))),
        )
        for change in comparison.environment
    )
    table: Table = table_of(
        ("Part", "Baseline", "Here", "May differ", "Details"), rows, limits.rows
    )
    return Section(
        title=f"Environment: parts that moved ({table.total:,})", table=table, leading=True
    )


SHOWN_METRICS = 5


def tolerances_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return a table of the settings' tolerances, or None if every metric must be equal."""
    if not verdict.tolerances:
        return None
    headings = ("Tolerance", "Steps", "Metrics", "Limit", "Smallest change caught", "Derived from")
    table = table_of(headings, map(_tolerance_row, verdict.tolerances), limits.rows)
    return Section(title=f"Tolerances ({table.total:,})", table=table)


def _tolerance_row(use: ToleranceUse) -> Row:
    more = ", ..." if len(use.metrics) > SHOWN_METRICS else ""
    return (
        Cell(use.pattern, code=True),
        Cell(use.steps),
        Cell(f"{', '.join(use.metrics[:SHOWN_METRICS])}{more}", code=bool(use.metrics)),
        Cell(" or ".join(use.limits) or "none: equal bits"),
        Cell(least_words(use)),
        Cell(f"edited: {use.misfit}" if use.misfit else derived_words(use.derived)),
    )


def least_words(use: ToleranceUse) -> str:
    """Describe the smallest change that a tolerance would have caught."""
    least = use.least
    if least is None:
        return "not known: every value is zero" if use.metrics else ""
    # With a share of zero, any changed bit is outside the tolerance.
    if not least.share:
        return "any"
    # A one-sided tolerance catches nothing on its other side, and the text must say so.
    worse = " for the worse" if use.one_sided else ""
    return (
        f"more than {percentage(least.share)}{worse} ({magnitude(least.absolute)}: {least.metric} "
        f"at step {least.step})"
    )


def derived_words(derived: Derivation | None) -> str:
    """Describe a derived limit by n, k, spread and confidence, or say that a person chose it."""
    if derived is None:
        return "nothing: chosen by hand"
    return (
        f"{derived.runs} runs, k = {derived.factor:g}, spread {derived.spread:g}, confidence "
        f"{derived.confidence * 100:g} %"
    )


def calibration_headline(document: CalibrationDocument) -> str:
    """Say in one sentence what was derived."""
    if not document.tolerances:
        return (
            f"Of {document.measured}, no metric moved: it needs no tolerance, which would only "
            "hide changes."
        )
    return (
        f"{count(len(document.tolerances), 'tolerance')} derived from {document.measured}, "
        f"{count(document.environments, 'environment')}, "
        f"confidence {document.confidence * 100:g} %."
    )


def calibration_sections(document: CalibrationDocument, limit: int) -> tuple[Section, ...]:
    """Return the derived tolerances with their origin, and notes on metrics without one."""
    headings = ("Metric", "Steps", "Limit", "Catches more than", "Spread", "At step", "k")
    rows = table_of(headings, map(_calibrated_row, document.tolerances), limit, 3, 4, 5, 6)
    notes = table_of(("Note",), ((Cell(note),) for note in document.notes), limit)
    sections = (
        Section(title="Derived tolerances", table=rows),
        Section(title="What to know", table=notes),
    )
    return tuple(section for section in sections if section.table.rows)


def _calibrated_row(tolerance: CalibratedTolerance) -> Row:
    derived = tolerance.rule.derived
    return (
        Cell(tolerance.rule.metric, code=True),
        Cell(tolerance.rule.steps),
        Cell(" or ".join(tolerance.use.limits)),
        Cell(percentage(tolerance.use.least.share if tolerance.use.least else None)),
        Cell(magnitude(derived.spread if derived else None)),
        Cell(f"{tolerance.widest_step}"),
        Cell(f"{derived.factor:g}" if derived else ""),
    )


HEADINGS = ("Operator", "Calls a step", "Where", "Determinism, and what to do")
NOTHING_FOUND = (
    "none found: torch raised no alert, and nothing listed in the project's table was used"
)


def operators_sections(
    operator_audit: OperatorReport | None, limits: Limits
) -> tuple[Section, ...]:
    """Return operators with counts, places and remedies; nothing if there is nothing to show."""
    if operator_audit is None or not (operator_audit.rows or operator_audit.complete):
        return ()
    here = tuple(row for row in operator_audit.rows if not row.reach.on_cuda)
    sections = [_here(operator_audit, here, limits)] if here or operator_audit.complete else []
    on_cuda = tuple(row for row in operator_audit.rows if row.reach.on_cuda)
    if on_cuda:
        sections.append(
            Section(
                title="On CUDA these would be nondeterministic under torch's defaults "
                f"({len(on_cuda):,})",
                table=table_of(HEADINGS, map(_operator_row, on_cuda), limits.rows, 1),
            )
        )
    return tuple(sections)


def _here(operator_audit: OperatorReport, rows: tuple[OperatorRow, ...], limits: Limits) -> Section:
    if rows:
        table = table_of(HEADINGS, map(_operator_row, rows), limits.rows, 1)
    else:
        table = table_of(("Operators",), [(Cell(NOTHING_FOUND),)], limits.rows)
    extent = (
        "counted in a separate run" if operator_audit.complete else "not counted: no operator audit"
    )
    dropped = (
        f"; {operator_audit.dropped:,} more calls not recorded" if operator_audit.dropped else ""
    )
    return Section(title=f"Operators ({len(rows):,}; {extent}{dropped})", table=table)


def _operator_row(row: OperatorRow) -> Row:
    words = sentences(row.flag.removeprefix("on CUDA: "), row.remedy)
    return (
        Cell(row.operator, code=True),
        Cell(row.calls_per_step),
        Cell(f"{row.where}, steps {row.steps}" if row.where else "", code=True),
        Cell(f"{words} (Source: {row.source})" if row.source else words),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportLinks:
    """What a report shows beside the verdict: addresses and paths, empty if there are none.

    `history` has the verdicts of earlier runs on the default branch, oldest first. `published` says
    where the sealed package is outside this call.
    """

    run_url: str = ""
    package_path: str = ""
    verify_command: str = ""
    history: tuple[HistoryLine, ...] = ()
    published: PublishedPackage = NOT_PUBLISHED


# More alerts would push the table of answers off the first screen, so the rest is only counted.
MAX_ALERTS = 5
NOT_PUBLISHED_CODE = "not-published"


def report_of(verdict: Verdict, links: ReportLinks, limits: Limits) -> Report:
    """Return everything that a reader may be shown, each table limited to `limits`."""
    alerts = (
        *(Alert(code=NOT_PUBLISHED_CODE, text=fault) for fault in links.published.faults),
        *(
            Alert(code=finding.code, text=sentences(finding.message, finding.remedy))
            for severity in (Severity.ERROR, Severity.WARNING)
            for finding in verdict.findings
            if finding.severity is severity and finding.code not in _sections_told(verdict)
        ),
    )
    rows, deciding = overview(verdict, links.history)
    return Report(
        icon=icon(verdict),
        headline=headline(verdict),
        brief=brief_of(verdict),
        alerts=alerts[:MAX_ALERTS],
        alerts_total=len(alerts),
        overview=rows,
        deciding=deciding,
        drawing=drawing(verdict),
        next_steps=verdict.next_steps,
        verify_command=links.verify_command,
        facts=_facts(verdict, links),
        time=time_words(verdict.timeline),
        run_url=links.run_url,
        sections=_sections(verdict, links, limits),
    )


def _sections_told(verdict: Verdict) -> frozenset[str]:
    """Return the codes of findings that the first answer states already, above the alerts."""
    drifted = verdict.outcome is Outcome.DATA_DRIFT
    return frozenset((FAULT, DATA_MOVED) if drifted else (FAULT,))


def _failure_mode(verdict: Verdict) -> str:
    if verdict.failure_mode is FailureMode.NONE:
        return ""
    # Without the anchor, which a comment would escape like the number of an issue.
    page = verdict.runbook.partition("#")[0]
    return f"{verdict.failure_mode.value}, {page}"


def _facts(verdict: Verdict, links: ReportLinks) -> tuple[Row, ...]:
    facts = (
        # under the name that README, settings and the action's outputs use
        (OUTCOME, verdict.outcome.value),
        ("commit", context.commit_words(verdict)),
        (FAILURE_MODE, _failure_mode(verdict)),
        ("checkpoint", short(verdict.checkpoint_digest)),
        ("package", links.package_path),
        ("published", links.published.reference),
        (links.published.run_title, links.published.tracked_run),
    )
    return tuple((Cell(name), Cell(value, code=True)) for name, value in facts if value)


def _sections(verdict: Verdict, links: ReportLinks, limits: Limits) -> tuple[Section, ...]:
    sections = (
        # In order of interest: a report that is too long loses its last sections.
        context.fault_section(verdict, limits),
        context.policy_section(verdict, limits),
        context.diagnosis_section(verdict, limits, cause_words),
        *trace_sections(verdict, limits),
        *tried_sections(verdict, limits),
        growth_section(verdict, limits),
        *comparison_sections("Repeat", verdict.repeat, limits, judged=False),
        *comparison_sections("Baseline", verdict.baseline, limits, judged=True),
        *comparison_sections("Base commit", verdict.base_run, limits, judged=True),
        *level_sections(verdict, limits),
        context.configuration_section(verdict, limits),
        environment_changes(verdict.baseline, limits),
        *operators_sections(verdict.operator_audit, limits),
        context.cost_section(verdict, limits),
        performance_section(verdict.performance, limits),
        context.baseline_section(verdict, limits),
        history_section(links.history, limits),
        tolerances_section(verdict, limits),
        context.notices_section(verdict, limits),
        context.not_exercised_section(verdict, limits),
        budget_section(verdict, limits),
        context.environment_section(verdict, limits),
        data_section(verdict, limits),
        context.runs_section(verdict, limits),
        timeline_section(verdict, limits),
        context.self_test_section(verdict, limits),
        context.provenance_section(verdict, limits),
        context.published_section(links.published, limits),
    )
    return tuple(section for section in sections if section is not None)
