"""Processes of runs that go at the same time: their places, cores, memory and start signal."""

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
from gate.pipelines.run_watch import LOOK_EACH_SECONDS, LivingRun, RunWatch
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
    """The folders that runs live in, and a set of cores for each run at a time.

    `core_sets` is empty if runs go one after the other.
    """

    lanes: tuple[Lane, ...]
    core_sets: tuple[tuple[int, ...], ...] = ()


def places_of(
    settings: GateSettings, adapters: Adapters, isolation: Isolation, work: Path, runs: int
) -> Places:
    """Return the places for up to `runs` runs, as many as cores, memory and accounts allow.

    If two runs cannot be kept apart, or would see different paths, there is one place. The progress
    output then says why.
    """
    folder = work / "run"
    places = Places(
        lanes=(Lane(number=0, root=folder, seen=folder, account=isolation.credentials),)
    )
    # the nodes of a cluster are one place: the ranks of a single run occupy them
    if runs == 1 or isolation.job is not None:
        return places
    room = adapters.room()
    host = isolation.host_variables(adapters.host, settings.train.pass_env)
    threads = threads_of_a_run(settings, host)
    sets = core_sets(settings.runs.parallel, threads, room, runs)
    if not sets or room.free_bytes < AHEAD_BYTES:
        return places
    # each run gets its own account, or runs at a time could signal or read each other
    accounts: tuple[Credentials | None, ...] = (isolation.credentials,)
    obstacle = "too many accounts for trainings are in use"
    try:
        # one more account than runs at a time: the first run of the next turn is started ahead
        accounts += adapters.beside(isolation, len(sets))
    except RunError as fault:
        obstacle = fault.message
    if len(accounts) <= PAIR:
        adapters.progress.step(f"runs go one after the other: {obstacle}")
        return places
    sets = sets[: len(accounts) - 1]
    # a run sees its own lane at the common path `seen`, so that all runs see equal paths; the mode
    # keeps it from reading the other lanes
    adapters.files.fresh_folder(work / "lanes", mode=0o700)
    lanes = tuple(
        Lane(number=number, root=work / "lanes" / str(number), seen=folder, account=account)
        for number, account in enumerate(accounts)
    )
    return Places(lanes=lanes, core_sets=sets)


# a second run of the same work may need slightly more memory at its peak
MARGIN = 1.25
HOST_RESERVE_BYTES = 1024**3


def fits_beside(run: RunEvidence, room: Room, together: int) -> bool:
    """Decide whether `together` runs that need as much memory as `run` fit into `room`.

    Runs that use a GPU never do: two runs that contend for one GPU have diverged under strict
    settings (https://github.com/pytorch/pytorch/issues/196164). On a machine with several, the
    script itself chooses one.
    """
    if run.device_memory_bytes or run.environment.on_gpu:
        return False
    host = int(run.peak_memory_bytes * MARGIN) * together + HOST_RESERVE_BYTES
    return host <= room.free_bytes


def uses_ports(run: RunEvidence) -> bool:
    """Decide whether a run may bind a port by number, which two runs at a time cannot share.

    Ranks meet at a port. On a shared network the ranks of one run could meet those of another.
    """
    return bool(run.ranks) or any(
        source.kind is SourceKind.UNSEEN and source.call.startswith("socket.")
        for source in run.sources
    )


# if the cost is measured, this share of a strict run's steps runs without a neighbour
ALONE_SHARE = 0.15


def seconds_alone(run: RunEvidence, settings: CostSettings) -> float:
    """Return how many seconds a run like `run` goes alone, so that its timed steps are undisturbed.

    The seconds include its start. The next run starts on other cores meanwhile, which takes as
    long. Zero if `run` has no timings.
    """
    if not run.timings or run.first_step_seconds is None:
        return 0.0
    steps = max(
        settings.warmup_steps + settings.min_steps, math.ceil(ALONE_SHARE * len(run.timings))
    )
    # the first step is part of `first_step_seconds`
    later = run.timings[1 : steps + 1]
    taken = sum(later.seconds) + sum(later.harness_seconds)
    return run.first_step_seconds + taken


