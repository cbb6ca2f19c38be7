"""What the benchmarks of whole processes share: ways that take turns, and the machine's name."""

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
    """The fastest process: all of it, its work alone, and what else it printed."""

    process_seconds: float
    work_seconds: float
    told: tuple[str, ...]


Arms = Mapping[str, tuple[str, ...]]


def run(command: tuple[str, ...]) -> Taken:
    """One process; what it prints first is the seconds of its work, if it prints any."""
    begun = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    # `repro-gate diff` answers 1 for states that differ
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
    """The fastest of some rounds, in each of which every way has its turn."""
    rows = [{name: run(command) for name, command in arms.items()} for _ in range(rounds)]
    return {
        name: min((row[name] for row in rows), key=lambda taken: taken.process_seconds)
        for name in arms
    }


def program(code: str, *arguments: str | Path, python: str = sys.executable) -> tuple[str, ...]:
    """The command that runs a program of `digest_workloads`."""
    return (python, "-c", code, *map(str, arguments))


def processor() -> str:
    """The processor's name, or its architecture where it has none."""
    return next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )


def about(signing: str | None) -> str:
    """Date, processor, versions and load; `signing` is an interpreter that has model-signing."""
    import torch  # noqa: PLC0415 - only for its version, after the options were read

    version = "import importlib.metadata as m; print('0', m.version('model-signing'))"
    signed = f", model-signing {run(program(version, python=signing)).told[0]}" if signing else ""
    return (
        f"{time.strftime('%Y-%m-%d')}. {processor()}, {len(os.sched_getaffinity(0))} cores, "
        f"{platform.system()} {platform.machine()}; Python {platform.python_version()}, "
        f"torch {torch.__version__}{signed}. Load at the start: {load()}."
    )


def load() -> str:
    """The averages over 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.1f}" for value in os.getloadavg())


def file_system(folder: Path) -> str:
    """The kind of the file system that a folder is on; of ext4 also whether it has a journal."""
    top, kind, device = "", "a file system unknown", ""
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        source, mounted, name = line.split()[:3]
        # the last of several at one place hides the others
        if folder.is_relative_to(mounted) and len(mounted) >= len(top):
            top, kind, device = mounted, name, Path(source).name
    if kind != "ext4":
        return kind
    has_journal = any(Path("/proc/fs/jbd2").glob(f"{device}-*"))
    return f"ext4 with{'' if has_journal else 'out'} a journal"


def write_page(lines: Iterable[str], out: Path | None) -> None:
    """Print the lines as they are measured; write them to a file too where one is given."""
    told = []
    for line in lines:
        print(line, flush=True)
        told.append(line)
    if out is not None:
        out.write_text("\n".join(told) + "\n", encoding="utf-8")
