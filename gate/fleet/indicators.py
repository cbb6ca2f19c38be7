"""Compute M1 to M10 over a history: good events, valid events, target, error budget and burn rate.

The terms are those of the Site Reliability Workbook, chapters 2 and 5; docs/fleet.md defines the
indicators for readers. One pass over the lines is enough. M4 and M7 look back, so the lines must
come in the order of time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from statistics import median
from typing import Final, Literal

from pydantic import Field

from gate.fleet.metric_names import BurnWindow
from gate.fleet.reading import DAY_SECONDS, Moment, Reading
from gate.settings.slo import GateLevels, Indicator, SloSettings
from gate.text.document import Document, Timestamp
from gate.verdict.history_lines import HistoryLine, RollbackLine
from gate.verdict.verdict import FailureMode, Outcome

SLO_SCHEMA: Final = "repro-gate.slo/1"
# M7 compares a step with the median of this many earlier ones.
LOOKED_BACK: Final = 20
# M4 remembers the outcomes of at least this many commits, and of at most twice as many, the latest
# ones.
REMEMBERED: Final = 500_000
MAX_GROUPS: Final = 10_000
REST: Final = "(others)"
SPANS: Final[Mapping[BurnWindow, timedelta]] = {
    BurnWindow.HOUR: timedelta(hours=1),
    BurnWindow.SIX_HOURS: timedelta(hours=6),
    BurnWindow.THREE_DAYS: timedelta(days=3),
}
SPAN_SECONDS: Final = tuple(span.total_seconds() for span in SPANS.values())
LONGEST_SECONDS: Final = max(SPAN_SECONDS)
# outcomes of commits whose repeated or interrupted runs gave different results
UNLIKE: Final = frozenset({Outcome.NONDETERMINISTIC, Outcome.RESUME_DIFFERS})


class GroupBy(StrEnum):
    """The fact by which lines are counted in separate groups."""

    GATE = "gate"
    AUTHOR = "author"
    RUNNER = "runner"
    ENVIRONMENT = "environment"


class Burn(Document):
    """A short window: its bad events compared with the allowed ones.

    `rate` is the burn rate: at 1 the budget lasts exactly for the whole window; None without
    events. `budget_spent` is the share of the whole window's budget that was spent here.
    """

    window: BurnWindow
    good: int = Field(ge=0)
    valid: int = Field(ge=0)
    rate: float | None = None
    budget_spent: float = 0.0


class DayCount(Document):
    """The events of one day, in UTC."""

    day: str
    good: int
    valid: int


class IndicatorLevel(Document):
    """One indicator of one group: `good` of `valid` events, compared with the target.

    `allowed` is the error budget: the number of bad events that the target permits. `budget_left`
    is the share of it that is left, below 0 if the target is missed. `budget_left` and `met` are
    None if there are no valid events.
    """

    indicator: Indicator
    good: int = Field(ge=0)
    valid: int = Field(ge=0)
    ratio: float | None
    target: float
    met: bool | None
    allowed: float
    budget_left: float | None
    burn: tuple[Burn, ...]
    days: tuple[DayCount, ...] = ()


class LastVerdict(Document):
    """A gate's newest verdict, and whether it is older than the gate's limit.

    `line` is None for a gate that the settings name but that has no verdict in the window.
    """

    repository: str
    gate_id: str
    line: HistoryLine | None
    silent: bool
    limit_hours: float


class OutcomeCount(Document):
    """The number of verdicts with one outcome and failure mode; cancelled calls are separate."""

    outcome: Outcome
    failure_mode: FailureMode
    cancelled: bool
    verdicts: int


class GroupLevels(Document):
    """The levels of one group: the lines that share these values of the grouping facts."""

    repository: str
    values: tuple[str, ...]
    lines: int
    outcomes: tuple[OutcomeCount, ...]
    levels: tuple[IndicatorLevel, ...]


class SloReport(Document):
    """The document that `repro-gate slo --format json` prints.

    `left_out` maps reasons to numbers of lines that are not counted. `largest_spread` is the
    largest relative difference of a metric in the window.
    """

    schema_version: Literal["repro-gate.slo/1"] = SLO_SCHEMA
    created_at: Timestamp
    since: Timestamp
    window_days: float
    by: tuple[GroupBy, ...]
    lines: int
    without_run_id: int
    left_out: dict[str, int]
    largest_spread: float | None
    groups: tuple[GroupLevels, ...]
    gates: tuple[LastVerdict, ...]

    @property
    def all_met(self) -> bool:
        """Whether every level with events is met, and no gate is silent."""
        met = (level.met is not False for group in self.groups for level in group.levels)
        return all(met) and not any(gate.silent for gate in self.gates)


# For each indicator in order: whether a line is a good event, or None if it is no valid event.
Events = tuple[bool | None, ...]
# Good and bad events of each indicator.
PLACES: Final = 2 * len(Indicator)
Gate = tuple[str, str]


@cache
def _places(events: Events) -> tuple[int, ...]:
    """Return the indexes to count in a row [M1 good, M1 bad, M2 good, ...], cached per form."""
    places = ((number, good) for number, good in enumerate(events) if good is not None)
    return tuple(2 * number + (not good) for number, good in places)


@dataclass(slots=True)
class LookedBack:
    """What M4 and M7 remember of earlier lines; M4 remembers the last `remembered` commits."""

    remembered: int = REMEMBERED
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    older: dict[int, Outcome] = field(default_factory=dict)
    steps: dict[tuple[str, str, str], deque[float]] = field(default_factory=dict)

    def same_outcome(self, line: HistoryLine) -> bool | None:
        """Return whether this commit's previous verdict by this gate was the same, None if none."""
        if line.cancelled:
            return None
        key = hash((line.repository, line.gate_id, line.commit))
        before = self.outcomes.get(key) or self.older.get(key)
        # Two dictionaries in turns limit the memory, however long the history is.
        if len(self.outcomes) >= self.remembered and key not in self.outcomes:
            self.outcomes, self.older = {}, self.outcomes
        self.outcomes[key] = line.outcome
        return None if before is None else before is line.outcome

    def step_deviation(self, line: HistoryLine) -> float | None:
        """Return how far the step's time is from the median of earlier ones, as a share of it."""
        if not line.step_seconds:
            return None
        key = (line.repository, line.gate_id, line.environment)
        before = self.steps.setdefault(key, deque(maxlen=LOOKED_BACK))
        usual = median(before) if before else None
        before.append(line.step_seconds)
        return None if usual is None else abs(line.step_seconds / usual - 1)


