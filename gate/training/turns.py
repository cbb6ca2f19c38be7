"""The order of a call's runs: which go together, and which alone because they are timed."""

from __future__ import annotations

from dataclasses import dataclass

from gate.training.lanes import PAIR
from gate.training.runs import PlannedRun, RunMode


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Runs that go at the same time; in a `staggered` turn each has a while alone, to be timed."""

    runs: tuple[PlannedRun, ...]
    staggered: bool = False


def turns_of(planned: tuple[PlannedRun, ...], lanes: int) -> tuple[Turn, ...]:
    """The runs of a gate call in turns, `lanes` at a time at most.

    Default runs, which price determinism, go alone, before and after the first two strict ones: so
    a drift of speed that is linear in time adds the same to both modes. Where those two cannot go
    beside each other, they go one after the other in their turn.
    """
    default = tuple(run for run in planned if run.mode is RunMode.DEFAULT)
    strict = tuple(run for run in planned if run.mode is not RunMode.DEFAULT)
    if not default:
        return in_groups(strict, lanes)
    alone = tuple(Turn(runs=(run,)) for run in default)
    pair = Turn(runs=strict[:PAIR], staggered=True)
    return (alone[0], pair, *alone[1:], *in_groups(strict[PAIR:], lanes))


def in_groups(runs: tuple[PlannedRun, ...], lanes: int) -> tuple[Turn, ...]:
    """So many at a time, in their order."""
    size = max(1, lanes)
    return tuple(Turn(runs=runs[start : start + size]) for start in range(0, len(runs), size))
