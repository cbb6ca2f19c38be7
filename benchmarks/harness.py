"""Measure what the harness adds to a process's start and to each step. `make bench-harness`.

Both sides of every ratio come from one run of this program, interleaved, on one machine. The
program prints a Markdown page; `--out FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness_processes import fresh, harness_variables, inside, run
from harness_workloads import FINGERPRINTS, IMPORTS, MLP, TRANSFORMER, timed
from measured_processes import write_page

from gate.system.files.files import LocalFiles
from gate.training.run_folders import install_harness

ROUNDS = 9
TORCH_ROUNDS = 15
TRAINING_ROUNDS = 3
MILLI = 1000
# the harness observes the first ten steps regardless of their cost, so they are left out
WARM_UP = STEADY_FROM = 10
TRACED_STEPS = 20

# Starts the harness by hand, to time it apart from the import of torch.
BEGIN = """
import os, time, torch
begun = time.perf_counter()
os.environ["REPRO_GATE_OUT"] = os.environ.pop("OUT")
from repro_gate_harness.lifecycle.process import begin
from repro_gate_harness.settings import HarnessSettings
begin(HarnessSettings(os.environ))
print(time.perf_counter() - begun)
"""
# Each call of `id()` is an audit event, which the harness's hook on opened files ignores.
EVENTS = """
import time
begun = time.perf_counter()
for _ in range(1_000_000):
    id(None)
print(time.perf_counter() - begun)
"""
COUNTED = """
import atexit, sys
count = [0]
def count_event(event, args):
    count[0] += 1
sys.addaudithook(count_event)
atexit.register(lambda: print(count[0]))
"""
COUNTED_STEPS = (10, 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A training script, and the number of steps to run."""

    name: str
    script: str
    steps: int


