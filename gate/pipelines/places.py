"""The places of a call's runs: one alone, or several with accounts and cores of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gate.errors import RunError
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Credentials, Isolation
from gate.pipelines.adapters import Adapters
from gate.pipelines.beside import fits_beside
from gate.settings.gate_settings import Device, GateSettings
from gate.training.child_environment import threads_of_a_run
from gate.training.lanes import AHEAD_BYTES, PAIR, Lane, core_sets


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where runs live, and the cores of each that goes at the same time; none where one goes."""

    lanes: tuple[Lane, ...]
    core_sets: tuple[tuple[int, ...], ...] = ()


def alone(work: Path, isolation: Isolation) -> Places:
    """The one place of runs that go one after the other."""
    folder = work / "run"
    return Places(lanes=(Lane(number=0, root=folder, seen=folder, account=isolation.credentials),))


def places_of(
    settings: GateSettings, adapters: Adapters, isolation: Isolation, work: Path, runs: int
) -> Places:
    """As many as cores and memory allow, of `runs` that could go at the same time.

    Where two runs cannot be kept apart, or would not see the same paths, there is one place, and
    the person who waits is told why.
    """
    room = adapters.room()
    host = isolation.host_variables(adapters.host, settings.train.pass_env)
    threads = threads_of_a_run(settings, host)
    sets = core_sets(settings.runs.parallel, threads, room, runs)
    if not sets or room.free_bytes < AHEAD_BYTES:
        return alone(work, isolation)
    accounts: tuple[Credentials | None, ...] = (isolation.credentials,)
    obstacle = "too many accounts for trainings are in use"
    try:
        # one more than go at the same time: the next turn's first run is started ahead
        accounts += adapters.beside(isolation, len(sets))
    except RunError as fault:
        obstacle = fault.message
    if len(accounts) <= PAIR:
        adapters.progress.step(f"runs go one after the other: {obstacle}")
        return alone(work, isolation)
    sets = sets[: len(accounts) - 1]
    # a run sees its own lane at another path, and may not read the others at theirs
    adapters.files.fresh_folder(work / "lanes", mode=0o700)
    lanes = tuple(
        Lane(number=number, root=work / "lanes" / str(number), seen=work / "run", account=account)
        for number, account in enumerate(accounts)
    )
    return Places(lanes=lanes, core_sets=sets)


class Fitting:
    """How many runs fit into memory at the same time, as far as the first one has shown."""

    def __init__(self, settings: GateSettings, adapters: Adapters, at_a_time: int) -> None:
        """`at_a_time` is how many there are cores for."""
        self._settings = settings
        self._adapters = adapters
        self._at_a_time = at_a_time
        self.most: int | None = 1 if at_a_time == 1 else None

    def together(self, first: RunEvidence | None) -> int:
        """So many at most; `first` is the first run of the call, where it has ended."""
        if self.most is not None:
            return self.most
        gpus = self._adapters.gpus()
        if first is None:
            # how much of a GPU's memory a run needs is not known before there was one
            on_gpu = self._settings.train.device is not Device.CPU and gpus.names
            return 1 if on_gpu else self._at_a_time
        room, counts = self._adapters.room(), range(self._at_a_time, 1, -1)
        self.most = next((one for one in counts if fits_beside(first, room, gpus, one)), 1)
        return self.most
