"""`runs.when_reproduced: one`: a pull request that changes nothing costs one strict run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from baseline_cases import only_entry
from gate_bench import FILES, Bench, gate_call
from played_training import Project

from gate.baseline.entry import Baseline
from gate.baseline.folder import read_entry, write_entries
from gate.baseline.record import with_digest
from gate.errors import EvidenceError, SettingsError
from gate.package.seal import properties_of
from gate.package.statement import Property
from gate.pipelines.case import Gated
from gate.pipelines.gate import judging, run_only
from gate.report.assembly import ReportLinks, report_of
from gate.report.comment import comment_text
from gate.report.layout import Limits
from gate.verdict.request import GateRequest
from gate.verdict.verdict import Answer, Outcome, RunPurpose, Verdict, WhyNotRun

ONE = "cost: {when: nightly}\nruns: {when_reproduced: one}\n"
BOTH = ["strict-1", "strict-2"]


def _request(bench: Bench, **options: object) -> GateRequest:
    return replace(bench.request(**options), nightly=False)


def _gate(bench: Bench) -> Gated:
    return gate_call(_request(bench), bench.adapters())


def _labels(verdict: Verdict) -> list[str]:
    return [run.label for run in verdict.runs]


@pytest.fixture
def recorded(bench: Bench, project: Project) -> Bench:
    """A baseline is recorded, and the settings ask for one run."""
    project.settings(ONE)
    bench.record()
    return bench


def test_one_run_that_equals_the_baseline_is_enough(recorded: Bench) -> None:
    found = _gate(recorded)
    verdict = found.verdict
    assert _labels(verdict) == ["strict-1"]
    assert (verdict.outcome, verdict.passes) == (Outcome.REPRODUCED, True)
    assert verdict.one_run is not None
    words = f"1 run here, equal to 2 recorded on {verdict.one_run.recorded_at[:10]}"
    assert verdict.cause == f"equal to the baseline, bit for bit: {words}"
    assert verdict.answers.repeat is Answer.NOT_COMPARED
    assert verdict.answers.baseline is Answer.EQUAL
    assert [(one.part, one.why) for one in verdict.not_run][-1] == (
        RunPurpose.STRICT_RUNS,
        WhyNotRun.REPRODUCED,
    )
    # a single run recorded nothing, so it proposes nothing
    assert found.proposed is None


def test_comment_and_page_say_what_one_run_did_not_show(recorded: Bench) -> None:
    verdict = _gate(recorded).verdict
    assert verdict.one_run is not None
    report = report_of(verdict, ReportLinks(), Limits(deltas=9, rows=99))
    question, answer = report.overview.rows[0]
    assert question.text == "1 run of this commit"
    assert "equal to 2 recorded on" in answer.text
    assert "two runs of this commit are equal was not checked" in answer.text
    assert f"{verdict.one_run.described}; no second run was made" in comment_text(
        verdict, ReportLinks()
    )
    (sentence,) = (text for text in verdict.not_exercised if text.startswith("rare faults"))
    assert "one run that equals the baseline misses 90 %" in sentence
    assert verdict.equal_runs is not None
    assert (verdict.equal_runs.runs, verdict.equal_runs.missed) == (1, 0.9)
    assert Property.TWO_RUNS_IDENTICAL not in properties_of(verdict)
    assert Property.CHECKPOINT_MATCHES_BASELINE in properties_of(verdict)


def test_a_call_by_night_makes_all_runs(recorded: Bench) -> None:
    verdict = recorded.gate().verdict
    assert (_labels(verdict), verdict.one_run, verdict.passes) == (BOTH, None, True)


def test_who_asks_for_a_number_of_runs_gets_it(recorded: Bench) -> None:
    verdict = gate_call(replace(_request(recorded), repeats=3), recorded.adapters()).verdict
    assert verdict.strict_runs == 3


def test_a_result_that_differs_makes_all_runs(recorded: Bench, project: Project) -> None:
    project.settings(f"{ONE}repeats: 3\n")
    assert _labels(_gate(recorded).verdict) == ["strict-1"]
    project.play(losses=["2.5", "2.25", "2.0"])
    verdict = _gate(recorded).verdict
    assert (verdict.outcome, verdict.strict_runs) == (Outcome.CODE_DRIFT, 3)


def test_weights_that_differ_while_every_metric_is_equal_make_all_runs(
    recorded: Bench, project: Project
) -> None:
    project.play(weights="other")
    assert _labels(_gate(recorded).verdict) == BOTH


def test_a_result_that_is_random_is_found_by_the_second_run(
    recorded: Bench, project: Project
) -> None:
    project.play(random=True)
    verdict = _gate(recorded).verdict
    assert (verdict.outcome, verdict.strict_runs) == (Outcome.NONDETERMINISTIC, 2)


def test_equal_bits_on_another_machine_are_not_enough(recorded: Bench, project: Project) -> None:
    project.play(environment={"cpu": "another"})
    verdict = _gate(recorded).verdict
    assert (_labels(verdict), verdict.outcome) == (BOTH, Outcome.REPRODUCED)


QUARANTINE = 'quarantine: [{reason: a, since: "2026-01-01", until: "2026-01-02"}]'
ASKED: Mapping[str, str] = {
    "other settings of the training": "train: {command: python3 train.py, max_steps: 3, seed: 7}\n",
    "more recorded runs": "baseline: {record_repeats: 3}\n",
    "a quarantine, even an old one": f"baseline: {{{QUARANTINE}}}\n",
    "a threshold that is missed": "policy: {thresholds: {loss: {max: 0.1}}}\n",
}


@pytest.mark.parametrize("extra", ASKED.values(), ids=ASKED)
def test_what_else_the_settings_ask_makes_all_runs(
    recorded: Bench, project: Project, extra: str
) -> None:
    if extra.startswith("train"):
        text = f"version: 1\n{extra}isolation: {{mode: none}}\n{ONE}"
        project.write("repro-gate.yml", text)
        project.commit()
    else:
        project.settings(ONE + extra)
    assert _labels(_gate(recorded).verdict) == BOTH


def test_an_entry_that_is_provisional_makes_all_runs(recorded: Bench, project: Project) -> None:
    entry = read_entry(only_entry(project.path).read_bytes(), "baseline")
    far = {"peers": 1, "metric": "loss"}
    changed = entry.model_validate(entry.model_dump() | {"far": far})
    folder = project.path / ".repro-gate/baseline"
    known = Baseline(entries=(entry,))
    write_entries(FILES, folder, known, Baseline(entries=(with_digest(changed),)))
    project.commit()
    verdict = _gate(recorded).verdict
    assert (_labels(verdict), verdict.outcome) == (BOTH, Outcome.NO_BASELINE)


def test_a_pull_request_that_brings_a_baseline_makes_all_runs(
    recorded: Bench, project: Project
) -> None:
    base = project.commit()
    entry = read_entry(only_entry(project.path).read_bytes(), "baseline")
    other = with_digest(entry.model_copy(update={"reason": "the same numbers, told anew"}))
    folder = project.path / ".repro-gate/baseline"
    write_entries(FILES, folder, Baseline(entries=(entry,)), Baseline(entries=(other,)))
    head = project.commit()
    request = replace(_request(recorded, base=base, commit=head), pull_request=True)
    verdict = gate_call(request, recorded.adapters()).verdict
    assert (_labels(verdict), verdict.outcome) == (BOTH, Outcome.BASELINE_CHANGE)


def test_an_operator_audit_follows_the_one_run(recorded: Bench, project: Project) -> None:
    project.settings(f"{ONE}operator_audit: true\n")
    verdict = _gate(recorded).verdict
    assert (_labels(verdict), verdict.passes) == (["strict-1", "audit-1"], True)


def test_the_judging_job_takes_one_run_that_equals_the_baseline_and_no_other(
    recorded: Bench, project: Project
) -> None:
    commit = project.commit()
    folder = run_only(_request(recorded, commit=commit), recorded.adapters())
    recorded.out = recorded.out.parent / "judged"
    imported = replace(_request(recorded, commit=commit), imported_runs=True)
    verdict = judging(folder)(imported, recorded.adapters(), None).verdict
    assert (_labels(verdict), verdict.passes) == (["strict-1"], True)
    # the same folder where the settings that decide ask for all runs
    with pytest.raises(EvidenceError, match="the evidence contains the runs 'strict-1'"):
        judging(folder)(replace(imported, nightly=True), recorded.adapters(), None)
    # and where the baseline that decides is another one
    project.git("checkout", "-q", "-b", "other")
    entry = read_entry(only_entry(project.path).read_bytes(), "baseline")
    only_entry(project.path).unlink()
    with pytest.raises(EvidenceError, match="has one strict run, and it does not equal"):
        judging(folder)(imported, recorded.adapters(), None)
    assert entry.equal_runs == 2


def test_one_run_and_a_price_in_every_call_exclude_each_other(
    bench: Bench, project: Project
) -> None:
    project.settings("runs: {when_reproduced: one}\n")
    with pytest.raises(SettingsError) as caught:
        bench.request()
    (line,) = caught.value.details
    assert "runs.when_reproduced: one needs cost.when: nightly or never" in line
    assert "the whole file" not in line
