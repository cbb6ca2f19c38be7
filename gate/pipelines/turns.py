"""Processes of runs that go at the same time: places, cores, room, the word to go."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gate.errors import RunError
from gate.evidence.observations import SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Credentials, Isolation, Separation
from gate.isolation.process_request import (
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
)
from gate.pipelines.adapters import Adapters
from gate.pipelines.run_watch import LOOK_EACH_SECONDS, RunWatch, Watched
from gate.settings.gate_settings import Device, GateSettings
from gate.settings.levels import CostSettings
from gate.system.console import Reached
from gate.system.machine import Room
from gate.training.child_environment import threads_of_a_run
from gate.training.failed_run import may_be_stopped, short_of_room
from gate.training.lanes import AHEAD_BYTES, PAIR, Lane, Turn, core_sets
from gate.training.launch import run_folders, sign_of
from gate.training.plan import training_of
from gate.training.runs import PlannedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where runs live, and the cores of each that goes at the same time; none where one goes."""

    lanes: tuple[Lane, ...]
    core_sets: tuple[tuple[int, ...], ...] = ()


def places_of(
    settings: GateSettings, adapters: Adapters, isolation: Isolation, work: Path, runs: int
) -> Places:
    """As many as cores and memory allow, of `runs` that could go at the same time.

    Where two runs cannot be kept apart, or would not see the same paths, there is one place, and
    the person who waits is told why.
    """
    folder = work / "run"
    places = Places(
        lanes=(Lane(number=0, root=folder, seen=folder, account=isolation.credentials),)
    )
    # the nodes of a cluster are one place: what goes at the same time there is one run's ranks
    if runs == 1 or isolation.job is not None:
        return places
    room = adapters.room()
    host = isolation.host_variables(adapters.host, settings.train.pass_env)
    threads = threads_of_a_run(settings, host)
    sets = core_sets(settings.runs.parallel, threads, room, runs)
    if not sets or room.free_bytes < AHEAD_BYTES:
        return places
    accounts: tuple[Credentials | None, ...] = (isolation.credentials,)
    obstacle = "too many accounts for trainings are in use"
    try:
        # one more than go at the same time: the next turn's first run is started ahead
        accounts += adapters.beside(isolation, len(sets))
    except RunError as fault:
        obstacle = fault.message
    if len(accounts) <= PAIR:
        adapters.progress.step(f"runs go one after the other: {obstacle}")
        return places
    sets = sets[: len(accounts) - 1]
    # a run sees its own lane at another path, and may not read the others at theirs
    adapters.files.fresh_folder(work / "lanes", mode=0o700)
    lanes = tuple(
        Lane(number=number, root=work / "lanes" / str(number), seen=folder, account=account)
        for number, account in enumerate(accounts)
    )
    return Places(lanes=lanes, core_sets=sets)


# a second run of the same work may peak a little higher
MARGIN = 1.25
HOST_RESERVE_BYTES = 1024**3


def fits_beside(run: RunEvidence, room: Room, together: int) -> bool:
    """Whether so many runs that need what this one needed can go at the same time.

    Runs that use a GPU never do: two that contend for one have diverged under strict settings
    (https://github.com/pytorch/pytorch/issues/196164), and which of several a run takes is its own
    choice.
    """
    if run.device_memory_bytes or run.environment.on_gpu:
        return False
    host = int(run.peak_memory_bytes * MARGIN) * together + HOST_RESERVE_BYTES
    return host <= room.free_bytes


def uses_ports(run: RunEvidence) -> bool:
    """Whether a run may take a port by its number, which two at the same time cannot.

    Ranks meet at one, and those of two runs that share a network could meet each other's.
    """
    return bool(run.ranks) or any(
        source.kind is SourceKind.UNSEEN and source.call.startswith("socket.")
        for source in run.sources
    )


# of all steps of a strict run, the share that runs alone where the price is asked for
ALONE_SHARE = 0.15


def seconds_alone(run: RunEvidence, settings: CostSettings) -> float:
    """How long a run that does what this one did has to go alone for the steps that are timed.

    While it begins, the next one starts on other cores, which takes as long as this one's start;
    zero where nothing was timed.
    """
    if not run.timings or run.first_step_seconds is None:
        return 0.0
    steps = max(
        settings.warmup_steps + settings.min_steps, math.ceil(ALONE_SHARE * len(run.timings))
    )
    # the first is in the start
    later = run.timings[1 : steps + 1]
    taken = sum(later.seconds) + sum(later.harness_seconds)
    return run.first_step_seconds + taken


