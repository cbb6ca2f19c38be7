"""What the machine's own programs and the kernel say of GPUs, their wiring and the network."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from gate.system.facts import GpuFacts, MachineFacts
from gate.text.untrusted_text import safe_line, without_sequences

# `nvidia-smi --help-query-gpu` lists the fields
FACT_FIELDS = (
    *("uuid", "name", "memory.total", "driver_version", "compute_mode"),
    *("mig.mode.current", "ecc.mode.current"),
)
FACT_QUERY = (f"--query-gpu={','.join(FACT_FIELDS)}", "--format=csv,noheader")
TOPOLOGY = ("topo", "-m")
NETWORKS = Path("/sys/class/net")
ANSWER_SECONDS = 30.0
MAX_ANSWER_BYTES = 64 * 1024
MAX_LINES = 200
MAX_LINE = 400
MAX_GPUS = 64
MAX_NETWORKS = 100


def machine_facts(
    search_path: str, library_path: str = "", networks: Path = NETWORKS
) -> MachineFacts:
    """GPUs, `nvidia-smi topo -m` and speeds of network interfaces; asking starts no GPU."""
    program = shutil.which("nvidia-smi", path=search_path)
    speeds = _speeds(networks)
    if program is None:
        return MachineFacts(networks=speeds, problem="nvidia-smi was not found")
    environment = {"PATH": search_path, "LC_ALL": "C"}
    if library_path:
        # on some hosts the driver's library is found by this path alone
        environment["LD_LIBRARY_PATH"] = library_path
    listed = _answer((program, *FACT_QUERY), environment)
    gpus = tuple(filter(None, map(_gpu, listed)))[:MAX_GPUS]
    wiring = _answer((program, *TOPOLOGY), environment) if gpus else []
    return MachineFacts(
        gpus=gpus,
        topology=tuple(_line(line) for line in wiring[:MAX_LINES]),
        networks=speeds,
        problem="" if gpus else "nvidia-smi lists no GPU",
    )


def _answer(command: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """The lines of a program's answer; none where it fails or does not answer in time."""
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    text = done.stdout[:MAX_ANSWER_BYTES].decode("utf-8", "replace")
    return text.splitlines() if done.returncode == 0 else []


def _gpu(line: str) -> GpuFacts | None:
    fields = [safe_line(field.strip(), limit=MAX_LINE // 2) for field in line.split(",")]
    if len(fields) != len(FACT_FIELDS):
        return None
    names = ("uuid", "name", "memory_total", "driver_version", "compute_mode", "mig", "ecc")
    return GpuFacts(**dict(zip(names, fields, strict=True)))


def _line(text: str) -> str:
    """One row of a table: its columns stay apart, its underlining (ANSI) goes."""
    return safe_line("  ".join(without_sequences(text).split("\t")), limit=MAX_LINE)


def _speeds(networks: Path) -> dict[str, int]:
    """Interface to Mbit/s; one that is down, or knows none, says -1 or refuses to be read."""
    found: dict[str, int] = {}
    for path in sorted(networks.glob("*/speed"))[:MAX_NETWORKS]:
        with suppress(OSError, ValueError):
            speed = int(path.read_bytes()[:20])
            if speed > 0:
                found[safe_line(path.parent.name, limit=MAX_LINE // 2)] = speed
    return found
