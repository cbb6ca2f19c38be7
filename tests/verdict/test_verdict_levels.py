"""What level a result reached, and what thresholds do to the decision."""

from __future__ import annotations

from itertools import product

import pytest
from each_row import each_row
from evidence_cases import PARTS, evidence_of

from gate.comparison.checks import threshold_results
from gate.comparison.compare import compare_results
from gate.comparison.differences import SelfTestProbe
from gate.comparison.level_records import Agreement, Equivalence, LevelResult
from gate.errors import SettingsError
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import GateSettings
from gate.settings.levels import Level, ReachedLevel
from gate.settings.load import parse_settings
from gate.verdict.decision import decide
from gate.verdict.facts import Decision, Facts
from gate.verdict.reached_level import SeedsOfBrought, seeds_of_entry
from gate.verdict.verdict import Outcome

RUN = evidence_of()
NEAR = evidence_of(values=(2.5, 2.25, 2.25), weights=b"WEIGHTS")
FAR = evidence_of(values=(2.5, 2.25, 9.0), weights=b"WEIGHTS")
ELSEWHERE = evidence_of(values=(2.5, 2.25, 9.0), parts={**PARTS, "driver": "9"})
# the last loss of RUN is 2.125
MET, MISSED, ABSENT = "{loss: {max: 2.2}}", "{loss: {max: 2.0}}", "{accuracy: {min: 0.5}}"


def _parsed(policy: str) -> GateSettings:
    text = (
        "version: 1\ntrain: {command: python a.py, max_steps: 3}\n"
        f"compare: {{tolerances: [{{metric: '*', absolute: 0.5}}]}}\npolicy: {policy}\n"
    )
    return parse_settings(text.encode(), "repro-gate.yml")


def _settings(level: str, thresholds: str) -> GateSettings:
    return _parsed(f"{{level: {level}, thresholds: {thresholds}}}")


def _decide(
    settings: GateSettings, baseline: RunEvidence | None = RUN, again: RunEvidence = RUN
) -> Decision:
    def compared(one: RunEvidence, other: RunEvidence) -> object:
        return compare_results(one, other, settings.compare, ("expected", "observed"))

    facts = Facts(
        settings=settings,
        repeat=compared(RUN, again),  # type: ignore[arg-type] # what it is
        self_test=(SelfTestProbe(name="one flipped bit", caught=True),),
        baseline=compared(baseline, RUN) if baseline else None,  # type: ignore[arg-type] # as above
        thresholds=threshold_results(RUN, settings.policy.thresholds),
    )
    return decide(facts)


@pytest.mark.parametrize(
    ("baseline", "level"),
    [(RUN, ReachedLevel.BITWISE), (NEAR, ReachedLevel.TOLERANCE), (FAR, None)],
)
def test_without_a_threshold_the_level_is_that_of_the_numbers(
    baseline: RunEvidence, level: ReachedLevel | None
) -> None:
    assert _decide(_parsed("{}"), baseline).level is level


@pytest.mark.parametrize("baseline", [FAR, ELSEWHERE])
def test_another_result_passes_at_the_functional_level_alone(baseline: RunEvidence) -> None:
    functional = _decide(_settings("functional", MET), baseline)
    assert functional.passes
    assert functional.level is ReachedLevel.FUNCTIONAL
    assert functional.outcome in {Outcome.CODE_DRIFT, Outcome.ENVIRONMENT_DRIFT}
    assert functional.cause.endswith("; every threshold is met, and policy.level asks for no more")
    numerical = _decide(_settings("numerical", MET), baseline)
    assert (numerical.passes, numerical.level) == (False, ReachedLevel.FUNCTIONAL)


@pytest.mark.parametrize(
    ("thresholds", "why"),
    [
        (MISSED, "loss is 2.125 at its last step 3, and policy.thresholds wants at most 2"),
        (ABSENT, "there is no metric accuracy, which policy.thresholds wants at least 0.5"),
    ],
)
def test_a_missed_threshold_stops_every_pass(thresholds: str, why: str) -> None:
    for level, baseline in product(("numerical", "functional"), (RUN, NEAR)):
        decision = _decide(_settings(level, thresholds), baseline)
        assert (decision.passes, decision.missed_threshold) == (False, True)
        assert decision.cause.endswith(f"; but {why}")
    drifted = _decide(_settings("functional", thresholds), FAR)
    assert (drifted.passes, drifted.level) == (False, None)


