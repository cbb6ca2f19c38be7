"""Run gate calls and bare trainings as processes, and measure their seconds and memory."""

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
# proc(5), stat: the position of `utime` after the fields for pid and name
USER_TIME = 11
# a call that takes longer counts as hung
LIMIT_SECONDS = 1200.0
# the number of threads that the gate gives a run unless the settings name another
BARE_THREADS = "1"
READER = b"gate.pipelines.confined_reader"


class CallError(Exception):
    """A gate call gave no verdict; the message is the gate's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CalledRun:
    """A run of a call; begin and end are in seconds since the call began."""

    label: str
    begun_seconds: float
    ended_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """A gate call: its seconds from start to exit, its runs, its memory and its outcome.

    `own_bytes` and `reader_bytes` are the peak memory of the gate's process and of the confined
    reader. `own_cpu_seconds` and `reader_cpu_seconds` are their CPU time, which other work on the
    machine hardly changes. `root` is the digest of the first strict run's final state.
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
        """The seconds of the call in which no run was in progress."""
        spans = ((run.begun_seconds, run.ended_seconds) for run in self.runs)
        return self.seconds - covered_seconds(spans)


def covered_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans, which are pairs of begin and end and may overlap."""
    total, reached = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, reached))
        reached = max(reached, ended)
    return total


def gate_call(top: Path, out: Path, settings: str, words: Sequence[str] = ()) -> Called:
    """Call the gate in a clone and measure it; raises `CallError` if it gives no verdict.

    A verdict that does not pass is fine: the gate has done all its work.
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
    """Return what the process prints; raises `CallError` after `LIMIT_SECONDS`."""
    try:
        return process.communicate(timeout=LIMIT_SECONDS)[0]
    except subprocess.TimeoutExpired:
        # SIGTERM and not SIGKILL: the gate then ends its trainings and cleans up
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
    """Train by hand `times` times in a row, with a run's number of threads; return the seconds."""
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
    """Return the environment with this interpreter first on PATH and no PYTHON variables.

    The gate and the trainings then import what is installed, not files beside the benchmark.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    folder = Path(sys.executable).parent
    return {**kept, "PATH": f"{folder}{os.pathsep}{kept.get('PATH', os.defpath)}"}


class Peaks:
    """Records peak memory and CPU time of a process, and of the readers that it starts.

    A thread reads the kernel's own high-water marks every 50 ms until the process is gone. Only
    growth in the last moments of a process can be missed.
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
        """Stop recording."""
        self._ended.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            self.own_bytes = max(self.own_bytes, peak_bytes(self._pid))
            self.own_cpu_seconds = max(self.own_cpu_seconds, cpu_seconds(self._pid))
            for pid in _family(self._pid):
                if READER in _read(pid, "cmdline"):
                    self.reader_bytes = max(self.reader_bytes, peak_bytes(pid))
                    # the reader forks children: count those that it has waited for
                    spent = cpu_seconds(pid, with_children=True)
                    self.reader_cpu_seconds = max(self.reader_cpu_seconds, spent)


def peak_bytes(pid: int) -> int:
    """Return the peak resident memory of a process in bytes; 0 if the process is gone."""
    words = _read(pid, "status").partition(b"VmHWM:")[2].split()
    return int(words[0]) * KILO if words else 0


def cpu_seconds(pid: int, *, with_children: bool = False) -> float:
    """Return the CPU seconds of a process; 0 if it is gone.

    `with_children` adds those of children that it has waited for.
    """
    # Split after the last `)`: the name before it may contain anything. Then follow the times of
    # user and system, and the same of children.
    words = _read(pid, "stat").rpartition(b")")[2].split()
    taken = words[USER_TIME : USER_TIME + (4 if with_children else 2)]
    return sum(map(int, taken)) / os.sysconf("SC_CLK_TCK")


def _family(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
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
