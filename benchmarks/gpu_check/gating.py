"""The parts that call the gate as a user does: examples, workers, ranks, price; and observing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gate.comparison.measurements import CostDocument, Price
from gate.evidence.run_evidence import RunEvidence
from gate.verdict.verdict import Outcome, Verdict
from gpu_check.bench import PROJECT, Bench, GateCall, Sections, output_of
from gpu_check.rows import Row, held, left_out, told
from gpu_check.trained import gated, isolation_of, median_step, refuse_cpu, verdict_row

MILLI = 1000
AGREEING = 0.02
OF_THIS_MACHINE = (Outcome.REPRODUCED, Outcome.WITHIN_TOLERANCE)
ROUNDS = 2


def examples(bench: Bench) -> Iterator[Row]:
    """Record a baseline for each example on this machine, and gate the example against it."""
    for name in bench.sizes.examples:
        clone = bench.repository(PROJECT / "examples")
        config = f"examples/{name}/repro-gate.yml"
        obstacle = bench.record(clone, config)
        yield held(f"{name}: baseline record", obstacle or "recorded", holds=not obstacle)
        call = bench.gate("gate", clone, config, "--base", "HEAD")
        yield verdict_row(name, call, OF_THIS_MACHINE)
        yield from _details(name, bench, call)


def _details(name: str, bench: Bench, call: GateCall) -> Iterator[Row]:
    """Return rows about the first strict run's evidence, and about the cost of determinism."""
    path = call.out / "evidence" / "strict-1" / "evidence.json"
    if not path.is_file():
        return
    run = RunEvidence.model_validate_json(path.read_bytes())
    device = run.environment.parts.get("device", "unknown")
    yield held(f"{name}: device", device, holds=(device != "cpu") == bench.gpu)
    problems = [text for process in run.processes for text in process.problems]
    yield held(f"{name}: problems", "; ".join(problems) or "none", holds=not problems)
    if run.recorder is not None:
        intervals = ", ".join(
            f"{key} {value}" for key, value in run.recorder.sampling_intervals.items()
        )
        seen = (
            f"sampling intervals {intervals}; observing "
            f"{float(run.recorder.observe_seconds):.3f} s beside "
            f"{float(run.recorder.step_seconds):.3f} s of steps"
        )
        yield told(f"{name}: observing", seen)
    yield told(f"{name}: step", _observed_or_not(run))
    yield told(f"{name}: digest", run.checkpoint.root)
    cost = Verdict.model_validate_json(call.document).cost if call.document else None
    if cost is not None:
        yield told(f"{name}: cost", f"{cost.state}: {cost.reason or cost.time_ratio}")


def _observed_or_not(run: RunEvidence) -> str:
    """Return the median time of steps with observed parameters, and of the other steps."""
    seen = {step.step for step in run.steps if step.parameters}
    words = []
    for word, wanted in (("observed", True), ("unobserved", False)):
        times = sorted(
            float(timing.seconds) for timing in run.timings if (timing.step in seen) is wanted
        )
        middle = f"{times[len(times) // 2] * MILLI:.2f} ms" if times else "none"
        words.append(f"{len(times)} {word}: {middle}")
    return ", ".join(words)


def observing(bench: Bench) -> Iterator[Row]:
    """Check that the time of a step does not depend on how much is observed."""
    arguments = ("gpt.py", *bench.sizes.gpt)
    arms: dict[str, tuple[Sections, bool]] = {
        "everything observed": ({"record": {"overhead_budget": 100}}, True),
        "within 2 %": ({"record": {"overhead_budget": 0.02, "free_seconds": 0}}, True),
        "nothing observed": ({}, False),
    }
    medians: dict[str, list[float]] = {}
    # The arms take turns and the best of each counts: clock rates and other work on the machine
    # make a step slower, never faster.
    for name, (sections, observe) in [*arms.items()] * (ROUNDS if bench.gpu else 1):
        run = bench.train(*arguments, sections=sections, observe=observe)
        refuse_cpu(bench, run)
        median = median_step(run)
        medians.setdefault(name, []).append(median)
        memory = f", {run.device_memory_bytes / 2**20:,.0f} MiB of the device"
        yield told(name, f"median step {median * MILLI:.2f} ms{memory * bench.gpu}")
    best = {name: min(found) for name, found in medians.items()}
    bare = best["nothing observed"]
    apart = max(abs(median / bare - 1) for median in best.values())
    same = max(max(found) / min(found) - 1 for found in medians.values())
    seen = f"{apart:.1%} apart; one arm twice: up to {same:.1%}"
    # If one arm differs from itself by more, the machine is too noisy for a claim. The same holds
    # for a CPU, which other processes use.
    if not bench.gpu or same > AGREEING:
        yield told("apart", seen)
    else:
        yield held("they agree", seen, holds=apart <= AGREEING)


