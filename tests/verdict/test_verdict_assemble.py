from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from each_row import each_row
from evidence_cases import (
    CREATED_AT,
    PARTS,
    evidence_of,
    evidence_set_of,
    series_of,
    settings_of,
)

from gate.baseline.entry import BaselineEntry
from gate.comparison.compare import compare_results
from gate.comparison.differences import (
    CostState,
    DeterminismCost,
    EventKind,
    OptimizerSettingChange,
    SelfTestProbe,
)
from gate.diagnosis.diagnosis import Diagnosis
from gate.errors import ExitCode, GateError, InternalError, RunError
from gate.evidence.observations import UnattestedChild
from gate.evidence.run_evidence import MetricSource, ReplicaDrift, RunEvidence
from gate.isolation.modes import Isolation, IsolationMode, RunIsolation, WriteGuard
from gate.settings.policy_change import PolicyChange
from gate.training.environment import Environment, UnlikeRank
from gate.verdict.assemble import Assessment, assemble, error_verdict
from gate.verdict.decision import decide
from gate.verdict.environment_findings import packages_aside, unlike_ranks
from gate.verdict.facts import EntropyDraw, Facts
from gate.verdict.findings import ended_early, not_exercised, replicas_differ
from gate.verdict.next_step import ANOTHER_RESULT, REVIEW, ReaderPlace, next_steps
from gate.verdict.request import GateRequest
from gate.verdict.verdict import DRIFTS, Outcome, Severity, Verdict

SETTINGS = settings_of()
REQUEST = GateRequest(
    top=Path("/repo"),
    project="examples/a",
    config_name="repro-gate.yml",
    settings=SETTINGS,
    settings_text=b"",
    settings_from="work tree",
    out=Path("out"),
)
ENTRY = BaselineEntry(
    commit="b" * 40,
    recorded_at="2025-09-01T00:00:00+00:00",
    training={},
    environment=Environment(parts={**PARTS, "cpu": "old", "torch": "1"}),
    metrics=evidence_of().metrics,
    steps=evidence_of().steps,
    checkpoint=evidence_of().checkpoint,
)

INTENDED = "--reason 'intended change of the result'"


def _assessment(
    run: RunEvidence | None = None, *, changed_files: tuple[str, ...] = ()
) -> Assessment:
    run = run or evidence_of()
    default = compare_results(
        evidence_of("default-1"),
        evidence_of("default-2", weights=b"x"),
        SETTINGS.compare,
        ("a", "b"),
    )
    facts = Facts(
        settings=SETTINGS,
        repeat=compare_results(run, run, SETTINGS.compare, ("strict-1", "strict-2")),
        self_test=(SelfTestProbe(name="x", caught=True),),
        baseline=compare_results(ENTRY, run, SETTINGS.compare, ("baseline", "strict-1")),
        cost=DeterminismCost(state=CostState.NOT_MEASURABLE, reason="a test"),
    )
    return Assessment(
        evidence=evidence_set_of(run, evidence_of("strict-2"), changed_files=changed_files),
        facts=facts,
        decision=decide(facts),
        entry=ENTRY,
        diagnosis=None,
        default_repeat=default,
        isolation=Isolation(mode=IsolationMode.NONE, credentials=None, reason="not root"),
    )


def test_places_that_a_run_could_write_are_told_with_their_number() -> None:
    places = tuple(Path(f"/srv/open-{number}") for number in range(7))
    used = Isolation(
        mode=IsolationMode.UID,
        credentials=None,
        reason="a test",
        guard=WriteGuard.NONE,
        writable_paths=places,
    )
    told = assemble(replace(_assessment(), isolation=used), REQUEST)
    assert told.isolation.described == "uid (permissions only)"
    assert _messages(told)["writable-paths"] == (
        "7 files and folders outside the run's own folders are writable for the training and "
        "readable for the next run: '/srv/open-0', '/srv/open-1', '/srv/open-2', '/srv/open-3', "
        "'/srv/open-4', ..."
    )
    cut = replace(used, writable_paths=places[:1], paths_uncounted=True)
    told = assemble(replace(_assessment(), isolation=cut), REQUEST)
    assert _messages(told)["writable-paths"].startswith("at least 1 files and folders")


def _messages(verdict: Verdict) -> dict[str, str]:
    return {finding.code: finding.message for finding in verdict.findings}


def test_an_isolated_training_is_worth_no_word_but_an_open_network_is() -> None:
    apart = Isolation(mode=IsolationMode.UID, credentials=None, reason="a test")
    quiet = assemble(replace(_assessment(), isolation=apart), REQUEST)
    assert quiet.isolation == RunIsolation(mode=IsolationMode.UID)
    assert not {"not-isolated", "network-open"} & _messages(quiet).keys()
    told = assemble(replace(_assessment(), isolation=replace(apart, network=True)), REQUEST)
    assert told.isolation.described == "uid, network open"
    assert _messages(told)["network-open"] == (
        "the training could reach the network: isolation.network is true"
    )


