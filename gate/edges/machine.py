"""What the machine has, asked without changing anything: GPUs, free room."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gate.edges.safe_text import safe_line
from gate.records.doctor import Gpu, GpusSeen

# `nvidia-smi --help-query-gpu` lists the fields; driver or container runtime bring the tool
FIELDS = ("uuid", "name", "driver_version", "memory.total")
QUERY = (f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
ANSWER_SECONDS = 30.0
MAX_ANSWER_CHARACTERS = 64 * 1024
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{8,60}")


def gpus_seen(search_path: str) -> GpusSeen:
    """The GPUs that nvidia-smi lists, from a child of its own that holds no variable of ours."""
    program = shutil.which("nvidia-smi", path=search_path)
    if program is None:
        return GpusSeen(problem="nvidia-smi is not there")
    try:
        done = subprocess.run(
            (program, *QUERY),
            env={"PATH": search_path, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpusSeen(problem=f"nvidia-smi gave no answer ({type(error).__name__})")
    text = done.stdout[:MAX_ANSWER_CHARACTERS].decode("utf-8", "replace")
    if done.returncode != 0:
        last = (text.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return GpusSeen(problem=f"nvidia-smi: {safe_line(last)}")
    return parse_gpus(text)


def parse_gpus(text: str) -> GpusSeen:
    """The rows of nvidia-smi's answer; one that is not understood is a problem, never skipped."""
    gpus = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS) or not _UUID.fullmatch(fields[0]):
            return GpusSeen(problem=f"nvidia-smi answered something else: {safe_line(line)}")
        uuid, name, driver, memory = fields
        gpus.append(
            Gpu(
                uuid=uuid,
                name=safe_line(name),
                driver=safe_line(driver),
                memory_mib=int(memory) if memory.isascii() and memory.isdigit() else 0,
            )
        )
    return GpusSeen(gpus=tuple(gpus), problem="" if gpus else "nvidia-smi lists no GPU")


def free_bytes(folder: Path) -> int:
    """Bytes that may be written where a folder is, or will be."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    state = os.statvfs(there)
    return state.f_bavail * state.f_frsize