def workers(bench: Bench) -> Iterator[Row]:
    """Gate a training whose data workers seed themselves; no process may remain afterwards."""
    yield gated("two workers that seed", bench, ("workers.py",))
    left = _processes_that_name(bench.folder)
    yield held("processes left", "; ".join(left) or "none", holds=not left)
    if bench.gpu:
        query = ("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader")
        using = output_of(*query)
        yield held("processes on the GPU", using or "none", holds=not using)


def _processes_that_name(folder: Path) -> list[str]:
    """Return the command lines of processes that name a folder, without those of this check."""
    own = str(folder).encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue  # it has just ended
        if own in words and b"gpu_check" not in words:
            found.append(words.replace(b"\0", b" ").decode("utf-8", "replace")[:100])
    return found


def ranks(bench: Bench) -> Iterator[Row]:
    """Gate one rank with NCCL on a GPU, and two ranks with gloo on one device."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    calls = [("two ranks by gloo", "2", "gloo")]
    if bench.gpu:
        calls.insert(0, ("one rank by NCCL", "1", "nccl"))
    else:
        yield left_out("one rank by NCCL", "needs a GPU")
    for what, count, backend in calls:
        command = [*torchrun, f"--nproc-per-node={count}", "ranks.py", backend]
        open_loopback: Sections = {"train": {"command": command}, "isolation": {"network": True}}
        call = bench.gate_training(sections=open_loopback)
        yield verdict_row(what, call)
        if isolation_of(call).startswith("uid"):
            # ranks need the network: without it, the error must name the setting that opens it
            closed = bench.gate_training(sections={"train": {"command": command}})
            seen = closed.document + closed.complaint
            hinted = "isolation.network" in seen
            yield held(f"{what}, no network", "isolation.network is named", holds=hinted)


def price(bench: Bench) -> Iterator[Row]:
    """Run `repro-gate cost` on the character model, or on a small model without a GPU."""
    if bench.gpu:
        clone = bench.repository(PROJECT / "examples")
        call = bench.gate("cost", clone, "examples/chargpt/repro-gate.yml")
    else:
        sections = {"cost": {"rounds": bench.sizes.rounds, "warmup_steps": 2, "min_steps": 4}}
        call = bench.gate_training("gpt.py", sections=sections, verb="cost")
    if not call.document.startswith("{"):
        yield held("cost", f"exit code {call.exit_code}: {call.complaint}", holds=False)
        return
    document = CostDocument.model_validate_json(call.document)
    yield told("rounds", f"{document.rounds}, {document.steps_used} steps used")
    for one in (document.control, *document.prices):
        yield told(f"{one.arm} over {one.over}", _price(one))
    for arm in document.arms:
        seconds = "unknown" if arm.step_seconds is None else f"{arm.step_seconds * MILLI:.3f} ms"
        results = f"{arm.distinct_results} distinct result(s) of {arm.runs} run(s)"
        repeats = arm.distinct_results == 1 or not arm.name.startswith("strict")
        yield held(arm.name, f"median step {seconds}; {results}", holds=repeats)


def _price(one: Price) -> str:
    if one.ratio is None or one.low is None or one.high is None:
        return f"{one.state}: {one.reason}"
    return f"{one.state}: {one.ratio:.4f} [{one.low:.4f}, {one.high:.4f}] {one.reason}"
