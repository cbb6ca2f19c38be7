"""The small table that answers the four questions in ten seconds."""

from __future__ import annotations

from gate.comparison.differences import Comparison, Event, EventKind
from gate.diagnosis.diagnosis import ResumeResult, ResumeState
from gate.evidence.observations import LeftBy
from gate.report.context import baseline_price, cost_words, recorded_words
from gate.report.entry_words import history_row, moved_by
from gate.report.judged import budget_rows, data_rows, level_row, throughput_rows
from gate.report.layout import Cell, Row, Table, table_of
from gate.report.wording import (
    BAD,
    GOOD,
    NEUTRAL,
    SHORT_COMMIT,
    WATCH,
    farthest,
    moved_words,
    not_run_words,
    strict_runs,
    threshold_words,
    why_not_run,
)
from gate.text.phrases import count
from gate.verdict.history_lines import HistoryLine
from gate.verdict.verdict import Answer, BaselineFacts, Outcome, Verdict

MAX_PARTS_NAMED = 4
SHOWN_DIGITS = 12
NOT_RUN = "Not run"
HEADLINE_PARTS = ("device", "torch", "cuda", "python")


# Ranks of rows, the most decisive first. A comment shows the `DECIDING_ROWS` that decide most.
ALWAYS, FAILS, WARNS, MACHINE, HOLDS, INFORMS = range(6)
DECIDING_ROWS = 4
Ranked = tuple[int, Row]


def overview(verdict: Verdict, history: tuple[HistoryLine, ...] = ()) -> tuple[Table, Table]:
    """Return a row for each question, and the four rows that decide; unasked questions say so."""
    ranked = _ranked(verdict, history)
    # A check that failed compared nothing, and its rows would only repeat that.
    judged = bool(verdict.runs) or verdict.outcome is not Outcome.ERROR
    # Sorted by rank only, so that rows of one rank keep their order.
    most = sorted(range(len(ranked)), key=lambda place: ranked[place][0])[:DECIDING_ROWS]
    deciding = [ranked[place][1] for place in sorted(most)] if judged else []
    rows = [row for _, row in ranked]
    headings = ("Compared", "Result")
    return table_of(headings, rows, len(rows)), table_of(headings, deciding, DECIDING_ROWS)


def _ranked(verdict: Verdict, history: tuple[HistoryLine, ...]) -> list[Ranked]:
    rows: list[Ranked] = [
        (ALWAYS, (Cell(_repeat_question(verdict)), Cell(_repeat(verdict)))),
        (ALWAYS, (Cell(_baseline_question(verdict)), Cell(_baseline(verdict)))),
    ]
    if verdict.base_run is not None:
        # If software moved that the base commit ran with too, its agreement excuses nothing.
        good = GOOD if verdict.passes else NEUTRAL
        outside = WATCH if verdict.passes else BAD
        answer = _answered(verdict.answers.base_run, verdict.base_run, good=good, outside=outside)
        rows.append((FAILS, (Cell("Against the base commit, run here"), Cell(answer))))
    if verdict.baseline is not None or verdict.environment is not None:
        moved = verdict.baseline is not None and not verdict.baseline.same_environment
        rank = WARNS if moved else MACHINE
        rows.append((rank, (Cell("Machine and packages"), Cell(_environment(verdict)))))
    resumes = FAILS if verdict.outcome is Outcome.RESUME_DIFFERS else HOLDS
    rows += [(resumes, row) for row in _resume_rows(verdict.resume)]
    data = FAILS if verdict.unrepeated else WARNS if verdict.data_moved else HOLDS
    rows += [(data, row) for row in data_rows(verdict)]
    if verdict.thresholds:
        missed = any(not threshold.met for threshold in verdict.thresholds)
        row = (Cell("Thresholds"), Cell(_thresholds(verdict)))
        rows.append((FAILS if missed else HOLDS, row))
    if verdict.judged is not None:
        row = (Cell(f"Level {verdict.judged.asked}"), Cell(level_row(verdict.judged)))
        rows.append((FAILS if verdict.judged.reached is None else HOLDS, row))
    rows += [(HOLDS, row) for row in budget_rows(verdict.determinism_budget)]
    rows += [(INFORMS, row) for row in _not_run(verdict)]
    price = _price(verdict)
    if price:
        rank = FAILS if verdict.over_budget else INFORMS
        rows.append((rank, (Cell("Cost of determinism"), Cell(price))))
    rows += [(INFORMS, row) for row in throughput_rows(verdict.performance)]
    facts = verdict.baseline_facts
    if facts is not None:
        rows.append((WARNS if facts.stale else INFORMS, (Cell("Baseline"), Cell(_age(facts)))))
    earlier = history_row(history, verdict.created_at)
    return [*rows, (INFORMS, earlier)] if earlier is not None else rows