def test_a_credential_that_checkout_left_is_a_warning() -> None:
    request = replace(REQUEST, credentials_left=("http.https://github.com/.extraheader",))
    verdict = assemble(_assessment(), request)
    assert _messages(verdict)["credential-left"] == (
        "the checkout left its credential in the clone's configuration: "
        "http.https://github.com/.extraheader"
    )


def test_a_verdict_says_what_it_rests_on() -> None:
    verdict = assemble(_assessment(), REQUEST)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.REPRODUCED, ExitCode.PASS)
    assert verdict.checkpoint_root == evidence_of().checkpoint.root
    assert verdict.baseline_facts is not None
    assert (verdict.baseline_facts.age_days, verdict.baseline_facts.stale) == (123, True)
    assert verdict.series[0].last_decimal == "2.125"
    assert [run.label for run in verdict.runs] == ["strict-1", "strict-2"]


def test_findings_are_told_beside_the_outcome() -> None:
    found = _messages(assemble(_assessment(changed_files=("a.py", "b.py")), REQUEST))
    assert found["dirty-tree"] == "2 uncommitted changes: a.py, b.py"
    assert found["environment-moved"] == "torch: 1 → 2.13.0"
    assert found["baseline-stale"] == "the baseline is 123 days old"
    assert found["default-mode-differs"].startswith("two runs in default mode differ")
    assert found["not-isolated"] == "the training ran under the gate's own account: not root"


def test_packages_that_count_for_nothing_are_told_as_a_notice() -> None:
    run = evidence_of()
    baseline = compare_results(run, run, SETTINGS.compare, ("a", "b")).model_copy(
        update={"packages_aside": ("ruff 0.1 → 0.2", "tool 1 added")}
    )
    (finding,) = packages_aside(baseline)
    assert finding.severity is Severity.NOTICE
    assert finding.message == (
        "installed packages moved that the training does not import, or that environment.ignore "
        "names: ruff 0.1 → 0.2, tool 1 added"
    )
    assert packages_aside(None) == ()


def test_a_rank_in_another_place_is_named() -> None:
    run = evidence_of()
    others = (
        UnlikeRank(rank=1, part="os", found="B", expected="A"),
        UnlikeRank(rank=1, part="packages", found="numpy 1.26 instead of 2.0"),
    )
    here = run.environment.model_copy(update={"unlike_ranks": others})
    (finding,) = unlike_ranks(run.model_copy(update={"environment": here}))
    assert finding.message == (
        "rank 1: os: B instead of A; rank 1: packages: numpy 1.26 instead of 2.0"
    )
    assert unlike_ranks(run) == ()


def test_a_python_that_was_started_without_the_harness_is_told_and_fails_nothing() -> None:
    child = UnattestedChild(
        rank=0, pid=1, command="python -I a.py", reason="is isolated", file="train.py", line=5
    )
    run = evidence_of().model_copy(update={"children": (child,)})
    verdict, plain = (assemble(_assessment(each), REQUEST) for each in (run, evidence_of()))
    assert "train.py:5 started `python -I a.py`" in _messages(verdict)["uninstrumented-subprocess"]
    assert (verdict.outcome, verdict.passes) == (plain.outcome, plain.passes)


def test_printed_metrics_are_marked_as_the_weaker_source() -> None:
    printed = series_of(name="stdout.loss", source=MetricSource.STDOUT)
    run = evidence_of().model_copy(update={"metrics": (*evidence_of().metrics, printed)})
    found = _messages(assemble(_assessment(run), REQUEST))
    assert (
        found["rounded-metric"]
        == "read from printed text, only as exact as it was printed: stdout.loss"
    )


def test_what_a_pull_request_changes_in_the_rules_is_shown() -> None:
    request = replace(
        REQUEST,
        pull_request=True,
        policy_changes=(PolicyChange(file="repro-gate.yml", what="train.seed"),),
    )
    found = _messages(assemble(_assessment(), request))
    assert found["policy-changed"] == (
        "this pull request changes repro-gate.yml; the base commit's version was used"
    )
    assert "settings-from-head" in found
    trusted = assemble(_assessment(), replace(request, settings_from="base"))
    assert "settings-from-head" not in _messages(trusted)


def test_a_baseline_is_stale_when_it_is_older_than_the_settings_say() -> None:
    for days, stale in ((122, True), (123, False), (124, False)):  # the entry is 123 days old
        settings = settings_of(baseline={"stale_after_days": days})
        told = assemble(_assessment(), replace(REQUEST, settings=settings))
        assert ("baseline-stale" in _messages(told)) is stale


