"""Sections around the differences: the cause, the cost, the environment and the baseline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gate.baseline.acceptance import RecordedPrice
from gate.comparison.differences import CostState, DeterminismCost
from gate.diagnosis.diagnosis import Diagnosis
from gate.publishing.artifact import PublishedPackage
from gate.report.layout import Cell, Limits, Row, Section, Table, facts_table, table_of
from gate.report.wording import (
    CAUSE_TITLES,
    SHORT_COMMIT,
    class_words,
    duration,
    interval,
    percent,
    repeat_words,
    suspect_words,
)
from gate.text.phrases import count
from gate.training.runs import RunRecord, StoppedBy
from gate.verdict.verdict import BaselineFacts, Severity, Verdict

SHOWN_KNOBS: Final = 3
REMEDY: Final = "Remedy"


def fault_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the last lines of a fault, such as what a training printed before it failed."""
    lines = verdict.fault_details
    if not lines:
        return None
    # The last lines, because an exception is at the end of the output.
    rows = tuple((Cell(line, code=True),) for line in lines[-limits.rows :])
    table = Table(headings=("The last lines",), rows=rows, total=len(lines))
    title = f"Details of the fault ({len(lines):,})"
    return Section(title=title, table=table, leading=True, anchor="fault", printed=True)


def policy_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the pull request's changes to policy files; the base commit's version decided."""
    changes = verdict.policy_changes
    if not changes:
        return None
    rows = (
        (
            Cell(change.file, code=True),
            Cell(change.what, code=True),
            Cell(change.before, code=True),
            Cell(change.after, code=True),
        )
        for change in changes
    )
    headings = ("File", "What", "Base commit", "This pull request")
    return Section(
        title=f"This pull request changes policy files ({len(changes):,})",
        table=table_of(headings, rows, limits.rows),
        leading=True,
        anchor="policy",
    )


def diagnosis_section(
    verdict: Verdict, limits: Limits, words: Callable[[Diagnosis], str]
) -> Section | None:
    """Return where two results first differ, and the cause in the `words` of the first answer.

    For a pass this is information that needs no action.
    """
    diagnosis = verdict.diagnosis
    if diagnosis is None:
        return None
    facts = (
        ("What differs first", Cell(_first(diagnosis))),
        ("Name", Cell(diagnosis.subject, code=True)),
        ("Cause", Cell(words(diagnosis))),
        ("Class", Cell(class_words(diagnosis.cause_class) if diagnosis.cause_class else "")),
        ("Suspects", Cell("; ".join(map(suspect_words, diagnosis.suspects)))),
        ("Called from", Cell(_stack(diagnosis), code=True)),
        ("What decides", Cell(diagnosis.decides)),
        ("And then", Cell(diagnosis.details)),
        (REMEDY, Cell("" if verdict.passes else diagnosis.remedy)),
    )
    table = facts_table(facts, limits.rows)
    title = "Diagnosis: the first divergence"
    if verdict.passes:
        title = "Where this result first differs (informational)"
    return Section(title=title, table=table, leading=True, anchor="diagnosis")


def _first(diagnosis: Diagnosis) -> str:
    what = CAUSE_TITLES[diagnosis.kind]
    return what if diagnosis.first_step is None else f"{what}, at step {diagnosis.first_step}"


def _stack(diagnosis: Diagnosis) -> str:
    """Return the callers of the first suspect's line, unless it is the script's top level."""
    stack = diagnosis.suspects[0].stack if diagnosis.suspects else ()
    return " ← ".join(stack) if len(stack) > 1 else ""


def notices_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the findings that are worth knowing but need no action."""
    notices = [finding for finding in verdict.findings if finding.severity is Severity.NOTICE]
    if not notices:
        return None
    rows = (
        (Cell(notice.code, code=True), Cell(notice.message), Cell(notice.remedy))
        for notice in notices
    )
    table = table_of(("Notice", "What", "What to do"), rows, limits.rows)
    return Section(title=f"Notices ({table.total:,})", table=table)


def cost_words(cost: DeterminismCost) -> str:
    """Say in one line what strict mode costs."""
    memory = "" if cost.memory_ratio is None else f", memory {percent(cost.memory_ratio)}"
    if cost.state is CostState.NOT_MEASURABLE or cost.time_ratio is None:
        return f"time not measurable ({cost.reason}){memory}"
    if cost.state is CostState.INCONCLUSIVE:
        # Noise could have made this figure, so it is only shown among the details.
        return f"time not measurable here (the noise is larger than the effect){memory}"
    if cost.state is CostState.IMPLAUSIBLE:
        return f"time {percent(cost.time_ratio)} is implausible ({cost.reason}){memory}"
    return f"time {percent(cost.time_ratio)} {interval(cost.low, cost.high)}".rstrip() + memory