class Fitting:
    """How many runs may go at the same time, as far as the first one has shown."""

    def __init__(
        self, settings: GateSettings, adapters: Adapters, isolation: Isolation, at_a_time: int
    ) -> None:
        """`at_a_time` is how many there are cores for."""
        self._settings = settings
        self._adapters = adapters
        self._shared_network = Separation.NETWORK not in isolation.own
        self._at_a_time = at_a_time
        self.most: int | None = 1 if at_a_time == 1 else None

    def together(self, first: RunEvidence | None) -> int:
        """So many at most; `first` is the first run of the call, where it has ended."""
        if self.most is not None:
            return self.most
        if first is None:
            # whether a run takes a GPU or a port that is there is not known before there was one
            on_gpu = self._settings.train.device is not Device.CPU and self._adapters.gpus().names
            return 1 if on_gpu or self._shared_network else self._at_a_time
        if self._shared_network and uses_ports(first):
            self.most = 1
            return self.most
        room, counts = self._adapters.room(), range(self._at_a_time, 1, -1)
        self.most = next((count for count in counts if fits_beside(first, room, count)), 1)
        return self.most


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
    """One call's processes: a set of cores for each run at a time, one more place than those.

    So the next run can be started while all of a turn's runs have their files still.
    """

    def __init__(
        self,
        group: ProcessGroup,
        places: Places,
        prepare: Prepare,
        adapters: Adapters,
        settings: GateSettings,
    ) -> None:
        """Without sets of cores there is one place, and nothing is started ahead."""
        self._group = group
        self._free = list(places.lanes)
        self._sets = places.core_sets or ((),)
        self._free_cores = list(range(len(self._sets)))
        self._prepare = prepare
        self._files, self._progress = adapters.files, adapters.progress
        self._clock = adapters.clock
        self._ahead: list[Begun] = []
        self._train = settings.train
        self.watch = RunWatch(adapters.files, adapters.clock.seconds)

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
        begun = self._clock.seconds()
        with self._progress.running(turn.runs[0].described_with(turn.runs[1:])) as reached:
            while waiting or any(started.result is None for started in going):
                due = not going or not turn.staggered or self._is_due(going, alone_seconds)
                while waiting and due:
                    going.append(self._go(waiting.pop(0), going))
                    due = not turn.staggered
                self._start_ahead((*waiting, *following))
                left = self._left(going, alone_seconds) if waiting else LOOK_SECONDS
                self._follow(left, going, reached)
                self._note_ends(going)
                if not turn.independent and any(started.failed for started in going):
                    waiting.clear()
                    self._stop(going)
        self.watch.ended(len(turn.runs), self._clock.seconds() - begun)
        return tuple(
            going if turn.independent else sorted(going, key=lambda started: not started.failed)
        )

    def _follow(self, seconds: float, going: list[Begun], reached: Reached | None) -> None:
        """Until a run ends, at most for so long; where somebody watches, with a look a second."""
        if reached is None:
            self._group.follow(seconds)
            return
        self._group.follow(min(seconds, LOOK_EACH_SECONDS))
        living = [self._watched(begun) for begun in going if begun.result is None]
        reached(self.watch.words(living, over=len(going) - len(living)))

    def _watched(self, begun: Begun) -> Watched:
        return Watched(
            out=run_folders(begun.lane.root, begun.planned.varied).out,
            begun_seconds=begun.begun_seconds,
            max_steps=training_of(begun.planned, self._train).max_steps,
        )

    def release(self, begun: Begun) -> None:
        """Nothing of the run is in its place any more."""
        self._free.append(begun.lane)

    def drop(self) -> None:
        """End what was started ahead: it is not needed."""
        self._drop_others(())

    def _is_due(self, going: list[Begun], alone_seconds: float) -> bool:
        return self._left(going, alone_seconds) <= 0 or going[-1].result is not None

    def _left(self, going: list[Begun], alone_seconds: float) -> float:
        return going[-1].begun_seconds + alone_seconds - self._clock.seconds()

    def _go(self, planned: PlannedRun, going: list[Begun]) -> Begun:
        ahead = next(
            (started for started in self._ahead if started.planned.label == planned.label), None
        )
        if ahead is not None:
            self._ahead.remove(ahead)
        begun = ahead or self._begin(planned)
        beside = [other for other in going if other.result is None]
        for other in beside:
            other.beside = (*other.beside, planned.label)
        begun.beside = tuple(other.planned.label for other in beside)
        if begun.lane.place is not None:
            self._files.write_new(sign_of(run_folders(begun.lane.root)), b"")
        begun.begun_seconds = self._clock.seconds()
        begun.started.let_go()
        return begun

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
        begun = {started.planned.label for started in self._ahead}
        for planned in following:
            if not (self._free and self._free_cores) or self.at_a_time == 1:
                return
            if planned.label not in begun:
                self._ahead.append(self._begin(planned))

    def _stop(self, going: list[Begun]) -> None:
        for begun in going:
            if begun.result is None:
                begun.started.stop()

    def _note_ends(self, going: list[Begun]) -> None:
        for begun in going:
            if begun.result is not None and begun.cores is not None:
                self._free_cores.append(begun.cores)
                begun.cores = None

    def _drop_others(self, planned: tuple[PlannedRun, ...]) -> None:
        labels = {run.label for run in planned}
        dropped = [started for started in self._ahead if started.planned.label not in labels]
        for begun in dropped:
            begun.started.stop()
            self._ahead.remove(begun)
        if dropped:
            self._group.follow(0)
        self._note_ends(dropped)
        for begun in dropped:
            self._free.append(begun.lane)
