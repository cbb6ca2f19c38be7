"""Shared by benchmarks of whole processes: taking turns, describing the machine, the page."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """A measured process: its total seconds, those of its work alone, and its further output."""

    process_seconds: float
    work_seconds: float
    told: tuple[str, ...]


Arms = Mapping[str, tuple[str, ...]]


def run(command: tuple[str, ...]) -> Taken:
    """Run a process and measure it.

    A program of `digest_workloads` prints the seconds of its own work as its first word. Raises
    `CalledProcessError` if the process fails.
    """
    begun = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    # `repro-gate diff` ends with 1 if the states differ, which is no failure
    if ended.returncode not in {0, int("diff" in command)}:
        raise subprocess.CalledProcessError(
            ended.returncode, command, ended.stdout, ended.stderr[-2000:]
        )
    seconds = time.perf_counter() - begun
    words = ended.stdout.split() if "-c" in command else []
    return Taken(
        process_seconds=seconds,
        work_seconds=float(words[0]) if words else seconds,
        told=tuple(words[1:]),
    )


def fastest(arms: Arms, rounds: int) -> dict[str, Taken]:
    """Return the fastest process of each way over some rounds, in which all ways take turns."""
    rows = [{name: run(command) for name, command in arms.items()} for _ in range(rounds)]
    return {
        name: min((row[name] for row in rows), key=lambda taken: taken.process_seconds)
        for name in arms
    }


def program(code: str, *arguments: str | Path, python: str = sys.executable) -> tuple[str, ...]:
    """Return the command that runs a program of `digest_workloads`."""
    return (python, "-c", code, *map(str, arguments))


def processor() -> str:
    """Return the processor's name, or its architecture if Linux knows no name."""
    return next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )


def about(signing: str | None) -> str:
    """Describe date, processor, versions and load; `signing` is as in the benchmarks' options."""
    import torch  # noqa: PLC0415 - only for its version, after the options were read

    version = "import importlib.metadata as m; print('0', m.version('model-signing'))"
    signed = f", model-signing {run(program(version, python=signing)).told[0]}" if signing else ""
    return (
        f"{time.strftime('%Y-%m-%d')}. {processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.machine()}; Python {platform.python_version()}, "
        f"torch {torch.__version__}{signed}. Load at the start: {load()}."
    )


def load() -> str:
    """Return the machine's load averages over 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def file_system(folder: Path) -> str:
    """Return the type of the folder's file system, and for ext4 whether it has a journal."""
    top, kind, device = "", "a file system unknown", ""
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        source, mounted, name = line.split()[:3]
        # of several mounts at one place the last hides the others, hence `>=`
        if folder.is_relative_to(mounted) and len(mounted) >= len(top):
            top, kind, device = mounted, name, Path(source).name
    if kind != "ext4":
        return kind
    has_journal = any(Path("/proc/fs/jbd2").glob(f"{device}-*"))
    return f"ext4 with{'' if has_journal else 'out'} a journal"


def write_page(lines: Iterable[str], out: Path | None) -> None:
    """Print the lines as they are measured, and also write them to `out` unless that is None."""
    told = []
    for line in lines:
        print(line, flush=True)
        told.append(line)
    if out is not None:
        out.write_text("\n".join(told) + "\n", encoding="utf-8")
