"""Trainings of no step to three: always a verdict and every report, under all settings of runs."""

from __future__ import annotations

import io
from dataclasses import replace

from compare_cases import compared_of, request_of
from evidence_cases import LOSSES, evidence_of, evidence_set_of
from hypothesis import given
from hypothesis import strategies as st
from report_cases import LINKS
from rich.console import Console

from gate.baseline.entry import Baseline, Baselines
from gate.baseline.record import with_entry
from gate.commands.measure import compare_view
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.case import Gated, case_of
from gate.pipelines.gate import judge
from gate.report.comment import comment_text, summary_text
from gate.report.page.page import compare_page, page_html
from gate.report.page.page_sources import page_sources
from gate.report.terminal import verdict_view
from gate.settings.levels import Level
from gate.training.plan import plan_base, plan_gate
from gate.verdict.request import GateRequest

NOT_ISOLATED = Isolation(mode=IsolationMode.NONE, credentials=None, reason="")
MOST_STEPS = 3

SEEDS = (42, 1, 2, 3, 4)
# a level, and what it is judged by
LEVELS: tuple[dict[str, object], ...] = (
    {},
    {"policy": {"level": Level.FUNCTIONAL, "thresholds": {"loss": {"min": 0.5}}}},
    {
        "policy": {"level": Level.STATISTICAL, "equivalence": {"loss": {"absolute": 0.02}}},
        "seeds": SEEDS,
    },
)

requests = st.builds(
    lambda when, repeats, level, budget, nightly, cost: replace(
        request_of(cost={"when": when, "budget_percent": budget, **cost}, repeats=repeats, **level),
        nightly=nightly,
    ),
    st.sampled_from(("always", "nightly", "never")),
    st.integers(2, 4),
    st.sampled_from(LEVELS),
    st.sampled_from((None, 0.0, 50.0)),
    st.booleans(),
    st.sampled_from(({}, {"warmup_steps": 0, "min_steps": 2})),
)


@st.composite
def runs_of(draw: st.DrawFn, request: GateRequest) -> tuple[RunEvidence, ...]:
    """What a call of these settings leaves, whatever went beside what."""
    steps = draw(st.integers(0, MOST_STEPS))
    side_by_side = draw(st.booleans())
    planned = plan_gate(request.strict_runs, priced=request.priced)
    planned += plan_base() if draw(st.booleans()) else ()
    return tuple(
        _run(draw, run.label, steps, 10.0 if side_by_side else 100.0 * number)
        for number, run in enumerate(planned, 1)
    )


def _run(draw: st.DrawFn, label: str, usual: int, begun: float) -> RunEvidence:
    # now and then one takes other steps than the rest, or gives another number
    steps = draw(st.sampled_from((usual,) * 8 + (0, 1)))
    values = (2.5, draw(st.sampled_from((2.25,) * 8 + (2.0,))), 2.125)[:steps]
    timed = draw(st.integers(0, steps))
    seconds = tuple(draw(st.sampled_from((0.0, 0.1, 5.0))) for _ in range(timed))
    run = evidence_of(label, values=values, step_seconds=seconds)
    times = {"clock_seconds": begun, "started_seconds": begun - 1, "begun_seconds": begun}
    first = draw(st.sampled_from((None, begun + 1)))
    return run.model_copy(
        update={
            "run": run.run.model_copy(update=times),
            "first_step_clock_seconds": first if steps else None,
        }
    )


def judged(request: GateRequest, runs: tuple[RunEvidence, ...], trusted: Baseline | None) -> Gated:
    evidence = evidence_set_of(*runs)
    baselines = Baselines(base=trusted, head=None)
    return judge(case_of(request, baselines, evidence, NOT_ISOLATED))


def reports(gated: Gated) -> str:
    """All that a person may read of it."""
    verdict, terminal = gated.verdict, io.StringIO()
    sources = page_sources(verdict, gated.evidence, gated.baseline)
    Console(file=terminal, width=80).print(verdict_view(verdict, LINKS))
    made = (
        comment_text(verdict, LINKS),
        summary_text(verdict, LINKS),
        page_html(verdict, LINKS, sources=sources),
        terminal.getvalue(),
    )
    return "\n".join(made)


@given(st.data(), requests)
def test_a_training_of_few_steps_always_gets_a_verdict(
    data: st.DataObject, request: GateRequest
) -> None:
    first = judged(request, data.draw(runs_of(request)), None)
    assert first.verdict.passes is False
    assert "internal" not in reports(first)
    proposed = first.proposed
    trusted = None if proposed is None else with_entry(None, proposed)
    again = judged(request, data.draw(runs_of(request)), trusted)
    assert reports(again)
    # nothing was compared where there was no step
    assert not again.verdict.passes or again.verdict.baseline is not None


def test_one_step_side_by_side_reproduces_its_own_baseline() -> None:
    request = request_of()
    labels = [run.label for run in plan_gate(2, priced=True)]
    one = (evidence_of(label, values=(2.5,), step_seconds=()) for label in labels)
    runs = tuple(
        run.model_copy(
            update={
                "run": run.run.model_copy(update={"clock_seconds": 10.0}),
                "first_step_clock_seconds": 11.0,
            }
        )
        for run in one
    )
    proposed = judged(request, runs, None).proposed
    assert proposed is not None
    gated = judged(request, runs, with_entry(None, proposed))
    assert gated.verdict.passes
    assert "0 steady steps are too few" in reports(gated)


@given(st.integers(1, MOST_STEPS), st.integers(0, MOST_STEPS), st.integers(1, 4))
def test_two_commits_of_few_steps_are_compared(steps: int, timed: int, rounds: int) -> None:
    seconds = (0.1, 0.2, 0.3)[: min(timed, steps)]
    short = {"values": LOSSES[:steps], "step_seconds": seconds}
    found = compared_of(dict(short), {"values": LOSSES[:1], "step_seconds": ()}, rounds=rounds)
    Console(file=io.StringIO(), width=80).print(compare_view(found.document))
    assert "Base and head are" in compare_page(found.document, found.runs)
