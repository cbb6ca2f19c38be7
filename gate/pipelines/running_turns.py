"""Runs that go at the same time, and the next ones started ahead: places, cores, the word to go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gate.isolation.process_ports import ProcessGroup, StartedProcess
from gate.isolation.process_request import ProcessRequest, ProcessResult
from gate.system.clock import Clock
from gate.system.files.port import Files
from gate.system.progress import Progress
from gate.training.lanes import Lane
from gate.training.launch import may_be_stopped, run_folders, short_of_room, sign_of
from gate.training.runs import PlannedRun
from gate.training.turns import Turn

LOOK_SECONDS = 600.0
Cores = tuple[int, ...]
Prepare = Callable[[PlannedRun, Lane, Cores], ProcessRequest]


@dataclass(kw_only=True, slots=True)
class Begun:
    """A run from its start on; `beside` are the labels of those that went at the same time.

    `cores` is the number of its set while it has one.
    """

    planned: PlannedRun
    lane: Lane
    cores: int | None
    request: ProcessRequest
    started: StartedProcess
    started_seconds: float
    begun_seconds: float = 0.0
    beside: tuple[str, ...] = ()

    @property
    def result(self) -> ProcessResult | None:
        """How it ended; None while it lives."""
        return self.started.result

    @property
    def times(self) -> dict[str, float]:
        """What the clock told, as `RunRecord` has it."""
        return {"clock_seconds": self.begun_seconds, "started_seconds": self.started_seconds}

    @property
    def failed(self) -> bool:
        """Whether it has failed, and not for want of what the others took, or as it was stopped."""
        ended = self.result
        if ended is None or (ended.exit_code == 0 and not ended.timed_out):
            return False
        return not (self.beside and short_of_room(ended)) and not may_be_stopped(ended)


class Turns:
    """One call's processes, `core_sets` the cores of each run at a time, one more place than those.

    So the next run can be started while all of a turn's runs have their files still.
    """

    def __init__(
        self,
        group: ProcessGroup,
        places: Iterable[Lane],
        core_sets: tuple[Cores, ...],
        prepare: Prepare,
        edges: tuple[Files, Progress, Clock],
    ) -> None:
        """Without `core_sets` there is one place, nothing is kept to cores, and nothing ahead."""
        self._group = group
        self._free = list(places)
        self._sets = core_sets or ((),)
        self._free_cores = list(range(len(self._sets)))
        self._prepare = prepare
        self._files, self._progress, self._clock = edges
        self._ahead: list[Begun] = []

    @property
    def at_a_time(self) -> int:
        """How many runs may go at the same time."""
        return len(self._sets)

    def run(
        self, turn: Turn, following: tuple[PlannedRun, ...] = (), alone_seconds: float = 0.0
    ) -> tuple[Begun, ...]:
        """Run a turn to its end; give each of its runs back with `release` when it has been read.

        `following` are started ahead as cores get free. In a staggered turn the second run is let
        go `alone_seconds` after the first. Where one fails the others are ended, and it stands
        first: nobody needs to wait for them. Raises `RunError` when one cannot be started.
        """
        self._drop_others(turn.runs)
        waiting, going = list(turn.runs), list[Begun]()
        with self._progress.running(turn.runs[0].described_with(turn.runs[1:])):
            while waiting or any(one.result is None for one in going):
                due = not going or not turn.staggered or self._is_due(going, alone_seconds)
                while waiting and due:
                    going.append(self._go(waiting.pop(0), going))
                    due = not turn.staggered
                self._start_ahead((*waiting, *following))
                left = self._left(going, alone_seconds) if waiting else LOOK_SECONDS
                self._group.follow(left)
                self._note_ends(going)
                if any(one.failed for one in going):
                    waiting.clear()
                    self._stop(going)
        return tuple(sorted(going, key=lambda one: not one.failed))

    def release(self, one: Begun) -> None:
        """Nothing of the run is in its place any more."""
        self._free.append(one.lane)

    def drop(self) -> None:
        """End what was started ahead: it is not needed."""
        self._drop_others(())

    def _is_due(self, going: list[Begun], alone_seconds: float) -> bool:
        return self._left(going, alone_seconds) <= 0 or going[-1].result is not None

    def _left(self, going: list[Begun], alone_seconds: float) -> float:
        return going[-1].begun_seconds + alone_seconds - self._clock.seconds()

    def _go(self, planned: PlannedRun, going: list[Begun]) -> Begun:
        ahead = next((one for one in self._ahead if one.planned.label == planned.label), None)
        if ahead is not None:
            self._ahead.remove(ahead)
        one = ahead or self._begin(planned)
        beside = [other for other in going if other.result is None]
        for other in beside:
            other.beside = (*other.beside, planned.label)
        one.beside = tuple(other.planned.label for other in beside)
        if one.lane.place is not None:
            self._files.write_new(sign_of(run_folders(one.lane.root)), b"")
        one.begun_seconds = self._clock.seconds()
        one.started.let_go()
        return one

    def _begin(self, planned: PlannedRun) -> Begun:
        lane, cores = self._free.pop(0), self._free_cores.pop(0)
        request = self._prepare(planned, lane, self._sets[cores])
        label = f"{planned.label}: ".encode() if self.at_a_time > 1 else b""

        def show(line: bytes) -> None:
            self._progress.output(label + line)

        now = self._clock.seconds()
        started = self._group.start(request, show)
        return Begun(
            planned=planned,
            lane=lane,
            cores=cores,
            request=request,
            started=started,
            started_seconds=now,
        )

    def _start_ahead(self, following: tuple[PlannedRun, ...]) -> None:
        begun = {one.planned.label for one in self._ahead}
        for planned in following:
            if not (self._free and self._free_cores) or self.at_a_time == 1:
                return
            if planned.label not in begun:
                self._ahead.append(self._begin(planned))

    def _stop(self, going: list[Begun]) -> None:
        for one in going:
            if one.result is None:
                one.started.stop()

    def _note_ends(self, going: list[Begun]) -> None:
        for one in going:
            if one.result is not None and one.cores is not None:
                self._free_cores.append(one.cores)
                one.cores = None

    def _drop_others(self, wanted: tuple[PlannedRun, ...]) -> None:
        labels = {run.label for run in wanted}
        dropped = [one for one in self._ahead if one.planned.label not in labels]
        for one in dropped:
            one.started.stop()
            self._ahead.remove(one)
        if dropped:
            self._group.follow(0)
        self._note_ends(dropped)
        for one in dropped:
            self._free.append(one.lane)
