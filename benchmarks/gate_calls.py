"""Gate calls and bare trainings as whole processes: their seconds, and the gate's own memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILO = 1024
LOOK_SECONDS = 0.05
# proc(5), stat: the field `utime`, behind pid and name
USER_TIME = 11
# no call that anybody waits for takes longer
LIMIT_SECONDS = 1200.0
# what the gate gives to every run where the settings name no other number
BARE_THREADS = "1"
READER = b"gate.pipelines.reader"


class CallError(Exception):
    """A gate call that came to no verdict, in the gate's own words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalledRun:
    """A run of a call: from when to when, in seconds since the call began."""

    label: str
    begun_seconds: float
    ended_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """A gate call: its seconds from start to exit, its runs, its memory, what came of it.

    `own_bytes` and `reader_bytes` are the peaks of the gate's process and of the one that reads,
    `own_cpu_seconds` and `reader_cpu_seconds` what they computed, which other work hardly moves;
    `root` is the digest of the state that the first strict run ended with.
    """

    seconds: float
    runs: tuple[CalledRun, ...]
    own_bytes: int
    reader_bytes: int
    outcome: str
    root: str
    own_cpu_seconds: float = 0.0
    reader_cpu_seconds: float = 0.0

    @property
    def own_seconds(self) -> float:
        """Those in which no run was going."""
        spans = ((run.begun_seconds, run.ended_seconds) for run in self.runs)
        return self.seconds - covered_seconds(spans)


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans, each a begin and an end."""
    total, reached = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total


def gate_call(top: Path, out: Path, settings: str, words: Sequence[str] = ()) -> Called:
    """Call the gate in a clone; `CallError` where no verdict came of it.

    That the result equals no baseline is a verdict too: all of the work was done.
    """
    command = (
        *(sys.executable, "-m", "gate", "gate", "--config", settings, "--out", str(out)),
        *words,
    )
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=top, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        peaks = Peaks(process.pid)
        output = _output_in_time(process)
    seconds = time.perf_counter() - begun
    peaks.stop()
    path = out / "verdict.json"
    verdict = json.loads(path.read_bytes()) if path.is_file() else {"outcome": "error"}
    if verdict["outcome"] == "error":
        lines = output.decode("utf-8", "replace").splitlines() or ["no output"]
        raise CallError(next((line for line in lines if line.startswith("error: ")), lines[-1]))
    return _called(seconds, verdict, peaks)


def _output_in_time(process: subprocess.Popen[bytes]) -> bytes:
    """What it prints; `CallError` where it takes too long."""
    try:
        return process.communicate(timeout=LIMIT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        # the gate ends its trainings and cleans up
        process.terminate()
        process.communicate()
    raise CallError(f"no verdict in {LIMIT_SECONDS:,.0f} s")


def _called(seconds: float, verdict: Mapping[str, Any], peaks: Peaks) -> Called:
    return Called(
        seconds=seconds,
        runs=tuple(
            CalledRun(
                label=run["label"],
                begun_seconds=run["begun_seconds"],
                ended_seconds=run["begun_seconds"] + run["wall_seconds"],
            )
            for run in verdict["runs"]
        ),
        own_bytes=peaks.own_bytes,
        reader_bytes=peaks.reader_bytes,
        outcome=verdict["outcome"],
        root=next((state["root"] for state in verdict["states"]), ""),
        own_cpu_seconds=peaks.own_cpu_seconds,
        reader_cpu_seconds=peaks.reader_cpu_seconds,
    )


def bare_seconds(folder: Path, words: Sequence[str], times: int) -> float:
    """A training by hand, so many times one after the other, with a run's number of threads."""
    variables = {**child_environment(), "OMP_NUM_THREADS": BARE_THREADS}
    begun = time.perf_counter()
    for _ in range(times):
        subprocess.run(
            (sys.executable, "train.py", *words),
            cwd=folder,
            env=variables,
            capture_output=True,
            check=True,
        )
    return time.perf_counter() - begun


def child_environment() -> dict[str, str]:
    """PATH with this interpreter first, and no way to import from where the benchmark lies."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    folder = Path(sys.executable).parent
    return {**kept, "PATH": f"{folder}{os.pathsep}{kept.get('PATH', os.defpath)}"}


class Peaks:
    """The most memory of a process, and of those that it started to read what runs left.

    The kernel's own high-water marks, looked at until the process is gone, so that only what came
    in its last moments can be missing. The same of CPU time.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self.own_bytes = 0
        self.reader_bytes = 0
        self.own_cpu_seconds = 0.0
        self.reader_cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.own_bytes = max(self.own_bytes, peak_bytes(self._pid))
            self.own_cpu_seconds = max(self.own_cpu_seconds, cpu_seconds(self._pid))
            for pid in _family(self._pid):
                if READER in _read(pid, "cmdline"):
                    self.reader_bytes = max(self.reader_bytes, peak_bytes(pid))
                    # of the one that forks the others, with those that it has waited for
                    spent = cpu_seconds(pid, with_children=True)
                    self.reader_cpu_seconds = max(self.reader_cpu_seconds, spent)


def peak_bytes(pid: int) -> int:
    """The high-water mark of a process's resident memory; 0 where it is gone."""
    words = _read(pid, "status").partition(b"VmHWM:")[2].split()
    return int(words[0]) * KILO if words else 0


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """What a process has computed, `with_children` that it has waited for; 0 where it is gone."""
    # behind the name, which may hold anything: user, system, and the same of children
    words = _read(pid, "stat").rpartition(b")")[2].split()
    taken = words[USER_TIME : USER_TIME + (4 if with_children else 2)]
    return sum(map(int, taken)) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """The children of a process, their children, and so on."""
    found, pending = list[int](), [pid]
    while pending:
        one = pending.pop()
        children = [int(word) for word in _read(one, f"task/{one}/children").split()]
        found += children
        pending += children
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
