"""A played training runs once a test run; later ones of that script and words are its recording.

What such a training leaves depends on its script, on `play.json` and on the variables of its run,
so a gate call finds the same files whether it ran or not: `RecordedTrainings` stands in for the
real processes through their own protocol. Of those that draw, each run of a call has a recording of
its own. What waits, fails or writes elsewhere runs every time, and so does whatever has an account
or a container of its own. Tests about the way itself say that they are `whole`.
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

# words of `play.json` that let a result hang on more than it, or leave more than results
RUNS = frozenset(("sleep", "trace", "files", "steady", "fails", "exit"))
# words of those whose runs differ: each run of a call has a recording of its own
DRAWS = frozenset(("random", "needs"))
MODES = ("strict", "default", "traced")
PURE = {SCRIPT}
# where the gate puts a run changes no result
PLACES = ("REPRO_GATE_OUT", "REPRO_GATE_DATA", "REPRO_GATE_TREE", "REPRO_GATE_LET_GO")
RESULT = "result.json"


def pure(script: str) -> str:
    """A variant of the played training that hangs on its tree and its words alone."""
    PURE.add(script)
    return script


def recording_of(request: ProcessRequest, before: Counter[str] | None = None) -> str:
    """The name of the recording that a run of this kind has; empty for one that has none.

    `before` counts the runs of the call that draw, by the names of their first recordings.
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
    """Every file below a folder; baselines are the gate's."""
    return [
        (str(path.relative_to(folder)), path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".repro-gate" not in path.parts
    ]


def _played(request: ProcessRequest, recording: Path) -> Left:
    """Leave what a training that has run before left, say what it said."""
    told = json.loads((recording / RESULT).read_bytes())
    shutil.copytree(recording / "out", _out(request), dirs_exist_ok=True)
    return Left(0, bytes.fromhex(told["output"]), told["output_bytes"])


@dataclass
class Recording:
    """A training that runs, and is recorded when it has passed."""

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
        """What stands in one run's files of its folders is wrong in another's."""
        place = str(Path(self.request.env["REPRO_GATE_OUT"]).parent).encode()
        return any(place in content for _, content in _content(_out(self.request)))

    def _record(self, folder: Path, result: ProcessResult) -> None:
        shutil.copytree(_out(self.request), folder / "out")
        told = {"output": result.output.hex(), "output_bytes": result.output_bytes}
        (folder / RESULT).write_text(json.dumps(told))


@dataclass
class RecordedGroup(GroupAtOnce):
    """Processes of a turn, some of them recordings; `before` is counted over the whole call."""

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
    """The name of the recording of what a training's Python said of itself; empty for all else.

    It hangs on the variables of the run and on the machine, and nothing else is in its folder.
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
    """The real processes, but for trainings that have a recording.

    What the doctor asks a training's Python is asked once a test run: its answer takes an import
    of torch.
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
    """Whether runs can go side by side is tried by a process: once a worker without accounts."""

    def asked(isolation: Isolation, number: int) -> tuple[Credentials | None, ...]:
        if isolation.mode is not IsolationMode.NONE:
            return beside(isolation, number)
        if number not in _beside:
            _beside[number] = beside(isolation, number)
        return _beside[number]

    return asked


def recorded(adapters: Adapters) -> Adapters:
    """The same adapters with played trainings from their recordings."""
    return replace(
        adapters,
        processes=RecordedTrainings(adapters.processes),
        beside=_kept_beside(adapters.beside),
    )


def record_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for whatever program a test starts in this process."""
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
