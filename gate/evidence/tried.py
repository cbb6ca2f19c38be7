"""What runs with one setting moved say: does it make the training repeat, and at what price."""

from __future__ import annotations

from math import comb
from typing import Annotated, Final

from pydantic import Field

from gate.settings.trials import Setting
from gate.text.records_document import Document

MAX_TRIED: Final = 16
MAX_RUNS: Final = 100
# of a setting that helps: as many runs at least, and all of them equal
CERTAIN_RUNS: Final = 4
# and as many pairs without it; where some of those are equal too, it takes more runs
CERTAIN_CONTROLS: Final = 3
# how often a setting that does nothing may look as if it helped
MOST_CHANCE: Final = 0.04
FILLS: Final = (Setting.TORCH_FILL, Setting.HEAP_FILL)
Text = Annotated[str, Field(max_length=1000)]
Name = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=MAX_RUNS)]


def chance_of(pairs: int, differing: int, runs: int) -> float:
    """At most how likely this is of a setting that does nothing.

    `differing` of `pairs` without it differ, and `runs` with it are all equal. Of results with
    probabilities q, a pair is equal with x = Σq², and k runs are with Σq^k, at most x^(k/2). So it
    is at most C(n, d) (1 - x)^d x^(n - d + k/2), taken here at its largest: 3.5 % for three of
    three pairs and four runs.
    """
    equal = pairs - differing + runs / 2
    if not differing or not equal:
        return 1.0
    same = equal / (equal + differing)
    return float(comb(pairs, differing) * (1 - same) ** differing * same**equal)


def runs_needed(pairs: int, differing: int) -> int:
    """As many equal runs as the spread of the fault demands; more than `MAX_RUNS` for none."""
    counts = range(CERTAIN_RUNS, MAX_RUNS + 1)
    fit = (runs for runs in counts if chance_of(pairs, differing, runs) <= MOST_CHANCE)
    return next(fit, MAX_RUNS + 1)


class TriedSetting(Document):
    """One setting moved alone, and runs with it that were compared with each other.

    `written` is what a user writes to have it. `agree` is whether they are equal to each other,
    None where `problem` says why that is not known. `follows` says, of a fill of memory, whether
    the result moves with what the memory is filled with; None where that was not seen. `slower` is
    how many times as long a run takes (wall-clock time, the fastest with it over the fastest
    without), None where none went to the training's end.
    """

    setting: Setting
    written: Name
    runs: Count = 0
    agree: bool | None = None
    follows: bool | None = None
    slower: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    problem: Text = ""

    @property
    def helps(self) -> bool:
        """Whether all runs with it were equal."""
        return self.agree is True

    @property
    def telling(self) -> bool:
        """Whether a fill shows that memory is read unwritten; of other settings, whether it helps.

        A fill that makes runs agree and does not show in the result only moved something else.
        """
        return self.helps and (self.setting not in FILLS or self.follows is True)


class TriedSettings(Document):
    """All that were tried, in order; `untried` are those that the budget of time left no room for.

    `pairs` of runs without any of them were compared, of which `differing` were not equal.
    """

    tried: Annotated[tuple[TriedSetting, ...], Field(max_length=MAX_TRIED)] = ()
    untried: Annotated[tuple[Name, ...], Field(max_length=MAX_TRIED)] = ()
    pairs: Count = 0
    differing: Count = 0

    @property
    def helping(self) -> TriedSetting | None:
        """The setting that helps for certain, the one that tells most; None where chance may."""
        certain = [one for one in self.tried if self.is_certain(one)]
        return next(iter((*(one for one in certain if one.telling), *certain)), None)

    def is_certain(self, one: TriedSetting) -> bool:
        """Whether chance hardly makes it look so."""
        return one.helps and one.runs >= runs_needed(*self.without(one))

    def without(self, one: TriedSetting) -> tuple[int, int]:
        """Pairs of runs that do not have this setting, and how many of them differ."""
        others = [
            other
            for other in self.tried
            if other != one and other.agree is not None and not _of_one_kind(one, other)
        ]
        apart = sum(other.agree is False for other in others)
        return self.pairs + len(others), self.differing + apart


def _of_one_kind(one: TriedSetting, other: TriedSetting) -> bool:
    """Two fills that both help are no contradiction."""
    return one.setting in FILLS and other.setting in FILLS and other.helps
