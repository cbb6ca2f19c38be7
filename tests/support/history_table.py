"""Five hundred verdicts as a table, how each indicator counts them, and how they are written."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from gate.fleet.indicators import GroupBy, SloReport, slo_report
from gate.fleet.reading import Reading
from gate.fleet.stores import BATCH, FolderStore
from gate.settings.slo import Indicator, SloSettings
from gate.text.digests import sha256_hex
from gate.verdict.history_lines import HistoryLine, RollbackLine, line_bytes
from gate.verdict.verdict import FailureMode, Outcome

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
FIRST = NOW - timedelta(days=20)
GOOD: dict[str, object] = {
    "outcome": Outcome.REPRODUCED,
    "passes": True,
    "digests_equal": True,
    "spread": 0.0,
    "step_seconds": 0.1,
    "seconds": 600.0,
}
CHECKED: dict[str, object] = {"data_verified": True, "uncovered_operators": 0}
UNLIKE: dict[str, object] = {
    **GOOD,
    "outcome": Outcome.NONDETERMINISTIC,
    "failure_mode": FailureMode.RANDOM,
    "passes": False,
    "digests_equal": False,
    "spread": 0.25,
}
# One row a kind of verdict: how many, the number of its first commit, what it says, and what one of
# them counts as, from M1 to M10: + good, - bad, . not counted.
TABLE: tuple[tuple[int, int, dict[str, object], str], ...] = (
    # a sealed pass, all of it measured                                      M1 ... M10
    (300, 0, {**GOOD, **CHECKED, "sealed": True}, "+++.+++.++"),
    # passes without a seal; no declared data, no operator audit
    (60, 1000, GOOD, "+++...+.-+"),
    # two strict runs differ, three operators, the data moved
    (20, 2000, {**UNLIKE, "data_verified": False, "uncovered_operators": 3}, "---.--+..+"),
    # the first 40 commits again, with the same outcome
    (40, 0, {**GOOD, **CHECKED, "sealed": True}, "+++++++.++"),
    # the first 10 commits without a seal again, and now their runs differ
    (10, 1000, UNLIKE, "----..+..+"),
    # an error says nothing of the runs
    (30, 3000, {"outcome": Outcome.ERROR, "passes": False}, ".........."),
    # a cancelled call, on commits that have a verdict too
    (10, 0, {"outcome": Outcome.ERROR, "passes": False, "cancelled": True}, ".........."),
    # slow: a step is 20 % longer, and the verdict came after 4,000 s
    (20, 4000, {**GOOD, "sealed": True, "step_seconds": 0.12, "seconds": 4000.0}, "+++...-.+-"),
    # a result that moved with the code: the runs repeat each other
    (10, 5000, {**GOOD, **CHECKED, "outcome": Outcome.CODE_DRIFT, "passes": False}, "+++.+++..+"),
)
# Good and counted, added up by hand over the rows above. M7: the very first verdict has no step
# before it to be compared with. M8: nine rollbacks of ten.
TOTALS: dict[Indicator, tuple[int, int]] = {
    Indicator.REPRODUCIBLE: (430, 460),  # 300+60+40+20+10; and 20+10
    Indicator.DIGESTS: (430, 460),
    Indicator.SPREAD: (430, 460),
    Indicator.FLAKES: (40, 50),  # 40; and 10
    Indicator.DATA: (350, 370),  # 300+40+10; and 20
    Indicator.OPERATORS: (350, 370),
    Indicator.RUN_TIME: (439, 459),  # 299+60+20+40+10+10; and 20
    Indicator.ROLLBACKS: (9, 10),
    Indicator.SEALED: (360, 420),  # 300+40+20; and 60
    Indicator.TIME_TO_VERDICT: (440, 460),  # 300+60+20+40+10+10; and 20
}


def verdicts() -> Iterator[HistoryLine]:
    """Return the 500 verdicts, with those of each row spread evenly over 20 days."""
    for place, (many, first, said, _) in enumerate(TABLE):
        for number in range(many):
            at = FIRST + timedelta(days=20) * number / many + timedelta(seconds=place)
            yield line(at, first + number, run_id=f"{place}-{number}", **said)


def line(at: datetime, commit: int, **said: object) -> HistoryLine:
    facts = {**GOOD, "repository": "o/n", "environment": "0" * 16, **said}
    if said.get("outcome") is Outcome.ERROR:
        facts = {"repository": "o/n", **said}
    return HistoryLine.model_validate(
        {"judged_at": at.isoformat(), "commit": f"{commit:040x}", **facts}
    )


def rollback(number: int, *, succeeded: bool) -> RollbackLine:
    at = FIRST + timedelta(days=number)
    return RollbackLine(judged_at=at.isoformat(), repository="o/n", succeeded=succeeded)


def keep(folder: FolderStore, *lines: HistoryLine | RollbackLine) -> None:
    """Write the lines as `history compact` leaves them: one file per day."""
    days: dict[str, list[HistoryLine | RollbackLine]] = {}
    for one in sorted(lines, key=lambda one: one.judged_at):
        days.setdefault(one.judged_at[:10], []).append(one)
    for day, some in days.items():
        data = b"".join(line_bytes(one) + b"\n" for one in some)
        folder.write(f"{day}/{BATCH}{sha256_hex(data)[:16]}.jsonl", data)


def report(
    folder: FolderStore, settings: SloSettings | None = None, *by: GroupBy, days: float = 28
) -> SloReport:
    reading = Reading(folder, NOW - timedelta(days=days), NOW)
    return slo_report(reading, settings or SloSettings(), by, days=days)
