"""Which runs may go at the same time, on which cores, and in which turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate.isolation.modes import Credentials
from gate.isolation.process_request import PrivateFolder
from gate.system.machine import Room
from gate.training.runs import PlannedRun, RunMode

PAIR = 2
# of its own accord the gate takes no more: memory and caches are shared all the same
MOST_UNASKED = 4
# what an interpreter with torch takes before the script does anything, twice over
AHEAD_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A place where a run lives: below `root` for the gate, below `seen` for the run.

    `account` trains in it where the training has one of its own.
    """

    number: int
    root: Path
    seen: Path
    account: Credentials | None = None

    @property
    def place(self) -> PrivateFolder | None:
        """What the run's view shows elsewhere; None where it has no view of its own."""
        return None if self.root == self.seen else PrivateFolder(source=self.root, target=self.seen)


def core_sets(asked: str | int, threads: int, room: Room, runs: int) -> tuple[tuple[int, ...], ...]:
    """Disjoint sets of cores of equal size, one for each run at a time; fewer than two are none.

    `asked` is `runs.parallel`, `threads` how many each run has, `runs` how many runs there could be
    at most. Results may depend on how many cores a script sees, so each set has as many.
    """
    if asked == "never":
        return ()
    most = asked if isinstance(asked, int) else MOST_UNASKED
    lanes = min(most, max(PAIR, runs), room.cpu_quota // max(1, threads))
    if lanes < PAIR:
        return ()
    width = len(room.cpus) // lanes
    return tuple(room.cpus[number * width : (number + 1) * width] for number in range(lanes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Runs that go at the same time; in a `staggered` turn each has a while alone, to be timed.

    Of `independent` ones, one that fails ends no other.
    """

    runs: tuple[PlannedRun, ...]
    staggered: bool = False
    independent: bool = False


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
