"""Evidence for pages: several runs over some steps, equal or not, with everything that is shown."""

from __future__ import annotations

import math

from evidence_cases import PARTS, manifest_of, record_of, series_of
from report_cases import FACTS, comparison, digest, tensor

from gate.baseline.entry import BaselineEntry
from gate.comparison.differences import Comparison, Event, EventKind
from gate.evidence.columns import Memory, StepMemory
from gate.evidence.observations import Override, OverrideKind, UnattestedChild
from gate.evidence.run_evidence import HarnessProcess, RunEvidence, StateDistance, TensorDistance
from gate.evidence.step_columns import StepDigest, StepDigests, StepTiming, Timings
from gate.report.page.page_sources import PageSources
from gate.training.environment import Environment

METRIC = "loss"
MEBIBYTE, GIBIBYTE = 2**20, 2**30


def curve(steps: int, *, apart_from: int | None = None, by: float = 1e-6) -> tuple[float, ...]:
    """Return a training's loss per step; from step `apart_from` on it differs by `by`."""
    return tuple(
        2 * math.exp(-step / steps) + (by if apart_from and step >= apart_from else 0.0)
        for step in range(1, steps + 1)
    )


def digests(steps: int, apart_from: int | None) -> StepDigests:
    """Return digests of parameters and gradients per step, and of every second random state."""

    def text(fingerprint: str, step: int) -> str:
        moved = apart_from is not None and step >= apart_from and fingerprint != "random"
        return f"sha256:{digest(f'{fingerprint} {step} {moved}')}"

    return StepDigests.of(
        StepDigest(
            step=step,
            parameters=text("parameters", step),
            fingerprints={"gradients": text("gradients", step)}
            | ({"random.torch": text("random", step)} if step % 2 else {}),
        )
        for step in range(1, steps + 1)
    )


def run_evidence(
    label: str, steps: int = 6, *, apart_from: int | None = None, name: str = METRIC
) -> RunEvidence:
    """Return a run with everything that a page shows; `name` replaces every free text."""
    override = Override(
        step=2, kind=OverrideKind.SWITCH, name=name, before="on", after="off", file="train.py",
        line=7, closed=False, restored=True, rank=0, pid=7,
    )  # fmt: skip
    child = UnattestedChild(
        rank=0, pid=7, command=name, reason="was started with -I", file="train.py", line=9
    )
    return RunEvidence(
        run=record_of(label),
        metrics=(series_of(curve(steps, apart_from=apart_from), name=name),),
        steps=digests(steps, apart_from),
        timings=Timings.of(
            StepTiming(step=step, seconds=0.01 + 0.001 * (step % 7)) for step in range(1, steps + 1)
        ),
        checkpoint=manifest_of(
            **{f"state/model/0/{name}.weight": b"one", "state/model/0/head.bias": b"two"}
        ),
        environment=Environment(parts={**PARTS, "os": name}),
        processes=(HarnessProcess(pid=7, applied={"threads": "1", name: name}, problems=(name,)),),
        peak_memory_bytes=300 * MEBIBYTE,
        memory=Memory.of(
            StepMemory(step=step, resident_bytes=(300 + step % 3) * MEBIBYTE, device_bytes=0)
            for step in range(1, steps + 1)
        ),
        first_step_seconds=1.5,
        notes=(f"note: {name}",),
        overrides=(override,),
        overridden=3,
        children=(child,),
    )


def sources(steps: int = 6, *, apart_from: int | None = None, name: str = METRIC) -> PageSources:
    """Return two strict runs, the second different from a step on, and a default run."""
    return PageSources(
        runs=(
            run_evidence("strict-1", steps, name=name),
            run_evidence("default-1", steps, name=name),
            run_evidence("strict-2", steps, apart_from=apart_from, name=name),
        )
    )


def baseline_entry(steps: int = 6, *, apart_from: int | None = None) -> BaselineEntry:
    """Return an entry with the same metric, whose steps have only digests of parameters."""
    run = run_evidence("strict-1", steps, apart_from=apart_from)
    return BaselineEntry(
        commit=FACTS.commit,
        recorded_at=FACTS.recorded_at,
        training={},
        environment=Environment(parts={**PARTS, "torch": "2.12.1"}),
        metrics=run.metrics,
        steps=run.steps.with_fingerprints_at(()),
        checkpoint=run.checkpoint,
    )


def repeat_apart(step: int, *names: str) -> Comparison:
    """Return the comparison of two strict runs that diverge at a step, in these tensors."""
    first = Event(kind=EventKind.PARAMETERS, name="parameters", step=step)
    return comparison(tensors=tuple(map(tensor, names)), events=(first,) if step else ())


def distance_of(**relative_l2: float | None) -> StateDistance:
    """Return the relative L2 distances of tensors `<name>.weight` of a model."""
    found = tuple(
        TensorDistance(
            name=f"state/model/0/{name}.weight", elements=2_048, differing=1_024, relative_l2=size,
            max_absolute=size, finiteness_moved=size is None,
        )
        for name, size in relative_l2.items()
    )  # fmt: skip
    return StateDistance(total=len(found), tensors=found)