class Fitting:
    """How many runs may go at the same time, from what the first run has shown."""

    def __init__(
        self, settings: GateSettings, adapters: Adapters, isolation: Isolation, at_a_time: int
    ) -> None:
        """`at_a_time` is the number of runs that there are cores for."""
        self._settings = settings
        self._adapters = adapters
        self._shared_network = Separation.NETWORK not in isolation.own
        self._at_a_time = at_a_time
        self.most: int | None = 1 if at_a_time == 1 else None

    def together(self, first: RunEvidence | None) -> int:
        """Return how many runs may go at the same time; `first` is the call's first ended run."""
        if self.most is not None:
            return self.most
        if first is None:
            # before the first run it is unknown whether the script uses the GPU or a port; assume
            # that it does
            on_gpu = self._settings.train.device is not Device.CPU and self._adapters.gpus().names
            return 1 if on_gpu or self._shared_network else self._at_a_time
        if self._shared_network and uses_ports(first):
            self.most = 1
            return self.most
        # what the first run needed is the only measure of what the next ones need
        room, counts = self._adapters.room(), range(self._at_a_time, 1, -1)
        self.most = next((count for count in counts if fits_beside(first, room, count)), 1)
        return self.most


LOOK_SECONDS = 600.0
Cores = tuple[int, ...]
Prepare = Callable[[PlannedRun, Lane, Cores], ProcessRequest]


@dataclass(kw_only=True, slots=True)
class Begun:
    """A run from its start on. `beside` are the labels of the runs that went at the same time.

    `cores` is the number of its set of cores, or None after it gave the set back.
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
        """How the process ended; None while it lives."""
        return self.started.result

    @property
    def times(self) -> dict[str, float]:
        """The two times on the monotonic clock, under the names of `RunRecord`."""
        return {"clock_seconds": self.begun_seconds, "started_seconds": self.started_seconds}

    @property
    def failed(self) -> bool:
        """Whether the run failed by its own fault.

        A run that lacked what its neighbours took, or that may have been stopped on purpose, is not
        counted.
        """
        ended = self.result
        if ended is None or (ended.exit_code == 0 and not ended.timed_out):
            return False
        return not (self.beside and short_of_room(ended)) and not may_be_stopped(ended)


class Turns:
    """The processes of one call, with a set of cores for each run at a time.

    There is one place more than sets of cores. So the next run can start while every run of the
    current turn still has its files in place.
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
        """Run a turn to its end; pass each of its runs to `release` once it has been read.

        `following` are started ahead as cores become free. In a staggered turn the second run
        starts `alone_seconds` after the first. If a run fails, the others are ended at once, and
        the failed run is first in the result. Raises `RunError` if a run cannot be started.
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
        """Wait until a run ends, for at most `seconds`; update a progress display every second."""
        if reached is None:
            self._group.follow(seconds)
            return
        self._group.follow(min(seconds, LOOK_EACH_SECONDS))
        living = [self._watched(begun) for begun in going if begun.result is None]
        reached(self.watch.words(living, over=len(going) - len(living)))

    def _watched(self, begun: Begun) -> LivingRun:
        return LivingRun(
            out=run_folders(begun.lane.root, begun.planned.varied).out,
            begun_seconds=begun.begun_seconds,
            max_steps=training_of(begun.planned, self._train).max_steps,
        )

    def release(self, begun: Begun) -> None:
        """Give the run's place back; its files must be gone from it."""
        self._free.append(begun.lane)

    def drop(self) -> None:
        """End the runs that were started ahead and are not needed."""
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
        # in its own lane a process waits for this file; only the gate can write to its folder
        if begun.lane.place is not None:
            self._files.write_new(sign_of(run_folders(begun.lane.root)), b"")
        begun.begun_seconds = self._clock.seconds()
        begun.started.let_go()
        return begun

    def _begin(self, planned: PlannedRun) -> Begun:
        # a set of cores is free as soon as a run ends, its lane only when its files have been read
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
        # one pass without waiting ends the stopped processes, so that their cores and lanes are
        # free
        if dropped:
            self._group.follow(0)
        self._note_ends(dropped)
        for begun in dropped:
            self._free.append(begun.lane)
