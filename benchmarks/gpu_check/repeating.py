"""The parts that repeat strict trainings: stability, repeats, compile, graphs, knobs."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

from gate.diagnosis.first_divergence import diagnose_repeat
from gate.diagnosis.suspects import KnownLines
from gate.errors import GateError
from gate.evidence.observations import OverrideKind
from gate.verdict.override_findings import suspected_settings
from gpu_check.bench import TRAINING, Bench, here, last_line
from gpu_check.rows import Row, held, left_out
from gpu_check.trained import compared, pair_row, refuse_cpu, told_error

REPEATS_SECONDS = 200.0
BENCHMARKED = "cudnn-benchmark"


def workload_names() -> tuple[str, ...]:
    """Return the workload names in `training/train.py`; it is parsed and not imported."""
    tree = ast.parse((TRAINING / "train.py").read_text("utf-8"))
    tables = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    )
    return tuple(
        key.value
        for table in tables
        for key in table.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    )


def stability(bench: Bench) -> Iterator[Row]:
    """Train each workload twice in strict mode; torch may refuse an operator by name.

    On a CPU this proves nothing about the GPU's operators, so one process trains all workloads.
    """
    names = [name for name in workload_names() if name != BENCHMARKED]
    if not bench.gpu:
        yield pair_row(f"{len(names)} workloads in one process", bench, "train.py", *names)
        names = []
    for name in names:
        yield pair_row(name, bench, "train.py", name)
    yield _benchmarked(bench)


def _benchmarked(bench: Bench) -> Row:
    """Return the row of a script that turns on cuDNN's search for the fastest kernel.

    Its runs may differ. If so, the diagnosis must name that line as the first suspect.
    """
    try:
        runs = tuple(
            bench.train("train.py", BENCHMARKED, label=label) for label in ("strict-1", "strict-2")
        )
        refuse_cpu(bench, runs[0])
    except GateError as error:
        return held(BENCHMARKED, told_error(error), holds=False)
    lines = [
        override.place
        for override in runs[0].overrides
        if override.kind is OverrideKind.SWITCH and override.name == "cudnn_benchmark"
    ]
    comparison = compared(*runs)
    known = KnownLines(overrides=suspected_settings(runs))
    found = diagnose_repeat(comparison, known, one_cpu_thread=False)
    if found is None:
        return held(BENCHMARKED, f"equal; turned on at {', '.join(lines)}", holds=bool(lines))
    first = [suspect.place for suspect in found.suspects[:1]]
    seen = f"differs: {found.kind}, first suspect {', '.join(first) or 'none'}"
    return held(BENCHMARKED, seen, holds=bool(lines) and first == lines[:1])


def repeats(bench: Bench) -> Iterator[Row]:
    """Count the strict repeats of a GPT with dropout that differ from the first run."""
    first = bench.train("gpt.py", *bench.sizes.small_gpt)
    refuse_cpu(bench, first)
    alarms, count, begun = 0, 0, time.monotonic()
    for number in range(bench.sizes.repeats):
        if time.monotonic() - begun > REPEATS_SECONDS:
            break
        count += 1
        label = f"strict-{number + 2}"
        comparison = compared(first, bench.train("gpt.py", *bench.sizes.small_gpt, label=label))
        alarms += comparison.differs
    yield held("false alarms", f"{alarms} of {count} strict repeats", holds=alarms == 0)


def compiled(bench: Bench) -> Iterator[Row]:
    """Train the compiled GPT twice in each mode of `torch.compile`, with fresh caches each time."""
    if shutil.which("cc") is None or shutil.which("g++") is None:
        yield left_out("torch.compile", "no C compiler is here")
        return
    for mode in bench.sizes.compile_modes:
        arguments = ("gpt.py", *bench.sizes.compiled_gpt, f"--compile={mode}")
        try:
            runs = [bench.train(*arguments, label=label) for label in ("strict-1", "strict-2")]
        except GateError as error:
            yield held(mode, told_error(error), holds=False)
            continue
        refuse_cpu(bench, runs[0])
        comparison = compared(*runs)
        first = runs[0].first_step_seconds
        seen = (
            f"{'differs' if comparison.differs else 'equal'}; first step after "
            f"{float(first or 0):.1f} s, {len(runs[0].processes)} attested process(es), "
            f"{len(runs[0].children)} unattested"
        )
        yield held(mode, seen, holds=not comparison.differs and comparison.something_compared)


# the optimizer steps of training/graph.py: three before the capture, and one per replay
STEPS_OF_THE_GRAPH = 8


def graphs(bench: Bench) -> Iterator[Row]:
    """Run a whole step in one CUDA graph, without the harness and under it."""
    if not bench.gpu:
        yield left_out("a whole step in a CUDA graph", "there are none on a CPU")
        return
    bare = subprocess.run(
        (sys.executable, "graph.py"),
        cwd=TRAINING,
        env=here(),
        capture_output=True,
        text=True,
        check=False,
    )
    seen = last_line(bare.stdout) or last_line(bare.stderr)
    yield held("without the harness", seen, holds=bare.returncode == 0)
    run = bench.train("graph.py")
    seen = f"{len(run.steps)} steps recorded; {'; '.join(run.left_out) or 'nothing left out'}"
    yield held("under the harness", seen, holds=len(run.steps) == STEPS_OF_THE_GRAPH)


def knobs(bench: Bench) -> Iterator[Row]:
    """Set a precision by knobs, in scripts that use only torch's old flags for it."""
    hows = ["flags off"]
    if bench.gpu:
        hows += ["flags", "off", *["compile"] * (shutil.which("cc") is not None)]
    for how in hows:
        for word in ("ieee", "tf32"):
            sections = {"determinism": {"knobs": {"fp32_cudnn": word, "fp32_matmul": word}}}
            what = f"{word}, script: {how}"
            yield pair_row(what, bench, "precision.py", *how.split(), sections=sections)
