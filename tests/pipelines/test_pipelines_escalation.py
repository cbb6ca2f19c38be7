"""After a difference the gate traces two runs by itself; that changes no outcome."""

from __future__ import annotations

import pytest
from gate_bench import Bench
from played_training import SCRIPT, Project
from trace_cases import call, value

from gate.evidence.trace import Claim, NoTrace, TraceFinding
from gate.pipelines.imported_evidence import take_over
from gate.report.brief import brief_of
from gate.verdict.verdict import Outcome, Verdict

END = {"kind": "end", "why": "done", "calls": 1, "unread": 0}


def lines(operator: str, digest: str) -> list[object]:
    """A trace of one call, its output as given."""
    made = call(0, operator, (value("in"),), (value("out"),)).model_dump(mode="json")
    made["outputs"][0]["digest"] = digest
    ran = {"kind": "lines", "lines": [["train.py", 2, 0]]}
    return [{"kind": "call", **made}, ran, END]


def traced(verdict: Verdict) -> TraceFinding:
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.trace is not None
    return verdict.diagnosis.trace


DRAWS = lines("aten::scatter_add", "grid64:DRAWN")
SENTENCE = (
    "aten::scatter_add at train.py:1 gives a different output for equal inputs: the operator is "
    "nondeterministic"
)


def test_two_runs_that_differ_are_traced_and_the_operator_is_named(
    bench: Bench, project: Project
) -> None:
    project.play(random=True, trace=DRAWS)
    verdict = bench.gate().verdict
    found = traced(verdict)
    assert (verdict.outcome, found.claim) == (
        Outcome.NONDETERMINISTIC,
        Claim.NONDETERMINISTIC_OPERATOR,
    )
    assert found.sentence == SENTENCE
    assert f"Traced: {SENTENCE}." in brief_of(verdict).happened


@pytest.mark.usefixtures("priced")
def test_traced_runs_are_no_part_of_the_evidence(bench: Bench, project: Project) -> None:
    project.play(random=True, trace=DRAWS)
    found = bench.gate()
    labels = {run.run.label for run in found.evidence.runs}
    # side by side the second default run would have come after the difference
    assert labels - {"default-2"} == {"strict-1", "default-1", "strict-2"}
    assert {kept.name.partition("/")[0] for kept in found.evidence.kept} == labels
    assert not list((bench.out / "evidence").glob("traced*"))


@pytest.mark.usefixtures("priced")
def test_a_job_that_judges_elsewhere_gets_the_finding_too(bench: Bench, project: Project) -> None:
    project.play(random=True, trace=DRAWS)
    bench.gate()
    other = Bench(project, bench.out.parent / "judged")
    taken = take_over(other.request(), other.adapters(), bench.out / "evidence")
    assert taken.evidence.trace is not None
    assert taken.evidence.trace.sentence == SENTENCE


def test_a_drift_is_traced_against_the_base_commit(bench: Bench, project: Project) -> None:
    project.play(trace=lines("aten::relu", "grid64:aa"))
    base = bench.record()
    project.write("train.py", SCRIPT.replace("import hashlib", "import  hashlib"))
    project.play(losses=["2.5", "2.25", "2.0"], trace=lines("aten::gelu", "grid64:bb"))
    verdict = bench.gate(base=base).verdict
    found = traced(verdict)
    assert (verdict.outcome, found.claim) == (Outcome.CODE_DRIFT, Claim.CODE_PATH)
    assert found.sentence == (
        "aten::gelu at train.py:1 is called instead of aten::relu: the code path changed"
    )
    assert [change.place for change in found.changed] == ["train.py:2"]
    shown = brief_of(verdict).change
    assert shown is not None
    assert shown.caption == "The nearest changed line that ran before the difference:"
    place, before, after = shown.lines
    assert (place, before[:15], after[:16]) == (
        "@@ train.py:2 @@",
        "-import hashlib",
        "+import  hashlib",
    )


def test_what_ran_before_the_first_nan_stands_beside_it(bench: Bench, project: Project) -> None:
    base = bench.record()
    first = call(0, "aten::sub", (value("in"),), (value("out"),)).model_dump(mode="json")
    made = first | {"number": 1, "operator": "aten::log", "line": 2}
    made = made | {"outputs": [made["outputs"][0] | {"odd": "nan"}]}
    later = made | {"number": 2, "operator": "aten::mean", "inputs": made["outputs"]}
    calls = [{"kind": "call", **one} for one in (first, made, later)]
    ran = {"kind": "lines", "lines": [["train.py", 2, 0]]}
    project.write(
        "train.py", SCRIPT.replace("import hashlib", "import  hashlib") + "\n\n# a decoy\nx = 1\n"
    )
    project.play(losses=["2.5", "nan", "nan"], trace=[*calls, ran, END])
    verdict = bench.gate(base=base).verdict
    assert verdict.outcome is Outcome.ERROR
    assert verdict.not_finite is not None
    assert verdict.not_finite.brought
    assert verdict.not_finite.origin == "aten::log at train.py:2 gives the first NaN"
    brief = brief_of(verdict)
    assert "aten::log at train.py:2 gives the first NaN." in brief.happened
    assert brief.change is not None
    assert brief.change.caption == "The nearest changed line that ran before it:"
    assert brief.change.lines[0] == "@@ train.py:2 @@"
    assert verdict.next_steps[0].text.startswith("Look at train.py:2 first, the nearest changed")


def test_it_can_be_switched_off(bench: Bench, project: Project) -> None:
    project.settings("diagnosis: {escalate: false}\n")
    project.play(random=True, trace=DRAWS)
    diagnosis = bench.gate().verdict.diagnosis
    assert diagnosis is not None
    assert diagnosis.trace is None


def test_a_result_that_passes_is_not_traced(bench: Bench, project: Project) -> None:
    project.play(trace=DRAWS, traced={"exit": 1})
    bench.record()
    assert bench.gate().evidence.trace is None


@pytest.mark.parametrize(
    ("played", "told"),
    [
        ({"traced": {"exit": 1}}, "a traced run failed: run traced-1: python3 train.py"),
        ({"trace": ["{"]}, "a traced run failed: trace-r0-"),
        ({}, "no training process left a trace in both runs"),
        (
            {"trace": DRAWS, "traced": {"losses": ["9.5", "2.25", "2.125"]}},
            "a traced run gave a different result than the same run without a trace",
        ),
    ],
)
def test_a_trace_that_fails_claims_nothing_and_changes_nothing(
    bench: Bench, project: Project, played: dict[str, object], told: str
) -> None:
    project.play(random=True, **played)
    verdict = bench.gate().verdict
    found = traced(verdict)
    assert (verdict.outcome, found.claim) == (Outcome.NONDETERMINISTIC, Claim.NOT_FOUND)
    assert told in found.sentence
    assert f"No operator is named: {found.sentence}." in brief_of(verdict).happened
    # a run that failed took its time as well
    assert verdict.timeline is not None
    assert "traced-1" in [run.label for run in verdict.timeline.runs]


def test_a_budget_that_is_used_up_is_told(bench: Bench, project: Project) -> None:
    project.settings("diagnosis: {budget_seconds: 0.5}\n")
    project.play(random=True, trace=DRAWS)
    found = traced(bench.gate().verdict)
    assert found.sentence == (
        "the traced runs did not finish in the time that they had (diagnosis.budget_seconds)"
    )
    assert found.reason is NoTrace.BUDGET
