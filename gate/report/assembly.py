"""A verdict turned into a report: which part says what, in which order."""

from __future__ import annotations

from gate.report import context, differences
from gate.report.brief import brief_of
from gate.report.budget_words import budget_section
from gate.report.diagnosis import tried_sections
from gate.report.entry_words import history_section
from gate.report.growth import growth_section
from gate.report.judged import data_section
from gate.report.layout import Alert, Cell, Limits, Report, Row, Section
from gate.report.level_words import level_sections
from gate.report.links import ReportLinks
from gate.report.operators import operators_sections
from gate.report.overview import overview
from gate.report.performance_words import performance_section
from gate.report.time_words import time_words, timeline_section
from gate.report.tolerances import tolerances_section
from gate.report.traced import trace_sections
from gate.report.wording import headline, icon, sentences, short
from gate.verdict.verdict import DATA_MOVED, FAULT, Outcome, Severity, Verdict

# More would push the table of answers off the first screen; the rest is counted.
MAX_ALERTS = 5
NOT_PUBLISHED_CODE = "not-published"


def report_of(verdict: Verdict, links: ReportLinks, limits: Limits) -> Report:
    """Everything that a reader may be shown, each table cut to `limits`."""
    alerts = (
        *(Alert(code=NOT_PUBLISHED_CODE, text=fault) for fault in links.published.faults),
        *(
            Alert(code=finding.code, text=sentences(finding.message, finding.remedy))
            for severity in (Severity.ERROR, Severity.WARNING)
            for finding in verdict.findings
            if finding.severity is severity and finding.code not in _told(verdict)
        ),
    )
    return Report(
        icon=icon(verdict),
        headline=headline(verdict),
        outcome=verdict.outcome.value,
        brief=brief_of(verdict),
        alerts=alerts[:MAX_ALERTS],
        alerts_total=len(alerts),
        overview=overview(verdict, links.history),
        next_steps=verdict.next_steps,
        verify_command=links.verify_command,
        facts=_facts(verdict, links),
        time=time_words(verdict.timeline),
        run_url=links.run_url,
        sections=_sections(verdict, links, limits),
    )


def _told(verdict: Verdict) -> frozenset[str]:
    """Findings that are what happened: that stands above the alerts, and is not said twice."""
    drifted = verdict.outcome is Outcome.DATA_DRIFT
    return frozenset((FAULT, DATA_MOVED) if drifted else (FAULT,))


def _facts(verdict: Verdict, links: ReportLinks) -> tuple[Row, ...]:
    facts = (
        ("commit", context.commit_words(verdict)),
        ("checkpoint", short(verdict.checkpoint_digest)),
        ("package", links.package_path),
        ("published", links.published.reference),
        ("MLflow run", links.published.tracked_run),
    )
    return tuple((Cell(name), Cell(value, code=True)) for name, value in facts if value)


def _sections(verdict: Verdict, links: ReportLinks, limits: Limits) -> tuple[Section, ...]:
    sections = (
        context.fault_section(verdict, limits),
        context.policy_section(verdict, limits),
        context.diagnosis_section(verdict, limits),
        *trace_sections(verdict, limits),
        *tried_sections(verdict, limits),
        growth_section(verdict, limits),
        *differences.comparison_sections("Repeat", verdict.repeat, limits, judged=False),
        *differences.comparison_sections("Baseline", verdict.baseline, limits, judged=True),
        *differences.comparison_sections("Base commit", verdict.base_run, limits, judged=True),
        *level_sections(verdict, limits),
        differences.environment_changes(verdict.baseline, limits),
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
