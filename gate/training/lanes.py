"""Which runs may go at the same time, on which cores, and in which turns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate.isolation.modes import Credentials
from gate.isolation.process_request import PrivateFolder
from gate.system.machine import Room
from gate.training.runs import PlannedRun, RunMode

PAIR = 2
# the gate's own limit unless the settings ask for more: runs share memory and caches
MOST_UNASKED = 4
# twice what an interpreter with torch takes before the script does anything
AHEAD_BYTES = 2 * 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A place for a run: below `root` for the gate, below `seen` for the run itself.

    `account` trains in it if the training has a separate account.
    """

    number: int
    root: Path
    seen: Path
    account: Credentials | None = None

    @property
    def place(self) -> PrivateFolder | None:
        """The folder that the run's view shows elsewhere; None if the run has no private view."""
        return None if self.root == self.seen else PrivateFolder(source=self.root, target=self.seen)


def core_sets(asked: str | int, threads: int, room: Room, runs: int) -> tuple[tuple[int, ...], ...]:
    """Return disjoint core sets of equal size, one for each lane; empty if runs must take turns.

    `asked` is `runs.parallel`. `threads` is the number of each run. `runs` is the largest number of
    runs that could go at once. Sets have equal size because results may depend on how many cores a
    script sees.
    """
    if asked == "never":
        return ()
    most = asked if isinstance(asked, int) else MOST_UNASKED
    # each run needs a core for each of its threads
    lanes = min(most, max(PAIR, runs), room.cpu_quota // max(1, threads))
    if lanes < PAIR:
        return ()
    width = len(room.cpus) // lanes
    return tuple(room.cpus[number * width : (number + 1) * width] for number in range(lanes))


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Runs that go at the same time.

    In a `staggered` turn each run has a while alone, to be timed. If a run of an `independent` turn
    fails, the others go on.
    """

    runs: tuple[PlannedRun, ...]
    staggered: bool = False
    independent: bool = False


def turns_of(planned: tuple[PlannedRun, ...], lanes: int) -> tuple[Turn, ...]:
    """Return the runs of a gate call in turns, with at most `lanes` runs in each.

    Default runs price determinism, so they go alone, before and after the first two strict runs. A
    drift of speed that is linear in time then adds the same to both modes. If those two cannot go
    side by side, they take turns within their turn.
    """
    default = tuple(run for run in planned if run.mode is RunMode.DEFAULT)
    strict = tuple(run for run in planned if run.mode is not RunMode.DEFAULT)
    if not default:
        return in_groups(strict, lanes)
    alone = tuple(Turn(runs=(run,)) for run in default)
    pair = Turn(runs=strict[:PAIR], staggered=True)
    return (alone[0], pair, *alone[1:], *in_groups(strict[PAIR:], lanes))


def in_groups(runs: tuple[PlannedRun, ...], lanes: int) -> tuple[Turn, ...]:
    """Return the runs in groups of at most `lanes`, in their order."""
    size = max(1, lanes)
    return tuple(Turn(runs=runs[start : start + size]) for start in range(0, len(runs), size))
