"""M1 to M10 over a history: good events, events that count, target, error budget and burn.

Terms as in the Site Reliability Workbook, chapters 2 and 5. One pass over the lines, in whose order
M4 and M7 look back; docs/fleet.md has the definitions for readers.
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
from gate.verdict.history import HistoryLine, RollbackLine
from gate.verdict.verdict import FailureMode, Outcome

SLO_SCHEMA: Final = "repro-gate.slo/1"
LOOKED_BACK: Final = 20
# commits of gates: at least so many, and at most twice as many, of those heard of last
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
# what an interrupted or a repeated run made differently
UNLIKE: Final = frozenset({Outcome.NONDETERMINISTIC, Outcome.RESUME_DIFFERS})


class GroupBy(StrEnum):
    """What lines are counted apart by."""

    GATE = "gate"
    AUTHOR = "author"
    RUNNER = "runner"
    ENVIRONMENT = "environment"


class Burn(Document):
    """A short window: bad events over those allowed, and the share of the whole budget they took.

    `rate` is None where nothing counted; at 1 the budget lasts exactly for the whole window.
    """

    window: BurnWindow
    good: int = Field(ge=0)
    valid: int = Field(ge=0)
    rate: float | None = None
    budget_spent: float = 0.0


class DayCount(Document):
    """Events of one day, in UTC."""

    day: str
    good: int
    valid: int


class Level(Document):
    """One indicator of one group: `good` of `valid` events against the target.

    `allowed` bad events are the error budget, `budget_left` the share of it that is left, below 0
    where the target is missed, None where nothing counted. `met` is None there too.
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
    """The newest verdict of a gate, and whether it is older than the gate's limit.

    `line` is None for a gate that the settings name and the window has no verdict of.
    """

    repository: str
    gate_id: str
    line: HistoryLine | None
    silent: bool
    limit_hours: float


class OutcomeCount(Document):
    """Verdicts of one outcome and failure mode; cancelled calls are apart."""

    outcome: Outcome
    failure_mode: FailureMode
    cancelled: bool
    verdicts: int


class GroupLevels(Document):
    """The levels of the lines that share these values of what they are counted apart by."""

    repository: str
    values: tuple[str, ...]
    lines: int
    outcomes: tuple[OutcomeCount, ...]
    levels: tuple[Level, ...]


class SloReport(Document):
    """What `repro-gate slo --format json` prints.

    `left_out` counts lines that are not counted by reason. `largest_spread` is the largest relative
    difference of a metric in the window.
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
        """Whether every level that has events is met and no gate is silent."""
        met = (level.met is not False for group in self.groups for level in group.levels)
        return all(met) and not any(gate.silent for gate in self.gates)


# of each indicator in its order whether a line is a good event of it; None: it does not count
Events = tuple[bool | None, ...]
PLACES: Final = 2 * len(Indicator)
Gate = tuple[str, str]


@cache
def _places(events: Events) -> tuple[int, ...]:
    """Where each event that counts is in a row of good and bad ones; a line has few forms."""
    places = ((number, good) for number, good in enumerate(events) if good is not None)
    return tuple(2 * number + (not good) for number, good in places)


@dataclass(slots=True)
class LookedBack:
    """What M4 and M7 remember of earlier lines; M4 of the last `remembered` commits of gates."""

    remembered: int = REMEMBERED
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    older: dict[int, Outcome] = field(default_factory=dict)
    steps: dict[tuple[str, str, str], deque[float]] = field(default_factory=dict)

    def same_outcome(self, line: HistoryLine) -> bool | None:
        """Whether the last verdict of this gate on this commit had this outcome; None: none had."""
        if line.cancelled:
            return None
        key = hash((line.repository, line.gate_id, line.commit))
        before = self.outcomes.get(key) or self.older.get(key)
        # however long the history is: the memory of two such dictionaries
        if len(self.outcomes) >= self.remembered and key not in self.outcomes:
            self.outcomes, self.older = {}, self.outcomes
        self.outcomes[key] = line.outcome
        return None if before is None else before is line.outcome

    def step_deviation(self, line: HistoryLine) -> float | None:
        """How far its step is from the median of those before, as a share of it."""
        if not line.step_seconds:
            return None
        key = (line.repository, line.gate_id, line.environment)
        before = self.steps.setdefault(key, deque(maxlen=LOOKED_BACK))
        usual = median(before) if before else None
        before.append(line.step_seconds)
        return None if usual is None else abs(line.step_seconds / usual - 1)


def events_of(line: HistoryLine | RollbackLine, levels: GateLevels, back: LookedBack) -> Events:
    """What a line counts for, from M1 to M10."""
    if isinstance(line, RollbackLine):
        return tuple(
            line.succeeded if indicator is Indicator.ROLLBACKS else None for indicator in Indicator
        )
    deviation, operators = back.step_deviation(line), line.uncovered_operators
    judged = not line.cancelled and line.outcome is not Outcome.ERROR
    # one run that equals the baseline, or none, shows nothing of two
    repeated = line.strict_runs is None or line.strict_runs > 1 or line.outcome in UNLIKE
    return (
        line.outcome not in UNLIKE if judged and repeated else None,
        line.digests_equal,
        None if line.spread is None else line.spread <= levels.spread,
        back.same_outcome(line),
        line.data_verified,
        None if operators is None else operators == 0,
        None if deviation is None else deviation <= levels.step_deviation,
        None,
        # without a run there is nothing to seal
        line.sealed if line.passes and line.strict_runs != 0 else None,
        None if line.seconds is None else line.seconds <= levels.seconds,
    )


@dataclass(slots=True)
class _Counts:
    """The events of one group: by the window's place or the day since 1970, [good, bad] of each."""

    lines: int = 0
    outcomes: Counter[tuple[Outcome, FailureMode, bool]] = field(default_factory=Counter)
    windows: tuple[list[int], ...] = field(
        default_factory=lambda: tuple([0] * PLACES for _ in SPANS)
    )
    days: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Fleet:
    """All that one pass counts."""

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
        """One more line."""
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
    """The service levels of all lines of a reading, which it goes through once."""
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


def _level(indicator: Indicator, counts: _Counts, target: float) -> Level:
    place = 2 * list(Indicator).index(indicator)
    days = [
        (day, row[place], row[place] + row[place + 1])
        for day, row in sorted(counts.days.items())
        if row[place] or row[place + 1]
    ]
    good, valid = sum(day[1] for day in days), sum(day[2] for day in days)
    allowed = (1 - target) * valid
    return Level(
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