def _not_run(verdict: Verdict) -> list[Row]:
    left_out = not_run_words(verdict.not_run)
    return (
        [(Cell(NOT_RUN), Cell(f"{left_out}: {why_not_run(verdict.not_run)}"))] if left_out else []
    )


def _price(verdict: Verdict) -> str:
    """Return the price that this call measured, or else the one recorded with the baseline."""
    if verdict.cost is not None:
        return cost_words(verdict.cost)
    recorded = baseline_price(verdict)
    return recorded_words(recorded) if recorded is not None else ""


def _repeat_question(verdict: Verdict) -> str:
    if verdict.unaffected is not None:
        return "Runs of this commit"
    runs = "run" if verdict.one_run is not None else "runs"
    return f"{strict_runs(verdict)} {runs} of this commit"


def _repeat(verdict: Verdict) -> str:
    repeat = verdict.repeat
    if verdict.unaffected is not None:
        return f"{NEUTRAL} none: the baseline answers with {verdict.unaffected.described}"
    if verdict.one_run is not None:
        recorded = verdict.one_run
        return (
            f"{NEUTRAL} equal to {recorded.runs} recorded on {recorded.recorded_at[:10]}; that "
            "two runs of this commit are equal was not checked"
        )
    if repeat is None:
        return f"{NEUTRAL} not compared"
    if verdict.answers.repeat is Answer.EQUAL:
        return f"{GOOD} identical: {_compared(repeat)}"
    # The strict runs are equal, but a default run of the same work differs.
    if repeat.numerically_equal:
        return f"{BAD} identical in strict mode, but a default run of the same work differs"
    return f"{BAD} differ: {_differing(repeat)}"


def _thresholds(verdict: Verdict) -> str:
    """Name the missed thresholds, or say how many are met."""
    missed = [threshold_words(threshold) for threshold in verdict.thresholds if not threshold.met]
    if not missed:
        return f"{GOOD} {len(verdict.thresholds)} met"
    rest = len(missed) - MAX_PARTS_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return f"{BAD} missed: {', '.join(missed[:MAX_PARTS_NAMED])}{more}"


def _resume_rows(result: ResumeResult | None) -> list[Row]:
    if result is None:
        return []
    rows: list[Row] = [(Cell("Resumed run"), Cell(resume_words(result)))]
    if result.kills:
        rows.append((Cell("Killed inside the save"), Cell(kills_words(result))))
    return rows


def kills_words(result: ResumeResult) -> str:
    """Say in one line what the runs left that were killed inside the save."""
    if result.torn is not None:
        what = "is gone" if result.torn.left is LeftBy.LOST else "is torn"
        return f"{BAD} {result.checkpoint} {what}, and no complete one is beside it"
    if result.survives_kills:
        return f"{GOOD} a complete checkpoint is left, at each of {len(result.kills)} points"
    return f"{NEUTRAL} not checked"


def resume_words(result: ResumeResult) -> str:
    """Say in one line how the resumed run compares with the uninterrupted one."""
    at = f"from step {result.step}"
    if result.fault is not None or result.compared is None:
        return f"{NEUTRAL} not checked"
    if result.state is ResumeState.NOT_REPEATED:
        return f"{NEUTRAL} not compared: the interrupted run differs from the strict runs"
    if result.state is ResumeState.EXACT:
        return f"{GOOD} resumes exactly {at}: {_compared(result.compared)}"
    if result.state is ResumeState.WITHIN:
        return f"{GOOD} resumes within tolerance {at}: {_differing(result.compared)}"
    return f"{BAD} resumes differently {at}: {_differing(result.compared)}"


def _baseline_question(verdict: Verdict) -> str:
    new = "new " if verdict.outcome is Outcome.BASELINE_CHANGE else ""
    return f"Against the {new}baseline"


def _baseline(verdict: Verdict) -> str:
    answer = verdict.answers.baseline
    if verdict.unaffected is not None:
        digest = verdict.unaffected.files_sha256[:SHOWN_DIGITS]
        return f"{GOOD} the same files ({digest}), settings and data"
    if verdict.outcome is Outcome.BASELINE_CHANGE:
        return _answered(answer, verdict.repeat)
    if verdict.baseline is not None and answer is Answer.NOT_COMPARED:
        # A run that failed, or has a number that is not finite, is not followed by a second one.
        why = ": the runs differ" if verdict.answers.repeat is not Answer.NOT_COMPARED else ""
        return f"{NEUTRAL} not compared{why}"
    if verdict.baseline is not None:
        # If the base commit was run here too, a pass is based on that run, not on the baseline.
        outside = WATCH if verdict.passes else BAD
        return _answered(answer, verdict.baseline, outside=outside)
    if verdict.provisional is not None:
        return f"{NEUTRAL} not compared: its entry is still provisional"
    missing = verdict.outcome is Outcome.NO_BASELINE
    return f"{NEUTRAL} {'none for this kind of machine' if missing else 'not compared'}"