def test_thresholds_excuse_no_run_that_does_not_repeat_and_no_missing_baseline() -> None:
    settings = _settings("functional", MET)
    assert not _decide(settings, again=FAR).passes
    assert not _decide(settings, None).passes


@each_row(
    ("policy", "why"),
    [
        ("{level: functional}", "level: functional needs thresholds"),
        (
            "{level: functional, thresholds: {a: {min: 0}}, require_bitwise: true}",
            "level: functional and require_bitwise: true exclude each other",
        ),
        ("{level: good}", "'numerical', 'statistical', 'functional' or 'scientific'"),
        ("{thresholds: {a: {min: .nan}}}", "finite number"),
        ("{thresholds: {a: {}}}", "needs min or max"),
        ("{thresholds: {a: 0.9}}", "policy.thresholds.a"),
    ],
)
def test_a_level_that_cannot_be_judged_is_refused(policy: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        _parsed(policy)
    assert why in " ".join(refused.value.details)


HELD = LevelResult(
    asked=Level.STATISTICAL,
    problem="",
    equivalences=(Equivalence(metric="loss", agreement=Agreement.EQUIVALENT),),
)
UNREACHED = HELD.model_copy(update={"problem": "loss is undecided"})
COMPARED_NOTHING = LevelResult(asked=Level.STATISTICAL, problem="")
SEEDED = "seeds: [42, 1, 2]\npolicy: {level: statistical, equivalence: {loss: {absolute: 1}}"


def _over_seeds(
    judged: LevelResult | None, *, baseline: RunEvidence | None = FAR, thresholds: str = "{}"
) -> Decision:
    text = (
        "version: 1\ntrain: {command: python a.py, max_steps: 3}\n"
        f"{SEEDED}, thresholds: {thresholds}}}\n"
    )
    settings = parse_settings(text.encode(), "repro-gate.yml")
    names = ("expected", "observed")
    return decide(
        Facts(
            settings=settings,
            repeat=compare_results(RUN, RUN, settings.compare, names),
            self_test=(SelfTestProbe(name="one flipped bit", caught=True),),
            baseline=compare_results(baseline, RUN, settings.compare, names) if baseline else None,
            thresholds=threshold_results(RUN, settings.policy.thresholds),
            judged=judged,
        )
    )


def test_a_level_over_seeds_excuses_a_drift_and_nothing_else() -> None:
    held = _over_seeds(HELD)
    assert (held.outcome, held.passes, held.level) == (
        Outcome.CODE_DRIFT,
        True,
        ReachedLevel.STATISTICAL,
    )
    assert held.cause.endswith("over the seeds, and policy.level asks for no more")
    assert not _over_seeds(HELD, baseline=None).passes


@pytest.mark.parametrize("judged", [None, UNREACHED, COMPARED_NOTHING])
def test_what_was_not_shown_over_seeds_never_passes(judged: LevelResult | None) -> None:
    decision = _over_seeds(judged)
    assert (decision.passes, decision.level) == (False, None)
    # good enough by thresholds is another level than the one that was asked for
    functional = _over_seeds(judged, thresholds=MET)
    assert (functional.passes, functional.level) == (False, ReachedLevel.FUNCTIONAL)


def test_a_level_that_was_not_reached_says_why_in_the_cause() -> None:
    why = "; the level statistical was not reached: loss is undecided"
    assert _over_seeds(UNREACHED).cause.endswith(why)


def test_a_missed_threshold_stops_a_level_over_seeds() -> None:
    decision = _over_seeds(HELD, thresholds=MISSED)
    assert (decision.passes, decision.missed_threshold) == (False, True)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (SeedsOfBrought.OTHER, "so it does not count as reproduced"),
        (SeedsOfBrought.UNCHECKED, "the settings that decide here name no seeds"),
    ],
)
def test_a_brought_entry_whose_seeds_nobody_saw_is_a_finding(
    found: SeedsOfBrought, words: str
) -> None:
    (finding,) = seeds_of_entry(found)
    assert words in finding.message
    assert seeds_of_entry(SeedsOfBrought.AS_SEEN) == ()