def baseline_price(verdict: Verdict) -> RecordedPrice | None:
    """Return the price in the baseline's entry, if this call measured none."""
    facts = verdict.baseline_facts
    return facts.price if verdict.cost is None and facts is not None else None


def recorded_words(price: RecordedPrice) -> str:
    """Say in one line what strict mode cost when the entry was recorded."""
    memory = "" if price.memory_ratio is None else f", memory {percent(price.memory_ratio)}"
    time = f"time {percent(price.time_ratio)} {interval(price.low, price.high)}{memory}"
    return f"{time} (measured {price.measured_at[:10]}, with the baseline)"


def observing_words(verdict: Verdict) -> str:
    """Say which share of a strict step's time the harness's recorder took."""
    recorder = verdict.recorder
    if recorder is None or recorder.share is None:
        return ""
    every = max(recorder.sampling_intervals.values(), default=1)
    thinned = f", some fingerprints at every {every}th step" if every > 1 else ", at every step"
    return f"{recorder.share * 100:.1f} % of a step{thinned}"


def _knob_words(cost: DeterminismCost, facts: BaselineFacts | None) -> str:
    """List each knob's cost from the baseline, because a gate call sets all knobs together."""
    # If the total is within the noise, each knob's share of it is too.
    if cost.state is not CostState.MEASURED:
        return ""
    costs = facts.knob_costs if facts is not None else None
    if costs is None:
        return (
            "not recorded in the baseline; repro-gate baseline record --attribute measures each one"
        )
    when = f"measured {costs.measured_at[:10]}, recorded in the baseline"
    if not costs.knobs:
        return f"none alone exceeds this machine's noise ({when})"
    most_expensive = sorted(costs.knobs, key=lambda knob_cost: knob_cost.ratio, reverse=True)[
        :SHOWN_KNOBS
    ]
    words = (
        f"{knob_cost.knob} {percent(knob_cost.ratio)} {interval(knob_cost.low, knob_cost.high)}"
        for knob_cost in most_expensive
    )
    return f"{', '.join(words)} ({when})"


def cost_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return strict mode's cost, beside the control of default mode against itself."""
    cost, recorded = verdict.cost, baseline_price(verdict)
    if recorded is not None:
        return _recorded_section(recorded, limits)
    if cost is None:
        return None
    memory = "" if cost.memory_ratio is None else percent(cost.memory_ratio)
    facts = (
        ("State", Cell(f"{cost.state.value}: {cost.reason}" if cost.reason else cost.state.value)),
        ("Step in strict mode", Cell(duration(cost.strict_step_seconds))),
        ("Step in default mode", Cell(duration(cost.default_step_seconds))),
        ("Time", Cell("" if cost.time_ratio is None else percent(cost.time_ratio))),
        ("95 % interval", Cell(interval(cost.low, cost.high))),
        ("Noise: default against default", Cell(interval(cost.control_low, cost.control_high))),
        ("Peak memory", Cell(memory)),
        ("Cost by knob", Cell(_knob_words(cost, verdict.baseline_facts))),
        ("Steady steps used", Cell(f"{cost.steps_used:,}")),
        ("Recording, not included in these times", Cell(observing_words(verdict))),
    )
    return Section(title="Cost of determinism", table=facts_table(facts, limits.rows))


def _recorded_section(price: RecordedPrice, limits: Limits) -> Section:
    memory = "" if price.memory_ratio is None else percent(price.memory_ratio)
    facts = (
        ("State", Cell("not measured in this call: as recorded with the baseline")),
        ("Measured at", Cell(price.measured_at)),
        ("Time", Cell(percent(price.time_ratio))),
        ("95 % interval", Cell(interval(price.low, price.high))),
        ("Peak memory", Cell(memory)),
    )
    return Section(title="Cost of determinism", table=facts_table(facts, limits.rows))


def baseline_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the facts about the baseline's entry that was used."""
    facts = verdict.baseline_facts
    if facts is None:
        return None
    rows = (
        ("Recorded from commit", Cell(facts.commit, code=True)),
        ("Recorded at", Cell(facts.recorded_at)),
        ("Age", Cell(count(facts.age_days, "day") + (", stale" if facts.stale else ""))),
        ("Reason", Cell(facts.reason)),
        (
            "Based on",
            Cell(repeat_words(facts.equal_runs, facts.missed_faults, facts.recordings)),
        ),
        ("Accepted by", Cell(facts.accepted_by)),
        ("From run", Cell(facts.run_url, code=True)),
        ("From package", Cell(facts.package_sha256, code=True)),
        ("Read from", Cell("the base commit" if facts.from_base else "the commit under test")),
        ("Checkpoint digest", Cell(facts.checkpoint_digest, code=True)),
    )
    return Section(title="Baseline", table=facts_table(rows, limits.rows))