def _answered(
    answer: Answer, comparison: Comparison | None, *, good: str = GOOD, outside: str = BAD
) -> str:
    """Say what the decision concluded, and what was compared."""
    if comparison is None or answer is Answer.NOT_COMPARED:
        return f"{NEUTRAL} not compared"
    if answer is Answer.EQUAL:
        return f"{good} identical: {_compared(comparison)}"
    if answer is Answer.INSIDE:
        within = "metrics within tolerance" if comparison.metrics else "every metric equal"
        return f"{good} {within}: {_differing(comparison)}"
    words = {
        Answer.REFUSED: "within tolerance, but the policy asks for equal bits",
        Answer.NOT_COMPARABLE: "not comparable",
    }
    return f"{outside} {words.get(answer, 'differs')}: {_differing(comparison)}"


def _compared(comparison: Comparison) -> str:
    return ", ".join(
        (
            _steps(comparison),
            count(comparison.compared_points, "value"),
            count(comparison.compared_tensors, "tensor"),
        )
    )


def _steps(comparison: Comparison) -> str:
    """Return the steps with compared parameters, out of all steps that were taken."""
    taken = min(comparison.steps_expected, comparison.steps_observed)
    if comparison.compared_steps == taken:
        return count(taken, "step")
    return f"{comparison.compared_steps:,} of {count(taken, 'step')} fingerprinted"


def _differing(comparison: Comparison) -> str:
    if not comparison.something_compared:
        return "nothing could be compared"
    where = _where(comparison)
    points, tensors = comparison.compared_points, comparison.compared_tensors
    words = f"{len(comparison.metrics):,} of {count(points, 'value')}{_worst(comparison)}"
    words += f", {comparison.tensors_in_both:,} of {count(tensors, 'tensor')}"
    if comparison.tensors_on_one_side:
        words += f" and {comparison.tensors_on_one_side:,} on one side only"
    return f"{where} ({words})" if where else words


def _where(comparison: Comparison) -> str:
    """Name the first divergence, and the first metric that shows it if that is a different one."""
    first = comparison.first
    if first is None:
        return ""
    if comparison.steps_expected != comparison.steps_observed and first.kind is EventKind.STEPS:
        return f"{comparison.steps_observed:,} steps instead of {comparison.steps_expected:,}"
    events = [first]
    shown = {EventKind.LOSS, EventKind.METRIC, EventKind.METRIC_MISSING}
    if first.kind not in shown:
        events += [event for event in comparison.events if event.kind in shown][:1]
    return ", ".join(f"{event.name} {_from(event)}" for event in events)


def _from(event: Event) -> str:
    """Return from when on an event's value differs."""
    return event.where.replace("at ", "from ", 1) if event.step is not None else event.where


def _worst(comparison: Comparison) -> str:
    worst = farthest(comparison.metrics)
    if worst is None:
        return ""
    return f", {worst.metric} by at most {moved_by(worst)}"


def _environment(verdict: Verdict) -> str:
    parts = verdict.environment.parts if verdict.environment else {}
    here = ", ".join(
        value if name == "device" else f"{name} {value}"
        for name in HEADLINE_PARTS
        if (value := parts.get(name, "none")) != "none"
    )
    # For a commit that was not run, the environment is by definition the entry's.
    known = verdict.unaffected is not None
    moved = f"{GOOD} as recorded" if known else _environment_moved(verdict.baseline)
    return f"{moved}{': ' if here else ''}{here}"


def _environment_moved(baseline: Comparison | None) -> str:
    if baseline is None:
        return f"{NEUTRAL} not compared"
    if baseline.same_environment:
        return f"{GOOD} as recorded"
    return f"{WATCH} {moved_words(baseline, MAX_PARTS_NAMED)}"


def _age(facts: BaselineFacts) -> str:
    when = f"{count(facts.age_days, 'day')} ago" if facts.age_days else "today"
    words = f"recorded {when} from commit {facts.commit[:SHORT_COMMIT]}"
    return f"{WATCH} {words}: too old, record it again" if facts.stale else words
