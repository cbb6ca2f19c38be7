"""M1 to M10 of 500 written verdicts, against a table that was counted by hand."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from history_table import FIRST, NOW, TABLE, TOTALS, UNLIKE, keep, line, report, rollback, verdicts
from report_outcomes import CASES

from gate.fleet.indicators import GroupBy, IndicatorLevel, LookedBack, SloReport
from gate.fleet.lines import CallFacts, verdict_line
from gate.fleet.stores import FolderStore, append
from gate.settings.slo import GateLevels, Indicator, SloSettings
from gate.system.files.files import LocalFiles
from gate.verdict.verdict import Outcome


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "history", LocalFiles())


def levels(found: SloReport, group: int = 0) -> dict[Indicator, IndicatorLevel]:
    return {level.indicator: level for level in found.groups[group].levels}


def test_the_table_has_500_verdicts_and_adds_up_to_its_totals() -> None:
    assert sum(many for many, *_ in TABLE) == 500
    for place, indicator in enumerate(Indicator):
        good = sum(many for many, _, _, marks in TABLE if marks[place] == "+")
        valid = sum(many for many, _, _, marks in TABLE if marks[place] != ".")
        first = 1 if indicator is Indicator.RUN_TIME else 0
        if indicator is not Indicator.ROLLBACKS:
            assert (good - first, valid - first) == TOTALS[indicator]


def test_500_written_verdicts_give_the_totals_of_the_table(folder: FolderStore) -> None:
    for one in verdicts():
        append(folder, one)
    for number in range(10):
        append(folder, rollback(number, succeeded=number > 0))
    found = report(folder)
    counted = {one: (level.good, level.valid) for one, level in levels(found).items()}
    assert counted == TOTALS
    assert (found.lines, found.without_run_id, found.largest_spread) == (510, 10, 0.25)
    outcomes = {
        (one.outcome.value, one.failure_mode.value, one.cancelled): one.verdicts
        for one in found.groups[0].outcomes
    }
    assert outcomes == {
        ("reproduced", "none", False): 420,
        ("nondeterministic", "F1", False): 30,
        ("code-drift", "none", False): 10,
        ("error", "none", False): 30,
        ("error", "none", True): 10,
    }


def test_share_budget_and_days_follow_from_the_counts(folder: FolderStore) -> None:
    keep(folder, *verdicts())
    level = levels(report(folder))[Indicator.REPRODUCIBLE]
    # 5 % of 460 may be bad: 23; 30 are
    assert level.ratio == pytest.approx(430 / 460)
    assert (level.target, level.met) == (0.95, False)
    assert level.allowed == pytest.approx(23)
    assert level.budget_left == pytest.approx(-7 / 23)
    assert sum(day.valid for day in level.days) == 460
    assert sum(day.good for day in level.days) == 430


def test_burn_over_an_hour_six_hours_and_three_days(folder: FolderStore) -> None:
    # minutes ago, and whether the runs repeat: 1 bad of 4 in 1 h, 2 of 8 in 6 h, 3 of 20 in 3 d
    hour = [(10, False), (20, True), (30, True), (60, True)]
    six = [(61, False), (120, True), (180, True), (360, True)]
    days = [(361 + number * 100, number > 0) for number in range(12)]
    older = [(10_000 + number, True) for number in range(20)]
    for ago, repeats in (*hour, *six, *days, *older):
        said = {} if repeats else UNLIKE
        append(folder, line(NOW - timedelta(minutes=ago), ago, **said))
    level = levels(report(folder))[Indicator.REPRODUCIBLE]
    burn = {one.window.value: (one.good, one.valid) for one in level.burn}
    assert burn == {"1h": (3, 4), "6h": (6, 8), "3d": (17, 20)}
    # a quarter is bad where a twentieth may be
    assert [one.rate for one in level.burn] == pytest.approx([5, 5, 3])
    # of 40 two may be bad
    assert [one.budget_spent for one in level.burn] == pytest.approx([0.5, 1, 1.5])


def test_nothing_counted_is_neither_met_nor_missed(folder: FolderStore) -> None:
    append(folder, line(NOW, 1, outcome=Outcome.ERROR, passes=False))
    level = levels(report(folder))[Indicator.REPRODUCIBLE]
    assert (level.valid, level.ratio, level.met, level.budget_left) == (0, None, None, None)
    assert [one.rate for one in level.burn] == [None, None, None]


@pytest.mark.parametrize(
    ("name", "runs", "repeated", "sealable"),
    [("reproduced", 2, 1, 1), ("one-run", 1, 0, 1), ("unaffected", 0, 0, 0)],
)
def test_a_pass_of_one_run_or_none_is_no_repeat_and_without_a_run_nothing_is_sealed(
    folder: FolderStore, name: str, runs: int, repeated: int, sealable: int
) -> None:
    made = verdict_line(CASES[name], CallFacts())
    assert made.strict_runs == runs
    append(folder, made.model_copy(update={"judged_at": NOW.isoformat()}))
    found = levels(report(folder))
    assert found[Indicator.REPRODUCIBLE].valid == repeated
    assert found[Indicator.DIGESTS].valid == repeated
    assert found[Indicator.SEALED].valid == sealable
    assert found[Indicator.FLAKES].valid == 0


def test_a_flake_is_counted_at_each_turn_and_only_within_one_gate(folder: FolderStore) -> None:
    turns = [Outcome.REPRODUCED, Outcome.NONDETERMINISTIC, Outcome.REPRODUCED, Outcome.REPRODUCED]
    for hour, outcome in enumerate(turns):
        append(folder, line(FIRST + timedelta(hours=hour), 7, outcome=outcome))
    append(folder, line(NOW, 7, outcome=Outcome.CODE_DRIFT, gate_id="other"))
    default, other = report(folder).groups
    flakes = next(one for one in default.levels if one.indicator is Indicator.FLAKES)
    assert (flakes.good, flakes.valid) == (1, 3)
    assert next(one for one in other.levels if one.indicator is Indicator.FLAKES).valid == 0


def test_step_times_are_compared_within_one_environment(folder: FolderStore) -> None:
    steps = [("a", 0.1), ("b", 0.3), ("a", 0.104), ("b", 0.3), ("a", 0.2)]
    for hour, (machine, seconds) in enumerate(steps):
        at = FIRST + timedelta(hours=hour)
        append(folder, line(at, hour, environment=machine * 16, step_seconds=seconds))
    level = levels(report(folder))[Indicator.RUN_TIME]
    assert (level.good, level.valid) == (2, 3)


def test_lines_are_counted_apart_by_author_runner_and_environment(folder: FolderStore) -> None:
    for number, (author, runner) in enumerate((("ann", "a"), ("ann", "b"), ("bob", "b"))):
        append(folder, line(NOW, number, author=author, runner=runner))
    found = report(folder, None, GroupBy.AUTHOR, GroupBy.RUNNER)
    assert [(group.values, group.lines) for group in found.groups] == [
        (("ann", "a"), 1),
        (("ann", "b"), 1),
        (("bob", "b"), 1),
    ]
    apart = report(folder, None, GroupBy.ENVIRONMENT)
    assert [group.values for group in apart.groups] == [("0" * 16,)]


def test_a_gate_has_targets_and_limits_of_its_own(folder: FolderStore) -> None:
    own = GateLevels(targets={Indicator.REPRODUCIBLE: 0.5}, seconds=100)
    settings = SloSettings(
        targets={Indicator.SEALED: 0.6}, spread=0.3, step_deviation=3.0, gates={"nightly": own}
    )
    for number, gate in enumerate(("default", "nightly")):
        append(folder, line(NOW - timedelta(hours=2), number, gate_id=gate))
        append(folder, line(NOW, number, gate_id=gate, spread=0.3, step_seconds=0.3))
    default, nightly = (levels(report(folder, settings), group) for group in (0, 1))
    assert default[Indicator.REPRODUCIBLE].target == 0.95
    assert nightly[Indicator.REPRODUCIBLE].target == 0.5
    assert nightly[Indicator.SEALED].target == 0.6
    assert (default[Indicator.TIME_TO_VERDICT].good, nightly[Indicator.TIME_TO_VERDICT].good) == (
        2,
        0,
    )
    assert [each[Indicator.SPREAD].good for each in (default, nightly)] == [2, 2]
    assert [each[Indicator.RUN_TIME].good for each in (default, nightly)] == [1, 1]


def test_a_gate_without_a_verdict_for_too_long_is_silent(folder: FolderStore) -> None:
    gates = {"never": GateLevels(), "slow": GateLevels(silent_hours=72)}
    for gate in ("fresh", "old", "slow"):
        hours = {"fresh": 47, "old": 49, "slow": 49}[gate]
        append(folder, line(NOW - timedelta(hours=hours), 1, gate_id=gate))
    found = report(folder, SloSettings(silent_hours=48, gates=gates))
    assert {gate.gate_id: gate.silent for gate in found.gates} == {
        "fresh": False,
        "old": True,
        "slow": False,
        "never": True,
    }
    assert not found.all_met


def test_what_is_older_than_the_window_does_not_count(folder: FolderStore) -> None:
    for days in (1, 6, 8):
        append(folder, line(NOW - timedelta(days=days), days))
    assert report(folder, days=7).lines == 2


def test_a_flake_is_seen_while_its_commit_is_remembered_and_memory_stays_bounded() -> None:
    back = LookedBack(remembered=2)

    def same(commit: int, outcome: Outcome) -> bool | None:
        return back.same_outcome(line(FIRST, commit, outcome=outcome))

    assert [same(commit, Outcome.REPRODUCED) for commit in range(3)] == [None] * 3
    # in the older half by now, and moved to the newer one
    assert same(1, Outcome.CODE_DRIFT) is False
    assert [same(commit, Outcome.REPRODUCED) for commit in range(3, 9)] == [None] * 6
    assert len(back.outcomes) + len(back.older) <= 4
    assert same(0, Outcome.CODE_DRIFT) is None
    assert same(8, Outcome.REPRODUCED) is True