WORKLOADS = (
    Workload(name="MLP", script=MLP, steps=600),
    Workload(name="transformer", script=TRANSFORMER, steps=100),
)
# the aims hold for runs of 100 steps and more
RECORDED = (replace(WORKLOADS[0], steps=100), *WORKLOADS)
AIM, AIM_STEADY = 0.02, 0.01
BUDGET = "budget 2 %"
OURS = "repro_gate_harness"
DEFAULT_MODE = {"REPRO_GATE_MODE": "default"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A training under the harness: the median step in seconds, and the share of observing.

    `share` includes the first steps and all calibration; `share_after_warm_up` does not.
    """

    step_seconds: float
    share: float
    share_after_warm_up: float
    sampling_intervals: dict[str, int]


def start_up(code: str, rounds: int, harness: Path, out: Path) -> tuple[float, float]:
    """Return the fastest seconds of a process without and with the harness, taken in turns.

    The fastest counts, because other work on the machine can only slow a process down.
    """
    arms: tuple[dict[str, str], ...] = ({}, harness_variables(harness, out, 1))
    # the first round only warms up, and is dropped
    taken = [[run(code, arm)[0] for arm in arms] for _ in range(rounds + 1)][1:]
    bare, guarded = (min(column) for column in zip(*taken, strict=True))
    return bare, guarded


def observe(workload: Workload, harness: Path, folder: Path, **variables: str) -> Observed:
    """Train under the harness, and read the times that it recorded itself."""
    out = fresh(folder)
    run(workload.script, harness_variables(harness, out, workload.steps) | variables)
    (path,) = out.glob("steps-*.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (summary,) = (json.loads(each.read_bytes()) for each in out.glob("summary-*.json"))
    timed = [line for line in lines if line["seconds"] is not None]
    return Observed(
        step_seconds=statistics.median(line["seconds"] for line in timed),
        share=_share(timed, summary["observe_seconds"]),
        share_after_warm_up=_share(timed[WARM_UP:]),
        sampling_intervals=summary["sampling_intervals"],
    )


def _share(lines: list[dict[str, float]], observed: float | None = None) -> float:
    spent = sum(line["observe_seconds"] for line in lines) if observed is None else observed
    return spent / sum(line["seconds"] for line in lines)


def event_rows(harness: Path, folder: Path) -> Iterator[str]:
    """Measure what the hook on opened files costs for audit events that open nothing."""
    bare, guarded = (
        min(float(run(EVENTS, variables)[1]) for _ in range(ROUNDS))
        for variables in ({}, harness_variables(harness, folder / "start", 1))
    )
    # seconds for a million calls: a millisecond in total is a nanosecond per call
    each = (guarded - bare) * MILLI
    yield (
        f"Beside an event that opens nothing, such as a call of `id()`: {each:.0f} ns (fastest of "
        f"{ROUNDS} times a million, less the same without the harness)."
    )
    for workload in WORKLOADS:
        few, many = (
            int(run(COUNTED + workload.script, harness_variables(harness, made, steps))[1])
            for steps in COUNTED_STEPS
            for made in (fresh(folder),)
        )
        events = (many - few) / (COUNTED_STEPS[1] - COUNTED_STEPS[0])
        yield (
            f"A step of the {workload.name} has {events:.0f} events, which takes "
            f"{events * each / MILLI:.0f} µs."
        )


def fingerprint_costs(workload: Workload, harness: Path) -> dict[str, float]:
    """Return the seconds of each fingerprint's digest alone, after three steps of the training."""
    head, _, body = workload.script.rpartition("    optimizer.step()\n")
    stop = "    if optimizer.state[next(model.parameters())]['step'] >= 3: break\n"
    stopped = f"{head}    optimizer.step()\n{stop}{body}"
    variables = {"PYTHONPATH": str(harness)}
    found: dict[str, float] = json.loads(run(stopped + FINGERPRINTS, variables)[1])
    return found


def overhead_rows(workload: Workload, harness: Path, folder: Path) -> Iterator[str]:
    """Measure the recorder as a whole under several settings, interleaved."""
    arms: dict[str, dict[str, str]] = {
        "off": {"REPRO_GATE_OBSERVE": "off"},
        BUDGET: {},
        "settings as they come": {"REPRO_GATE_FREE_SECONDS": "2.0"},
        "every fingerprint at every step": {"REPRO_GATE_OVERHEAD_BUDGET": "1000"},
    }
    found: dict[str, list[Observed]] = {name: [] for name in arms}
    for _ in range(TRAINING_ROUNDS):
        for name, variables in arms.items():
            found[name].append(observe(workload, harness, folder, **variables))
    for name, runs in found.items():
        step = statistics.median(each.step_seconds for each in runs) * MILLI
        share = statistics.median(each.share for each in runs)
        steady = statistics.median(each.share_after_warm_up for each in runs)
        shown = " / ".join(
            str(sampling_interval) for sampling_interval in runs[-1].sampling_intervals.values()
        )
        reached = share <= AIM and steady <= AIM_STEADY
        verdict = ("yes" if reached else "**no**") if name == BUDGET else ""
        yield (
            f"| {workload.name}, {workload.steps} | {name} | {step:.2f} | {share:.2%} | "
            f"{steady:.2%} | {verdict} | {shown if name != 'off' else 'none'} |"
        )


def beside_bare(workload: Workload, harness: Path, folder: Path) -> Iterator[str]:
    """Measure the CPU time of a step with the harness, and without it."""
    code, steps = timed(workload.script, workload.steps, STEADY_FROM), workload.steps + 1
    arms = {"none": None, "off": {"REPRO_GATE_OBSERVE": "off"}, BUDGET: {}}
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(TRAINING_ROUNDS):
        for name, variables in arms.items():
            # the harness's limit is one step above the script's own end, so the script ends itself
            told = {}
            if variables is not None:
                # default mode, because the overhead of determinism is measured elsewhere
                told = harness_variables(harness, fresh(folder), steps) | DEFAULT_MODE | variables
            found[name].append(float(run(code, told)[1]))
    bare = min(found["none"])
    for name, seconds in found.items():
        more = min(seconds) - bare
        yield (f"| {workload.name} | {name} | {min(seconds) * MILLI:.3f} | {more / bare:+.2%} |")


def import_rows(harness: Path, folder: Path) -> Iterator[str]:
    """Measure what making the first optimizer imports, with and without the harness."""
    arms = {"without": {}, "with the harness": harness_variables(harness, folder / "start", 1)}
    rows = [
        {name: json.loads(run(IMPORTS, variables)[1]) for name, variables in arms.items()}
        for _ in range(TRAINING_ROUNDS)
    ]
    yield "| process | import of torch s | first optimizer s | modules |"
    yield "|---|---|---|---|"
    for name in arms:
        torch_seconds, optimizer_seconds = (min(row[name][at] for row in rows) for at in (0, 1))
        modules = len(rows[0][name][2])
        yield f"| {name} | {torch_seconds:.2f} | {optimizer_seconds:.2f} | {modules} |"
    bare, guarded = (set(rows[0][name][2]) for name in arms)
    more = sorted(name for name in guarded - bare if not name.startswith(OURS))
    own = sum(name.startswith(OURS) for name in guarded)
    yield f"\nBeside its own {own} modules the harness imports {', '.join(more) or 'nothing'}."


def trace_rows(workload: Workload, harness: Path, folder: Path) -> Iterator[str]:
    """Measure what tracing adds to a step, interleaved with runs that only record."""
    short = replace(workload, steps=TRACED_STEPS)
    arms: dict[str, dict[str, str]] = {
        "recorded, as every run": {},
        "operators traced (runs of one commit)": {"REPRO_GATE_TRACE_FROM": "1"},
        "operators and lines traced (a drift)": {
            "REPRO_GATE_TRACE_FROM": "1",
            "REPRO_GATE_TRACE_LINES": "1",
        },
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(TRAINING_ROUNDS):
        for name, variables in arms.items():
            found[name].append(observe(short, harness, folder, **variables).step_seconds)
    recorded, *_ = (statistics.median(seconds) for seconds in found.values())
    for name, seconds in found.items():
        step = statistics.median(seconds)
        yield f"| {workload.name} | {name} | {step * MILLI:.2f} | {step / recorded:.2f} |"


def recorder_part(harness: Path, folder: Path) -> Iterator[str]:
    """Return the part about recording: by its own clock, and beside runs without the harness."""
    yield "## The recorder as a whole\n"
    lengths = " and ".join(f"{one.steps} steps ({one.name})" for one in RECORDED)
    yield (
        "Seconds of observing over seconds of the steps beside it, both as the harness told them; "
        f"median of {TRAINING_ROUNDS} interleaved run(s) of {lengths}. Aims for a budget of 2 %: "
        f"{AIM:.0%} in all, {AIM_STEADY:.0%} steady. The first column of shares has everything in "
        "it, the once-only digests and the calibration of each run too; the second leaves the "
        f"first {WARM_UP} timed steps out. Sampling intervals are those of random states, batch, "
        "and the tensors.\n"
    )
    yield (
        "| training, steps | observing | step ms | share | share, steady | aims reached "
        "| sampling interval r / b / t |"
    )
    yield "|---|---|---|---|---|---|---|"
    for workload in RECORDED:
        yield from overhead_rows(workload, harness, folder)
    yield "\n## A step beside one without the harness\n"
    yield (
        "CPU seconds of the script's thread a step in default mode, with all hooks, from step "
        f"{STEADY_FROM + 1} on; the fastest of {TRAINING_ROUNDS} interleaved runs.\n"
    )
    yield "| training | observing | CPU ms a step | more |"
    yield "|---|---|---|---|"
    for workload in WORKLOADS:
        yield from beside_bare(workload, harness, folder)


def page(harness: Path, folder: Path) -> Iterator[str]:
    """Return the whole page, line by line as it is measured."""
    yield "# The harness's own cost, on a CPU\n"
    yield from _about()
    yield "\n## Start of a process\n"
    yield f"Fastest of {ROUNDS} and of {TORCH_ROUNDS} processes.\n"
    yield "| process | without ms | with the harness ms | difference ms | goal ms |"
    yield "|---|---|---|---|---|"
    for name, code, rounds, goal in (
        ("never imports torch", "pass", ROUNDS, 5),
        ("imports torch", "import torch", TORCH_ROUNDS, 50),
    ):
        bare, guarded = (
            seconds * MILLI for seconds in start_up(code, rounds, harness, folder / "start")
        )
        yield f"| {name} | {bare:.1f} | {guarded:.1f} | {guarded - bare:+.1f} | {goal} |"
    begins = [float(run(BEGIN, inside(harness, folder / "start"))[1]) for _ in range(TORCH_ROUNDS)]
    yield (
        "\nInside a process that has just imported torch, the harness's own imports and start took "
        f"{statistics.median(begins) * MILLI:.1f} ms (median of {TORCH_ROUNDS}); the row above "
        "holds the noise of torch's import, which is larger."
    )
    yield "\n## The first optimizer\n"
    yield (
        "When the first optimizer is made, torch imports its compiler. Fastest of "
        f"{TRAINING_ROUNDS} processes.\n"
    )
    yield from import_rows(harness, folder)
    yield "\n## The hook on opened files\n"
    yield from event_rows(harness, folder)
    yield "\n## Each fingerprint's digest alone\n"
    yield "Share of a step, if the fingerprint were taken at every step; median of 9.\n"
    yield "| fingerprint | " + " | ".join(f"{one.name} ms | share" for one in WORKLOADS) + " |"
    yield "|---" * (1 + 2 * len(WORKLOADS)) + "|"
    costs = [fingerprint_costs(workload, harness) for workload in WORKLOADS]
    steps = [
        observe(workload, harness, folder, REPRO_GATE_OBSERVE="off").step_seconds
        for workload in WORKLOADS
    ]
    counts = [cost.pop("count") for cost in costs]
    for fingerprint in costs[0]:
        cells = (
            f"{cost[fingerprint] * MILLI:.3f} | {cost[fingerprint] / step:.1%}"
            for cost, step in zip(costs, steps, strict=True)
        )
        yield f"| {fingerprint} | {' | '.join(cells)} |"
    sizes = (
        f"{workload.name}: {count / 1e6:.2f} M parameters, {step * MILLI:.1f} ms a step"
        for workload, count, step in zip(WORKLOADS, counts, steps, strict=True)
    )
    yield "\n" + "; ".join(sizes) + ".\n"
    yield from recorder_part(harness, folder)
    yield "\n## A step that is traced\n"
    yield (
        "Only after a difference, in two runs of their own (docs/diagnosis.md). Median step of "
        f"{TRAINING_ROUNDS} interleaved runs of {TRACED_STEPS} steps, and its ratio to a step that "
        "is only recorded.\n"
    )
    yield "| training | run | step ms | ratio |"
    yield "|---|---|---|---|"
    for workload in WORKLOADS:
        yield from trace_rows(workload, harness, folder)


def _about() -> Iterator[str]:
    import torch  # noqa: PLC0415 - only for its version, after the option was read

    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    yield "Written by `make bench-harness`. One thread; digests by the interpreter's own OpenSSL.\n"
    yield (
        f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}; "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def main() -> None:
    """Measure, print the page, and write it to `--out` if that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out: Path | None = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install_harness(LocalFiles(), folder / "harness")
        (folder / "start").mkdir()
        write_page(page(folder / "harness", folder), out)


if __name__ == "__main__":
    main()