@each_row(
    ("recorded_at", "stale"),
    [
        # judged at 2026-01-02T03:04:05+00:00, and 90 days are the default
        ("2025-10-04T03:04:05+00:00", False),
        ("2025-10-03T03:04:06+00:00", False),
        ("2025-10-03T03:04:05+00:00", True),
        # the same moment on a clock two hours ahead
        ("2025-10-03T05:04:05+02:00", True),
        # a clock that is a little ahead makes no age negative
        ("2026-01-02T09:00:00+00:00", False),
    ],
)
def test_ninety_days_are_not_too_old_and_ninety_one_are(recorded_at: str, stale: bool) -> None:  # noqa: FBT001 - a column
    entry = ENTRY.model_copy(update={"recorded_at": recorded_at})
    told = assemble(replace(_assessment(), entry=entry), REQUEST)
    assert ("baseline-stale" in _messages(told)) is stale
    assert told.baseline_facts is not None
    assert told.baseline_facts.age_days >= 0


def test_without_a_baseline_entry_no_age_is_claimed() -> None:
    bare = _assessment()
    facts = replace(bare.facts, baseline=None)
    verdict = assemble(
        replace(bare, entry=None, default_repeat=None, facts=facts, decision=decide(facts)),
        REQUEST,
    )
    assert verdict.baseline_facts is None
    assert verdict.outcome is Outcome.NO_BASELINE
    assert verdict.exit_code is ExitCode.FAIL


def test_a_series_that_is_not_finite_is_drawn_with_a_gap() -> None:
    run = evidence_of(values=(1.0, float("nan")))
    assert assemble(_assessment(run), REQUEST).series[0].values == (1.0, None)


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        (RunError("exited with 1", hint="Fix it.", file="train.py", line=3), 1),
        (InternalError(ValueError("x")), 1),
        (RunError("cannot be started", hint="Fix it."), 2),
    ],
)
def test_doctor_is_proposed_only_where_the_machine_may_be_at_fault(
    fault: GateError, steps: int
) -> None:
    assert len(error_verdict(REQUEST, "a" * 40, CREATED_AT, fault).next_steps) == steps


def test_a_fault_becomes_an_error_verdict() -> None:
    fault = RunError("run strict-1: exited with 1", hint="look", details=("boom",))
    verdict = error_verdict(REQUEST, "a" * 40, CREATED_AT, fault)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.ERROR, ExitCode.ERROR)
    assert (verdict.cause, verdict.fault_details) == ("run strict-1: exited with 1", ("boom",))
    assert verdict.findings[0].remedy == "look"


def test_what_was_not_exercised_follows_the_environment() -> None:
    cpu = not_exercised(evidence_of())
    assert "GPU kernels: the training ran on the CPU" in cpu
    gpu = not_exercised(evidence_of(parts={"device": "H200", "world_size": "2"}))
    assert gpu == (
        "anything after step 3",
        "any other machine or driver",
        "losses and metrics of ranks other than 0 against the baseline",
    )


HERE = ReaderPlace(
    config="a b.yml", out="out", baseline="b.json", base_commit="c" * 40, on_runner=False
)


@pytest.mark.parametrize(
    ("outcome", "command"),
    [
        (
            Outcome.CODE_DRIFT,
            f"repro-gate baseline accept --config 'a b.yml' --out out {INTENDED}",
        ),
        (
            Outcome.NO_BASELINE,
            "repro-gate baseline accept --config 'a b.yml' --out out --reason 'first baseline'",
        ),
        (Outcome.NONDETERMINISTIC, f"repro-gate gate --config 'a b.yml' --commit {'c' * 12}"),
        (Outcome.ERROR, "repro-gate doctor --config 'a b.yml'"),
    ],
)
def test_the_last_step_has_a_command_that_can_be_pasted(outcome: Outcome, command: str) -> None:
    assert next_steps(outcome, HERE, passes=False)[-1].command == command


@each_row(
    ("changes", "text"),
    [
        ((("lr", "0.001"),), "If unintended: set lr of optimizer 0 back to 0.001."),
        (
            (("lr", "0.001"), ("nesterov", "true")),
            (
                "If unintended: set lr of optimizer 0 back to 0.001, nesterov of optimizer 0 back "
                "to true."
            ),
        ),
        (
            (("lr", ""), ("eps", "1e-08")),
            (
                "If unintended: set eps of optimizer 0 back to 1e-08. If that is not it: look at "
                "the schedule."
            ),
        ),
        ((("lr", ""),), "If unintended: look at the schedule."),
        ((), "If unintended: look at the schedule."),
    ],
)
def test_a_setting_that_is_known_to_differ_is_what_to_set_back(
    changes: tuple[tuple[str, str], ...], text: str
) -> None:
    diagnosis = Diagnosis(
        first_step=6,
        kind=EventKind.PARAMETERS,
        subject="parameters",
        cause="the update changed",
        remedy="Look at the schedule.",
        optimizer_settings=tuple(
            OptimizerSettingChange(
                optimizer=0, name=name, before="1", after="2", revert_to=revert_to
            )
            for name, revert_to in changes
        ),
    )
    steps = next_steps(Outcome.CODE_DRIFT, HERE, passes=False, diagnosis=diagnosis)
    assert steps[0].text == text