def environment_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the environment as the training observed it."""
    if verdict.environment is None:
        return None
    parts = sorted(verdict.environment.parts.items())
    rows = ((Cell(part, code=True), Cell(value, code=True)) for part, value in parts)
    return Section(title="Environment", table=table_of(("Part", "Here"), rows, limits.rows))


def runs_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the training runs, in the order in which they ran."""
    if not verdict.runs:
        return None
    headings = ("Run", "Mode", "Code", "Ended with", "Took", "Isolation")
    table = table_of(headings, map(_run_row, verdict.runs), limits.rows, 4)
    return Section(title=f"Runs ({table.total:,})", table=table)


def _run_row(run: RunRecord) -> Row:
    return (
        Cell(run.label, code=True),
        Cell(run.mode.value),
        Cell(run.commit.value),
        Cell(_ended(run)),
        Cell(duration(run.wall_seconds)),
        Cell(run.isolation.described),
    )


def _ended(run: RunRecord) -> str:
    if run.timed_out:
        return "time limit"
    code = f"exit code {run.exit_code}"
    # some launchers report the gate's stop as a failure
    by_gate = run.exit_code and run.stopped_by is StoppedBy.MAX_STEPS
    return f"stopped after train.max_steps ({code})" if by_gate else code


def self_test_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the planted faults, and whether the comparison caught each of them."""
    if not verdict.self_test:
        return None
    caught = sum(probe.caught for probe in verdict.self_test)
    rows = (
        (Cell(probe.name), Cell("as expected" if probe.caught else "NOT CAUGHT"))
        for probe in verdict.self_test
    )
    table = table_of(("Planted fault", "Result"), rows, limits.rows)
    return Section(title=f"Self-test: {caught} of {table.total} caught", table=table)


def not_exercised_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return what this verdict says nothing about."""
    if not verdict.not_exercised:
        return None
    total = len(verdict.not_exercised)
    table = table_of(
        ("This verdict says nothing about",),
        ((Cell(sentence),) for sentence in verdict.not_exercised),
        limits.rows,
    )
    return Section(title=f"Not exercised ({total:,})", table=table)


def provenance_section(verdict: Verdict, limits: Limits) -> Section:
    """Return the digests of what was judged, and of the settings that decided."""
    facts = (
        ("Commit", Cell(verdict.commit, code=True)),
        ("Base commit", Cell(verdict.base_commit or "", code=True)),
        ("Checkpoint digest", Cell(verdict.checkpoint_digest, code=True)),
        ("Snapshot digest", Cell(verdict.snapshot_digest, code=True)),
        ("Settings digest", Cell(verdict.settings_digest, code=True)),
        ("Configuration hash", Cell(_configuration_digest(verdict), code=True)),
        ("Settings read from", Cell(verdict.settings_from)),
        ("Level reached", Cell(verdict.level.value if verdict.level else "none")),
        ("Isolation", Cell(verdict.isolation.described)),
        ("Judged at", Cell(verdict.created_at)),
        *(("Not committed", Cell(path, code=True)) for path in verdict.changed_files),
    )
    return Section(title="What was judged", table=facts_table(facts, limits.rows))


def _configuration_digest(verdict: Verdict) -> str:
    return verdict.configuration.digest if verdict.configuration is not None else ""


def configuration_section(verdict: Verdict, limits: Limits) -> Section | None:
    """Return the values of the training's configuration that differ from the baseline's.

    They are facts beside a difference. Only the diagnosis may name one of them as the cause.
    """
    changes = verdict.configuration_changes
    if not changes:
        return None
    rows = (
        (
            Cell(change.name, code=True),
            Cell(change.before or "none", code=True),
            Cell(change.after or "none", code=True),
        )
        for change in changes
    )
    return Section(
        title=f"Training configuration: values that differ ({len(changes):,})",
        table=table_of(("Value", "Baseline", "Here"), rows, limits.rows),
        leading=not verdict.passes,
    )


def published_section(published: PublishedPackage, limits: Limits) -> Section | None:
    """Return where the sealed package was published; notes make the section a leading one."""
    place, _, digest = published.reference.partition("@")
    facts = (
        ("Registry", Cell(place, code=True)),
        ("Tag", Cell(published.tag, code=True)),
        ("Digest", Cell(digest, code=True)),
        (published.run_title, Cell(published.tracked_run, code=True)),
        ("Registered model", Cell(published.model_version, code=True)),
        *(("Note", Cell(note)) for note in published.notes),
    )
    table = facts_table(facts, limits.rows)
    leading = bool(published.notes)
    return Section(title="Published", table=table, leading=leading) if table.rows else None


def commit_words(verdict: Verdict) -> str:
    """Return the commit's short hash, and the number of uncommitted files."""
    dirty = len(verdict.changed_files)
    return verdict.commit[:SHORT_COMMIT] + (f" + {count(dirty, 'changed file')}" if dirty else "")
