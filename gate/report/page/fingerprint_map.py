"""Fingerprints over the steps: where two sides are equal, where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from gate.comparison.differences import Comparison
from gate.evidence.fingerprints import order_of
from gate.evidence.step_columns import StepDigests
from gate.report.page.curves import WIDTH
from gate.report.page.page_sources import PageSources, differing
from gate.report.page.scales import Scale, Tick, step_ticks
from gate.report.wording import count
from gate.verdict.verdict import Verdict

COLUMNS = 96
LEFT, RIGHT = 150, 14
ROW_HEIGHT, TOP, BOTTOM = 20, 6, 46
MAX_FINGERPRINTS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """Neighbouring stretches of steps of one kind: `equal` or `differs`."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FingerprintRow:
    """One fingerprint, its bars, and the same in words."""

    name: str
    y: int
    bars: tuple[Bar, ...]
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FingerprintMap:
    """The fingerprints of one comparison over the steps."""

    expected: str
    observed: str
    rows: tuple[FingerprintRow, ...]
    x_ticks: tuple[Tick, ...]
    height: int


def fingerprint_map(verdict: Verdict, sources: PageSources) -> FingerprintMap | None:
    """The fingerprints of the most telling comparison that differs and has both sides."""
    for comparison in differing(verdict):
        left, right = sources.side(comparison.expected), sources.side(comparison.observed)
        if left is not None and right is not None:
            return _map(comparison, equalities(left.steps, right.steps))
    return None


def equalities(left: StepDigests, right: StepDigests) -> dict[str, dict[int, bool]]:
    """For each fingerprint that both sides observed, whether it was equal at each common step."""
    theirs = {digest.step: digest.with_parameters for digest in right.told}
    equal_steps: dict[str, dict[int, bool]] = {}
    for digest in left.told:
        their_digests = theirs.get(digest.step, {})
        for name, text in digest.with_parameters.items():
            if name in their_digests:
                equal_steps.setdefault(name, {})[digest.step] = text == their_digests[name]
    return equal_steps


def _map(comparison: Comparison, equal_steps: dict[str, dict[int, bool]]) -> FingerprintMap | None:
    every = [step for steps in equal_steps.values() for step in steps]
    if not every:
        return None
    first, last = min(every), max(every)
    columns = min(COLUMNS, last - first + 1)
    # each step has a width of its own: one step alone would otherwise be a line without any
    x = Scale(low=first, high=last + 1, start=LEFT, end=WIDTH - RIGHT)
    names = sorted(equal_steps, key=order_of)
    rows = tuple(
        _row(name, equal_steps[name], TOP + place * ROW_HEIGHT, (x, columns))
        for place, name in enumerate(names[:MAX_FINGERPRINTS])
    )
    height = TOP + len(rows) * ROW_HEIGHT + BOTTOM
    return FingerprintMap(
        expected=comparison.expected,
        observed=comparison.observed,
        rows=rows,
        x_ticks=_step_ticks(x),
        height=height,
    )


def _row(name: str, steps: dict[int, bool], y: int, grid: tuple[Scale, int]) -> FingerprintRow:
    x, columns = grid
    width = (x.high - x.low) / columns
    kinds: dict[int, str] = {}
    for step, equal in steps.items():
        column = int((step - x.low) / width)
        # one step that differs marks its whole stretch: it must not vanish
        if not equal or column not in kinds:
            kinds[column] = "equal" if equal else "differs"
    bars = []
    for (kind, _), group in groupby(_stretches(kinds), key=lambda one: (one[1], one[0] - one[2])):
        members = [one[0] for one in group]
        start = x.at(x.low + members[0] * width)
        end = x.at(x.low + (members[-1] + 1) * width)
        bars.append(Bar(kind=kind, x=start, width=round(end - start, 1)))
    return FingerprintRow(name=name, y=y, bars=tuple(bars), words=_words(name, steps))


def _step_ticks(x: Scale) -> tuple[Tick, ...]:
    """The first, the middle and the last step, each under the middle of its own width."""
    half = x.at(x.low + 1) - x.at(x.low)
    inner = Scale(low=x.low, high=x.high - 1, start=x.start + half / 2, end=x.end - half / 2)
    return step_ticks(inner)


def _stretches(kinds: dict[int, str]) -> list[tuple[int, str, int]]:
    """Column, kind and running number: neighbours of one kind have one difference of the two."""
    return [(column, kinds[column], place) for place, column in enumerate(sorted(kinds))]


def _words(name: str, steps: dict[int, bool]) -> str:
    differing_steps = [step for step, equal in steps.items() if not equal]
    if not differing_steps:
        return f"{name}: equal ({count(len(steps), 'step')} observed)"
    return (
        f"{name}: differs at {len(differing_steps):,} of {count(len(steps), 'step')} observed, "
        f"first at step {min(differing_steps)}"
    )