@each_row("outcome", [one for one in Outcome if one is not Outcome.REPRODUCED])
def test_every_outcome_that_fails_says_what_to_do_and_acceptance_comes_last(
    outcome: Outcome,
) -> None:
    for place in (HERE, replace(HERE, on_runner=True), replace(HERE, base_commit="")):
        steps = next_steps(outcome, place, passes=False)
        assert steps
        assert not any(step.accepts for step in steps[:-1])
        assert "--verbose" not in " ".join(step.command for step in steps)
    # a different result is a pass that a person should look at
    looked_at = [step.text for step in next_steps(outcome, HERE, passes=True)]
    wanted = {Outcome.BASELINE_CHANGE: [REVIEW]} | {one: [ANOTHER_RESULT] for one in DRIFTS}
    assert looked_at == wanted.get(outcome, [])


def test_on_a_runner_without_a_run_a_result_is_accepted_from_the_artifact_by_hand() -> None:
    (_, accept) = next_steps(Outcome.CODE_DRIFT, replace(HERE, on_runner=True), passes=False)
    assert accept.command == ""
    assert accept.text == (
        "If intended: download proposed-baseline.json from this run's artifacts, and "
        "commit it as b.json in this pull request."
    )


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (
            "repro-gate.yml",
            f"repro-gate baseline accept --run 4711 {INTENDED}",
        ),
        (
            "a b.yml",
            f"repro-gate baseline accept --config 'a b.yml' --run 4711 {INTENDED}",
        ),
    ],
)
def test_the_artifact_of_a_known_run_is_accepted_by_one_short_command_too(
    config: str, command: str
) -> None:
    place = replace(HERE, config=config, on_runner=True, run="4711")
    (_, accept, without) = next_steps(Outcome.CODE_DRIFT, place, passes=False)
    assert accept.command == command
    assert accept.text == "If intended, record it in this pull request:"
    assert without.text.startswith(
        "Without a clone: download proposed-baseline.json from this run's artifacts"
    )
    (first, _) = next_steps(Outcome.NO_BASELINE, place, passes=False)
    assert first.command.endswith("--reason 'first baseline'")


def test_what_was_not_proposed_cannot_be_accepted() -> None:
    steps = next_steps(Outcome.CODE_DRIFT, HERE, passes=False, proposed=False)
    assert not any(step.accepts for step in steps)


def test_a_script_that_ends_before_its_steps_is_told() -> None:
    (found,) = ended_early(evidence_of(), 100_000)
    assert found.message == (
        "the script ended by itself after 3 of 100,000 optimizer steps (train.max_steps)"
    )
    assert ended_early(evidence_of(), 3) == ()


def test_a_pass_that_a_draw_stops_is_told_which_draw_to_seed() -> None:
    plain = _assessment()
    draw = EntropyDraw(call="os.urandom", place="train.py:4", code_place=None)
    drawn = replace(plain, facts=replace(plain.facts, entropy=draw))
    stopped = replace(drawn, decision=replace(plain.decision, passes=False, by_chance=True))
    seed = "Seed the draw from os.urandom in train.py:4 with a constant, or remove it."
    assert [step.text for step in assemble(stopped, REQUEST).next_steps] == [seed]
    # equal bits pass, draw or not: nothing is to be done about it
    assert seed not in [step.text for step in assemble(drawn, REQUEST).next_steps]


def drifted(**changes: object) -> RunEvidence:
    drift = ReplicaDrift(
        step=4,
        equal_until=3,
        like=0,
        ranks=(1,),
        parameters=("model/0/module.1.bias",),
        differing=3,
    )
    return evidence_of().model_copy(
        update={"replica_drift": drift.model_copy(update=dict(changes))}
    )


def test_replicas_that_differ_are_named_by_rank_step_and_parameter() -> None:
    (finding,) = replicas_differ(drifted())
    assert finding.message == (
        "rank 1 has different weights than rank 0 after step 4 (equal after step 3), although "
        "DistributedDataParallel keeps them equal: module.1.bias and 2 more at the end"
    )
    (finding,) = replicas_differ(
        drifted(ranks=(1, 3), parameters=(), differing=0, equal_until=None)
    )
    assert finding.message == (
        "ranks 1 and 3 have different weights than rank 0 after step 4, although "
        "DistributedDataParallel keeps them equal"
    )
    assert replicas_differ(evidence_of()) == ()
