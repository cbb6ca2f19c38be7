"""Run each played training once per test run, and replay its recording afterwards.

The files of such a training depend only on its script, on `play.json` and on its variables. So a
gate call finds the same files whether the training ran or was replayed. `RecordedTrainings`
implements the protocol of the real processes. If a training draws random numbers, each run of a
call has a separate recording. A training that waits, fails or writes elsewhere always runs, and so
does one with a separate account or a container. Tests about running itself are marked `whole`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from played_training import SCRIPT
from scenes import SCENES, scene
from trainings_at_once import (
    GroupAtOnce,
    Left,
    OnLine,
    RunAtOnce,
    TrainingsAtOnce,
    result_of,
)

from gate.isolation.engine import Engine
from gate.isolation.modes import Credentials, Isolation, IsolationMode
from gate.isolation.process_request import (
    ProcessGroup,
    ProcessRequest,
    ProcessResult,
    StartedProcess,
)
from gate.isolation.stop_signals import StopSignals
from gate.pipelines.adapters import Adapters
from gate.training.isolating import Isolating
from gate.training.probe import PROBE

# Keys of `play.json` with which a result depends on more than that file, or with which a training
# leaves more than results. Such trainings are not recorded.
RUNS = frozenset(("sleep", "trace", "files", "steady", "fails", "exit"))
# keys with which runs differ, so that each run of a call gets a separate recording
DRAWS = frozenset(("random", "needs"))
MODES = ("strict", "default", "traced")
PURE = {SCRIPT}
# variables that only name places, which do not change a result
PLACES = ("REPRO_GATE_OUT", "REPRO_GATE_DATA", "REPRO_GATE_TREE", "REPRO_GATE_LET_GO")
RESULT = "result.json"


def pure(script: str) -> str:
    """Register a variant of the played training whose result depends only on tree and words."""
    PURE.add(script)
    return script


def recording_of(request: ProcessRequest, before: Counter[str] | None = None) -> str:
    """Return the name of this run's recording; empty for a run that must not be recorded.

    `before` counts the runs of the call that draw random numbers, by name without the number.
    """
    tree = request.on_host(request.workdir)
    script, words = tree / "train.py", tree / "play.json"
    if request.under_own_account or request.in_container or SCENES not in os.environ:
        return ""
    if request.argv[:2] != ("python3", "train.py") or not words.is_file():
        return ""
    text = script.read_text("utf-8", "replace")
    if text not in PURE:
        return ""
    play = json.loads(words.read_bytes())
    said = {*play}.union(*(play.get(mode, ()) for mode in MODES))
    if said & RUNS:
        return ""
    variables = {
        name: value
        for name, value in request.env.items()
        if name.startswith(("REPRO_GATE_", "PYTHON")) and name not in (*PLACES, "PYTHONPATH")
    }
    modules = sorted(
        (str(path.relative_to(tree)), path.read_bytes()) for path in tree.rglob("*.py")
    )
    seen = [] if text == SCRIPT else _content(tree)
    limit = request.output_limit_bytes
    known = repr((request.argv, play, sorted(variables.items()), limit, modules, seen))
    name = f"played-{hashlib.sha256(known.encode()).hexdigest()[:32]}"
    if not said & DRAWS or before is None:
        return name
    before[name] += 1
    return f"{name}-{before[name]}"


def _out(request: ProcessRequest) -> Path:
    return request.on_host(Path(request.env["REPRO_GATE_OUT"]))


def _content(folder: Path) -> list[tuple[str, bytes]]:
    """Return path and content of every file below a folder, without the gate's baselines."""
    return [
        (str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".repro-gate" not in path.parts
    ]


def _played(request: ProcessRequest, recording: Path) -> Left:
    """Replay a recording: copy its files to the run's folder and return its output."""
    told = json.loads((recording / RESULT).read_bytes())
    shutil.copytree(recording / "out", _out(request), dirs_exist_ok=True)
    return Left(0, bytes.fromhex(told["output"]), told["output_bytes"])


@dataclass
class Recording:
    """A training that runs, and is recorded if it passes."""

    request: ProcessRequest
    name: str
    started: StartedProcess
    let_go: Callable[[], None] = field(init=False)
    stop: Callable[[], None] = field(init=False)
    _done: bool = False

    def __post_init__(self) -> None:
        self.let_go, self.stop = self.started.let_go, self.started.stop

    @property
    def result(self) -> ProcessResult | None:
        result = self.started.result
        if result is not None and not self._done:
            self._done = True
            if result.exit_code == 0 and not result.timed_out and not self._names_a_place():
                scene(self.name, lambda folder: self._record(folder, result))
        return result

    def _names_a_place(self) -> bool:
        """Decide whether the run's files name its folder: they would be wrong for another run."""
        place = str(Path(self.request.env["REPRO_GATE_OUT"]).parent).encode()
        return any(place in content for _, content in _content(_out(self.request)))

    def _record(self, folder: Path, result: ProcessResult) -> None:
        shutil.copytree(_out(self.request), folder / "out")
        told = {"output": result.output.hex(), "output_bytes": result.output_bytes}
        (folder / RESULT).write_text(json.dumps(told))


@dataclass
class RecordedGroup(GroupAtOnce):
    """The processes of a turn, some of them replayed; `before` counts over the whole call."""

    before: Counter[str] = field(kw_only=True)

    def start(self, request: ProcessRequest, on_line: OnLine) -> StartedProcess:
        name = recording_of(request, self.before)
        place = Path(os.environ[SCENES]) / name if name else None
        if place is not None and place.exists():
            self.runs.append(RunAtOnce(partial(_played, request, place), on_line))
            return self.runs[-1]
        started = self.group.start(request, on_line)
        return Recording(request, name, started) if name else started


def probe_of(request: ProcessRequest) -> str:
    """Return the recording's name for a probe of the training's Python; empty for other requests.

    The answer depends only on the variables and on the machine: the folder contains nothing else.
    """
    if request.under_own_account or request.in_container or SCENES not in os.environ:
        return ""
    if PROBE not in request.argv:
        return ""
    place = str(request.on_host(request.workdir).parent)
    words = [word for word in request.argv if place not in word]
    variables = sorted(item for item in request.env.items() if place not in item[1])
    known = repr((words, variables, request.output_limit_bytes))
    return f"asked-{hashlib.sha256(known.encode()).hexdigest()[:32]}"


@dataclass(frozen=True)
class RecordedTrainings(TrainingsAtOnce):
    """The real processes, except that recorded trainings are replayed.

    The doctor's probe of a training's Python also runs once per test run, since it imports torch.
    """

    before: Counter[str] = field(default_factory=Counter)

    def run(self, request: ProcessRequest, on_line: OnLine) -> ProcessResult:
        name = probe_of(request)
        place = Path(os.environ[SCENES]) / name / RESULT if name else None
        if place is not None and place.exists():
            told = json.loads(place.read_bytes())
            left = Left(0, bytes.fromhex(told["output"]), told["output_bytes"])
            return result_of(lambda: left, on_line)
        result = super().run(request, on_line)
        named = str(request.workdir.parent).encode() in result.output
        if name and result.exit_code == 0 and not result.timed_out and not named:
            told = {"output": result.output.hex(), "output_bytes": result.output_bytes}
            scene(name, lambda folder: (folder / RESULT).write_text(json.dumps(told)))
        return result

    def in_place_of(self, group: ProcessGroup) -> RecordedGroup:
        return RecordedGroup(group, before=self.before)


Beside = Callable[[Isolation, int], tuple[Credentials | None, ...]]
_beside: dict[int, tuple[Credentials | None, ...]] = {}


def _kept_beside(beside: Beside) -> Beside:
    """Cache whether runs can go side by side: without accounts, one trial process per worker."""

    def asked(isolation: Isolation, number: int) -> tuple[Credentials | None, ...]:
        if isolation.mode is not IsolationMode.NONE:
            return beside(isolation, number)
        if number not in _beside:
            _beside[number] = beside(isolation, number)
        return _beside[number]

    return asked


def recorded(adapters: Adapters) -> Adapters:
    """Return the same adapters, with recorded trainings replayed."""
    return replace(
        adapters,
        processes=RecordedTrainings(adapters.processes),
        beside=_kept_beside(adapters.beside),
    )


def record_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay recordings in every program that a test starts inside this process."""
    begin, beside = Isolating.__init__, Isolating.beside

    def made(
        own: Isolating,
        engine: Engine,
        interrupts: StopSignals,
        interpreter: str,
        *rest: Any,  # noqa: ANN401 - whatever else the real one takes
    ) -> None:
        begin(own, engine, interrupts, interpreter, *rest)
        own.processes = RecordedTrainings(own.processes)  # type: ignore[assignment] # its protocol

    monkeypatch.setattr(Isolating, "__init__", made)
    monkeypatch.setattr(
        Isolating,
        "beside",
        lambda own, *arguments: _kept_beside(partial(beside, own))(*arguments),
    )