def events_of(line: HistoryLine | RollbackLine, levels: GateLevels, back: LookedBack) -> Events:
    """Return the events of a line, from M1 to M10."""
    if isinstance(line, RollbackLine):
        return tuple(
            line.succeeded if indicator is Indicator.ROLLBACKS else None for indicator in Indicator
        )
    deviation, operators = back.step_deviation(line), line.uncovered_operators
    judged = not line.cancelled and line.outcome is not Outcome.ERROR
    # One run that equals the baseline, or no run, does not show that two runs are equal.
    repeated = line.strict_runs is None or line.strict_runs > 1 or line.outcome in UNLIKE
    return (
        line.outcome not in UNLIKE if judged and repeated else None,
        line.digests_equal,
        None if line.spread is None else line.spread <= levels.spread,
        back.same_outcome(line),
        line.data_verified,
        None if operators is None else operators == 0,
        None if deviation is None else deviation <= levels.step_deviation,
        # M8 counts rollbacks, which have their own lines
        None,
        # without a run there is nothing to seal
        line.sealed if line.passes and line.strict_runs != 0 else None,
        None if line.seconds is None else line.seconds <= levels.seconds,
    )


@dataclass(slots=True)
class _Counts:
    """The events of one group, as rows of good and bad counts: one for each window and each day.

    A day is a number of days since 1970.
    """

    lines: int = 0
    outcomes: Counter[tuple[Outcome, FailureMode, bool]] = field(default_factory=Counter)
    windows: tuple[list[int], ...] = field(
        default_factory=lambda: tuple([0] * PLACES for _ in SPANS)
    )
    days: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Fleet:
    """Everything that one pass counts."""

    settings: SloSettings
    by: tuple[GroupBy, ...]
    now_seconds: float
    lines: int = 0
    without_run_id: int = 0
    largest_spread: float | None = None
    groups: dict[tuple[str, ...], _Counts] = field(default_factory=dict)
    last: dict[Gate, Moment] = field(default_factory=dict)
    back: LookedBack = field(default_factory=LookedBack)
    levels: dict[str, GateLevels] = field(default_factory=dict)

    def count(self, moment: Moment) -> None:
        """Count one more line."""
        line = moment.line
        self.lines += 1
        self.without_run_id += not line.run_id
        levels = self.levels.get(line.gate_id)
        if levels is None:
            levels = self.levels[line.gate_id] = self.settings.of_gate(line.gate_id)
        counts = self._group(line)
        counts.lines += 1
        if isinstance(line, HistoryLine):
            counts.outcomes[line.outcome, line.failure_mode, line.cancelled] += 1
            self.last[line.repository, line.gate_id] = moment
            if line.spread is not None:
                self.largest_spread = max(line.spread, self.largest_spread or 0.0)
        places = _places(events_of(line, levels, self.back))
        day = int(moment.seconds // DAY_SECONDS)
        row = counts.days.get(day)
        if row is None:
            row = counts.days[day] = [0] * PLACES
        for place in places:
            row[place] += 1
        ago = self.now_seconds - moment.seconds
        if ago <= LONGEST_SECONDS:
            for row, span in zip(counts.windows, SPAN_SECONDS, strict=True):
                if ago <= span:
                    for place in places:
                        row[place] += 1

    def _group(self, line: HistoryLine | RollbackLine) -> _Counts:
        values = (line.repository, *(_value(line, indicator) for indicator in self.by))
        indicators = self.groups.get(values)
        if indicators is None:
            # A group is one value of an untrusted line, so their number is limited.
            if len(self.groups) >= MAX_GROUPS:
                values = (REST,) * len(values)
            indicators = self.groups.setdefault(values, _Counts())
        return indicators


def _value(line: HistoryLine | RollbackLine, by: GroupBy) -> str:
    if by is GroupBy.GATE:
        return line.gate_id
    return "" if isinstance(line, RollbackLine) else str(getattr(line, by.value))


def slo_report(
    reading: Reading, settings: SloSettings, by: Iterable[GroupBy], *, days: float
) -> SloReport:
    """Return the service levels of all lines of a reading, in one pass."""
    apart = tuple(dict.fromkeys(by)) or (GroupBy.GATE,)
    fleet = _Fleet(settings=settings, by=apart, now_seconds=reading.now.timestamp())
    for moment in reading.lines():
        fleet.count(moment)
    return SloReport(
        created_at=reading.now.isoformat(),
        since=reading.since.isoformat(),
        window_days=days,
        by=apart,
        lines=fleet.lines,
        without_run_id=fleet.without_run_id,
        left_out=reading.left_out_by_reason(),
        largest_spread=fleet.largest_spread,
        groups=tuple(
            _group_levels(values, counts, _levels_of(values, apart, settings))
            for values, counts in sorted(fleet.groups.items())
        ),
        gates=tuple(_gates(fleet, settings)),
    )


def _levels_of(values: tuple[str, ...], by: tuple[GroupBy, ...], slo: SloSettings) -> GateLevels:
    gate = values[1 + by.index(GroupBy.GATE)] if GroupBy.GATE in by else ""
    return slo.of_gate(gate)


def _group_levels(values: tuple[str, ...], counts: _Counts, levels: GateLevels) -> GroupLevels:
    return GroupLevels(
        repository=values[0],
        values=values[1:],
        lines=counts.lines,
        outcomes=tuple(
            OutcomeCount(outcome=outcome, failure_mode=mode, cancelled=cancelled, verdicts=verdicts)
            for (outcome, mode, cancelled), verdicts in sorted(counts.outcomes.items())
        ),
        levels=tuple(
            _level(indicator, counts, levels.target(indicator)) for indicator in Indicator
        ),
    )


def _level(indicator: Indicator, counts: _Counts, target: float) -> IndicatorLevel:
    place = 2 * list(Indicator).index(indicator)
    days = [
        (day, row[place], row[place] + row[place + 1])
        for day, row in sorted(counts.days.items())
        if row[place] or row[place + 1]
    ]
    good, valid = sum(day[1] for day in days), sum(day[2] for day in days)
    allowed = (1 - target) * valid
    return IndicatorLevel(
        indicator=indicator,
        good=good,
        valid=valid,
        ratio=good / valid if valid else None,
        target=target,
        met=good / valid >= target if valid else None,
        allowed=allowed,
        budget_left=1 - (valid - good) / allowed if valid else None,
        burn=tuple(
            _burn(window, row[place : place + 2], target, allowed)
            for window, row in zip(SPANS, counts.windows, strict=True)
        ),
        days=tuple(DayCount(day=_date(day), good=good, valid=valid) for day, good, valid in days),
    )


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_SECONDS, UTC).date().isoformat()


def _burn(window: BurnWindow, events: list[int], target: float, allowed: float) -> Burn:
    good, bad = events
    return Burn(
        window=window,
        good=good,
        valid=good + bad,
        rate=bad / (good + bad) / (1 - target) if good + bad else None,
        budget_spent=bad / allowed if bad else 0.0,
    )


def _gates(fleet: _Fleet, settings: SloSettings) -> Iterator[LastVerdict]:
    known = {gate for _, gate in fleet.last}
    for (repository, gate), moment in sorted(fleet.last.items()):
        limit = settings.of_gate(gate).silent_hours
        line = moment.line
        yield LastVerdict(
            repository=repository,
            gate_id=gate,
            line=line if isinstance(line, HistoryLine) else None,
            silent=fleet.now_seconds - moment.seconds > limit * 3600,
            limit_hours=limit,
        )
    for gate in sorted(settings.gates.keys() - known):
        limit = settings.of_gate(gate).silent_hours
        yield LastVerdict(repository="", gate_id=gate, line=None, silent=True, limit_hours=limit)
