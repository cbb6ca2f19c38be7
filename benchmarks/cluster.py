"""Measure what a cluster adds to a call, and 512 ranks. `make bench-cluster`, as root, with Slurm.

Slurm's real daemons act as two nodes on this machine. A training with two ranks runs bare, by
`srun` in a job that has the nodes, and in calls of the gate; both take turns. Then a training with
512 ranks that computes nothing goes through `engine: exec` on four simulated hosts. The program
prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from measured_processes import processor
from played_hosts import PlayedHosts
from played_training import WITH_RANKS, Project

ROUNDS: Final = 5
STEPS: Final = 20
NODES: Final = 2
RANKS: Final = 512
MILLION: Final = 1e6
NODES_SCRIPT: Final = Path(__file__).resolve().parents[1] / "scripts" / "slurm_nodes.sh"
CALL_LIMIT_SECONDS, RUN_LIMIT_SECONDS, WIRE_LIMIT = 3.0, 1.0, 0.05
MANY_LIMIT_SECONDS, MANY_LIMIT_BYTES = 60.0, 500 * MILLION
TRAINING: Final = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(7)
torch.set_num_threads(1)
layers = [torch.nn.Linear(512, 512) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.randn(64, 512)
for step in range(STEPS):
    loss = (model(data + dist.get_rank()) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""".replace("STEPS", str(STEPS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A gate call: its seconds, verdict, the peak memory of its largest process, in bytes.

    `shared` has the largest size of each file that was in the shared folder.
    """

    seconds: float
    verdict: Mapping[str, Any]
    peak_bytes: int
    shared: Mapping[str, int]


@contextmanager
def watched(folder: Path) -> Iterator[dict[str, int]]:
    """Record the largest size of each file in the folder while the body runs.

    The folder is listed every 50 ms. The size of a file is kept after the file is gone.
    """
    sizes: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            # files that disappear between listing and looking are skipped
            for place, _, names in os.walk(folder):
                for name in names:
                    path = f"{place}/{name}"
                    with suppress(OSError):
                        sizes[path] = max(os.lstat(path).st_size, sizes.get(path, 0))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield sizes
    finally:
        over.set()
        thread.join()


def call(project: Project, variables: Mapping[str, str], shared: Path, *words: str) -> Call:
    """Run the gate as a process and measure it; ends the program if it gives no verdict."""
    out = project.path.parent / "out"
    command = (sys.executable, "-m", "gate", *words, "--out", str(out))
    begun = time.perf_counter()
    with watched(shared) as sizes, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=project.path,
            env=dict(variables),
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        # wait4 instead of Popen.wait, because it also reports the peak memory of this one child
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        printed = log.read()
    seconds = time.perf_counter() - begun
    file = out / "verdict.json"
    if not file.exists():
        raise SystemExit(printed.decode())
    return Call(
        seconds=seconds,
        verdict=json.loads(file.read_text()),
        # of the process or the largest child that it waited for; Linux counts in KiB
        peak_bytes=usage.ru_maxrss * 1024,
        shared=sizes,
    )


def runs_of(verdict: Mapping[str, Any]) -> list[float]:
    """Return the seconds of each run, including the gate's work for it before and after."""
    timeline = verdict["timeline"]
    return [
        run["ended_seconds"]
        - run["begun_seconds"]
        + sum(
            span["ended_seconds"] - span["begun_seconds"]
            for span in timeline["own"]
            if span["about"] == run["label"]
        )
        for run in timeline["runs"]
    ]


def bare(variables: Mapping[str, str], project: Project) -> tuple[float, float]:
    """Return the seconds until a job has its nodes, and those of the training by srun in it."""
    begun = time.perf_counter()
    job = _slurm(
        variables,
        "sbatch",
        "--parsable",
        f"--nodes={NODES}",
        "--output=/dev/null",
        "--wrap=sleep 600",
    )
    try:
        while _slurm(variables, "squeue", "-h", "-j", job, "-o", "%T") != "RUNNING":
            time.sleep(0.1)
        waited = time.perf_counter() - begun
        rank = 'export RANK="$SLURM_PROCID" LOCAL_RANK=0; exec "$@"'
        own = {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29431"}
        words = ("srun", f"--jobid={job}", f"--nodes={NODES}", f"--ntasks={NODES}")
        begun = time.perf_counter()
        subprocess.run(
            (*words, "/bin/sh", "-c", rank, "sh", sys.executable, str(project.path / "train.py")),
            env={**own, "WORLD_SIZE": str(NODES)},
            check=True,
            capture_output=True,
        )
        return waited, time.perf_counter() - begun
    finally:
        _slurm(variables, "scancel", job)


def _slurm(variables: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(words, env=dict(variables), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def settings(shared: Path, engine: str) -> str:
    """Return the settings file of the training with two ranks, for Slurm or for torchrun."""
    python = sys.executable
    head = "version: 1\ncost: {when: never}\nisolation: {mode: none}\n"
    head += f"train:\n  max_steps: {STEPS}\n"
    if engine == "local":
        launcher = f"{python} -m torch.distributed.run --nproc-per-node {NODES} train.py"
        return f"{head}  command: {launcher}\n"
    command = f"{head}  command: {python} train.py\n"
    return f"{command}cluster: {{engine: slurm, nodes: {NODES}, folder: {shared}}}\n"


def on_slurm(folder: Path, rounds: int) -> Iterator[str]:
    """Measure with Slurm, and return that part of the page."""
    shared = folder / "shared"
    shared.mkdir()
    variables = {**os.environ, "SLURM_FOLDER": str(folder / "slurm"), "SLURM_PORT": "18700"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    subprocess.run((NODES_SCRIPT, "up", str(NODES)), env=variables, check=True, capture_output=True)
    variables["SLURM_CONF"] = str(folder / "slurm" / "slurm.conf")
    try:
        projects = {}
        for engine in ("slurm", "local"):
            (folder / f"by-{engine}").mkdir()
            project = Project(folder / f"by-{engine}" / "project")
            project.write("train.py", TRAINING)
            project.write("repro-gate.yml", settings(shared, engine))
            project.commit()
            projects[engine] = project
        bares: list[tuple[float, float]] = []
        calls: dict[str, list[Call]] = {engine: [] for engine in projects}
        for _ in range(rounds):
            bares.append(bare(variables, projects["slurm"]))
            for engine, project in projects.items():
                calls[engine].append(call(project, variables, shared, "gate"))
    finally:
        subprocess.run((NODES_SCRIPT, "down"), env=variables, check=False, capture_output=True)
    yield from slurm_rows(bares, calls)


def slurm_rows(bares: list[tuple[float, float]], calls: Mapping[str, list[Call]]) -> Iterator[str]:
    """Return the tables: seconds of each way, and what is promised beside what was measured."""
    waited, plain = (statistics.median(column) for column in zip(*bares, strict=True))
    each = {
        engine: statistics.median(run for one in made for run in runs_of(one.verdict))
        for engine, made in calls.items()
    }
    whole = {
        engine: statistics.median(one.seconds for one in made) for engine, made in calls.items()
    }
    apart = {
        engine: statistics.median(one.seconds - sum(runs_of(one.verdict)) for one in made)
        for engine, made in calls.items()
    }
    yield "## Slurm, two nodes\n"
    yield (
        f"Medians of {len(bares)} rounds, in which each way had its turn; {STEPS} steps, two ranks "
        "by gloo. A run counts with all that the gate does about it.\n"
    )
    yield "| seconds | `srun` alone | `engine: slurm` | `engine: local`, torchrun |"
    yield "|---|---|---|---|"
    yield f"| a run | {plain:.2f} | {each['slurm']:.2f} | {each['local']:.2f} |"
    yield f"| a call of two runs | | {whole['slurm']:.2f} | {whole['local']:.2f} |"
    yield f"| of it, outside of its runs | | {apart['slurm']:.2f} | {apart['local']:.2f} |"
    yield f"| until a job has its nodes | {waited:.2f} | | |"
    yield ""
    added = each["slurm"] - plain
    call_added = apart["slurm"] - waited
    yield "| what is promised | limit | measured |"
    yield "|---|---|---|"
    yield (
        f"| a run takes longer than by `srun` alone | {RUN_LIMIT_SECONDS:g} s "
        f"| {added:.2f} s, {each['slurm'] / plain:.2f} × |"
    )
    yield (
        f"| a call takes longer than its runs and the wait for its nodes "
        f"| {CALL_LIMIT_SECONDS:g} s | {call_added:.2f} s |"
    )
    yield from wire_row(calls["slurm"][-1])


def wire_row(made: Call) -> Iterator[str]:
    """Return the row about bytes through the shared folder per rank and step.

    They are compared with the bytes of a state, and exclude the state that rank 0 writes.
    """
    state = sum(size for name, size in made.shared.items() if name.endswith(".safetensors"))
    states = sum(name.endswith(".safetensors") for name in made.shared)
    runs = len(made.verdict["timeline"]["runs"])
    rest = sum(made.shared.values()) - state
    step = rest / runs / NODES / STEPS
    one = state / states if states else 0.0
    yield (
        "| bytes through the folder for a rank and a step, without the state of rank 0, of a state "
        f"| {WIRE_LIMIT:.0%} | {step:,.0f} of {one:,.0f} bytes, {step / one:.2%} |"
    )
    yield ""


def many_ranks(folder: Path) -> Iterator[str]:
    """Measure 512 ranks, and return that part of the page."""
    hosts = PlayedHosts(folder / "hosts")
    (folder / "many").mkdir()
    project = Project(folder / "many" / "project")
    project.write("train.py", WITH_RANKS)
    section = hosts.settings(nodes=4, tasks_per_node=RANKS // 4)
    train = f"train: {{command: {sys.executable} -SB train.py, max_steps: 3}}\n"
    project.write("repro-gate.yml", f"version: 1\ncost: {{when: never}}\n{train}{section}")
    project.commit()
    variables = hosts.variables(os.environ)
    made = call(project, variables, hosts.shared, "gate")
    begun = time.perf_counter()
    again = ("judge", str(folder / "many" / "out" / "evidence"), "--out", str(folder / "again"))
    subprocess.run(
        (sys.executable, "-m", "gate", *again),
        cwd=project.path,
        env=variables,
        check=False,
        capture_output=True,
    )
    judged = time.perf_counter() - begun
    peak = max(made.peak_bytes, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    timeline = made.verdict["timeline"]
    by_work: dict[str, float] = {}
    for span in timeline["own"]:
        taken = span["ended_seconds"] - span["begun_seconds"]
        by_work[span["work"]] = by_work.get(span["work"], 0.0) + taken
    own = sum(by_work.values())
    yield f"## {RANKS} ranks, played\n"
    yield (
        f"`engine: exec` on four played hosts: two runs of {RANKS} processes of this machine, "
        "which train nothing.\n"
    )
    yield "| what | measured |"
    yield "|---|---|"
    yield f"| outcome | {made.verdict['outcome']} |"
    for work, taken in by_work.items():
        yield f"| {work} | {taken:.1f} s |"
    yield f"| judged again from the evidence | {judged:.1f} s |"
    yield ""
    yield "| what is promised | limit | measured |"
    yield "|---|---|---|"
    yield f"| evidence is collected and judged | {MANY_LIMIT_SECONDS:g} s | {own:.1f} s |"
    yield (f"| largest process | {MANY_LIMIT_BYTES / MILLION:,.0f} MB | {peak / MILLION:,.0f} MB |")


def page(folder: Path, rounds: int) -> Iterator[str]:
    """Return the page in Markdown, measuring as it goes."""
    yield "# What a cluster adds\n"
    yield (
        "Written by `make bench-cluster`; the nodes are daemons of one machine, so no network is "
        "in it.\n"
    )
    yield (
        f"{processor()}, {os.cpu_count()} cores, {platform.system()}; Python "
        f"{platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}.\n"
    )
    yield from on_slurm(folder, rounds)
    yield from many_ranks(folder)


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="Write the page to this file as well.")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(page(Path(folder), asked.rounds)) + "\n"
    print(text, end="")
    if asked.out is not None:
        asked.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
