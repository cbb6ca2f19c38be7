"""Realistic verdicts, one for each way in which a gate can end."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from gate.comparison.differences import (
    Comparison,
    CostState,
    DeterminismCost,
    EventKind,
    KnobCost,
    KnobCosts,
    MetricDelta,
    SelfTestProbe,
    TensorChange,
    TensorDelta,
)
from gate.diagnosis.diagnosis import Diagnosis
from gate.evidence.run_evidence import StateName, StateRoots
from gate.isolation.modes import IsolationMode, RunIsolation
from gate.report.assembly import ReportLinks
from gate.text.package_names import STATE_MEMBER
from gate.training.environment import Environment
from gate.training.runs import Commit, RunMode, RunRecord
from gate.training.timeline import OwnSpan, OwnWork, TimedRun, Timeline
from gate.verdict.verdict import BaselineFacts, Outcome, SeriesSummary, Verdict

STEPS = 24
TENSOR_NAMES = (
    "model/0/conv1.bias",
    "model/0/conv1.weight",
    "model/0/conv2.bias",
    "model/0/conv2.weight",
    "model/0/head.bias",
    "model/0/head.weight",
    "optimizer/0/group/0/lr",
    "optimizer/0/state/0/exp_avg",
    "optimizer/0/state/0/exp_avg_sq",
    "optimizer/0/state/1/exp_avg",
    "optimizer/0/state/1/exp_avg_sq",
    "optimizer/0/state/1/step",
)


def digest(text: str) -> str:
    """Return a SHA-256 of the text: 64 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


COMMIT = digest("head")[:40]
BASE = digest("base")[:40]
LINKS = ReportLinks(
    run_url="https://github.example/org/digits/actions/runs/4711",
    package_path="repro-gate-out/package.tar",
    verify_command="repro-gate verify repro-gate-out/package.tar --trusted-keys "
    f".repro-gate/trusted-keys.json --commit {COMMIT}",
)

CAPTURED = StateRoots(
    name=StateName.CAPTURED,
    member=STATE_MEMBER,
    algorithm="repro-gate-state/2",
    root=digest("checkpoint"),
    parts={"model": digest("model")},
)


def loss(step: int) -> float:
    """Return the loss at a step, of a curve that looks like a training's."""
    return 2.3 * math.exp(-step / 9) + 0.31 + 0.05 * math.sin(step * 1.7)


def delta(step: int, by: float, *, within: bool, metric: str = "loss") -> MetricDelta:
    expected = round(loss(step), 6)
    return MetricDelta(
        metric=metric,
        step=step,
        expected=repr(expected),
        observed=repr(round(expected * (1 + by), 6)),
        absolute=abs(expected * by),
        relative=abs(by),
        ulp=int(abs(by) * 2**23),
        within=within,
    )


def tensor(name: str, kind: TensorChange = TensorChange.CHANGED) -> TensorDelta:
    return TensorDelta(
        name=name,
        kind=kind,
        expected="" if kind is TensorChange.EXTRA else digest(name),
        observed="" if kind is TensorChange.MISSING else digest(name + "'"),
    )


def comparison(**fields: object) -> Comparison:
    """Return a comparison of equal results, with these fields replaced."""
    plain: dict[str, object] = {
        "expected": "strict-1",
        "observed": "strict-2",
        "metrics": (),
        "series": (),
        "tensors": (),
        "step_faults": (),
        "environment": (),
        "compared_points": 2 * STEPS,
        "compared_steps": STEPS,
        "compared_tensors": len(TENSOR_NAMES),
        "steps_expected": STEPS,
        "steps_observed": STEPS,
    }
    return Comparison.model_validate(plain | fields)


def against_baseline(**fields: object) -> Comparison:
    return comparison(**({"expected": "baseline", "observed": "strict-1"} | fields))


CPU_PARTS: Mapping[str, str] = {
    "python": "3.11.2",
    "torch": "2.13.0",
    "numpy": "2.4.6",
    "device": "cpu",
    "cuda": "none",
    "cudnn": "none",
    "driver": "none",
    "cpu": "AMD EPYC 7763",
    "cpu_capability": "AVX2",
    "os": "Linux 6.8",
    "threads": "1",
    "world_size": "1",
    "packages": digest("packages"),
}
FACTS = BaselineFacts(
    commit=BASE,
    recorded_at="2026-08-01T09:30:00+00:00",
    age_days=21,
    stale=False,
    checkpoint_digest=digest("checkpoint"),
    from_base=True,
    knob_costs=KnobCosts(
        measured_at="2026-08-01T10:15:00+00:00",
        knobs=(
            KnobCost(knob="threads", ratio=1.012, low=1.004, high=1.021),
            KnobCost(knob="deterministic_algorithms", ratio=1.031, low=1.02, high=1.044),
        ),
    ),
)
COST = DeterminismCost(
    state=CostState.MEASURED,
    reason="",
    strict_step_seconds=0.01294,
    default_step_seconds=0.01242,
    time_ratio=1.042,
    low=1.01,
    high=1.075,
    control_low=0.991,
    control_high=1.008,
    memory_ratio=1.0,
    steps_used=38,
)
TOO_SHORT = DeterminismCost(
    state=CostState.NOT_MEASURABLE, reason="6 steps too short", memory_ratio=1.0
)
WITHIN_NOISE = COST.model_copy(
    update={
        "state": CostState.INCONCLUSIVE,
        "time_ratio": 1.004,
        "low": 0.99,
        "high": 1.019,
        "control_low": 0.97,
        "control_high": 1.03,
        "reason": "within the noise of this machine",
    }
)
SELF_TEST = tuple(
    SelfTestProbe(name=name, caught=True)
    for name in ("one flipped bit", "one missing step", "one renamed tensor", "altered environment")
)


def run(label: str, mode: RunMode, exit_code: int = 0, *, timed_out: bool = False) -> RunRecord:
    return RunRecord(
        label=label,
        mode=mode,
        commit=Commit.HEAD,
        argv=("python", "train.py"),
        exit_code=exit_code,
        timed_out=timed_out,
        wall_seconds=7.31,
        output_bytes=1834,
        isolation=RunIsolation(mode=IsolationMode.UID),
    )


RUNS = (
    run("strict-1", RunMode.STRICT),
    run("default-1", RunMode.DEFAULT),
    run("strict-2", RunMode.STRICT),
    run("default-2", RunMode.DEFAULT),
)
TIMELINE = Timeline(
    seconds=41.26,
    training_seconds=36.39,
    own_seconds=4.87,
    runs=(
        TimedRun(label="default-1", begun_seconds=1.91, ended_seconds=12.4),
        TimedRun(label="strict-1", begun_seconds=13.02, ended_seconds=25.6),
        TimedRun(label="strict-2", lane=1, begun_seconds=14.1, ended_seconds=26.77),
        TimedRun(label="default-2", begun_seconds=27.2, ended_seconds=39.35),
    ),
    own=(
        OwnSpan(work=OwnWork.PREPARING, begun_seconds=0.0, ended_seconds=1.9),
        OwnSpan(work=OwnWork.READING, about="default-1", begun_seconds=12.4, ended_seconds=13.0),
        OwnSpan(work=OwnWork.READING, about="strict-1", begun_seconds=25.6, ended_seconds=26.1),
        OwnSpan(work=OwnWork.JUDGING, begun_seconds=40.1, ended_seconds=41.25),
    ),
)
SERIES = (
    SeriesSummary(
        name="loss",
        source="harness",
        steps=tuple(range(1, STEPS + 1)),
        values=tuple(loss(step) for step in range(1, STEPS + 1)),
        last_decimal=repr(round(loss(STEPS), 7)),
    ),
    SeriesSummary(
        name="accuracy",
        source="file",
        steps=tuple(range(1, STEPS + 1)),
        values=tuple(1 - loss(step) / 3 for step in range(1, STEPS + 1)),
        last_decimal="0.8417508417508418",
    ),
)
NOT_EXERCISED = (
    f"anything after step {STEPS}",
    "any other machine or driver",
    "GPU kernels: the training ran on the CPU",
    "several ranks: the training ran as one process",
)


def verdict(outcome: Outcome, *, passes: bool, **fields: object) -> Verdict:
    """Return a complete verdict, with the fields replaced in which its outcome differs."""
    plain: dict[str, object] = {
        "outcome": outcome,
        "passes": passes,
        "cause": "",
        "next_steps": (),
        "commit": COMMIT,
        "base_commit": BASE,
        "created_at": "2026-08-22T12:00:00+00:00",
        "settings_from": "base",
        "isolation": RunIsolation(mode=IsolationMode.UID),
        "repeat": comparison(),
        "baseline": against_baseline(),
        "baseline_facts": FACTS,
        "cost": COST,
        "self_test": SELF_TEST,
        "environment": Environment(parts=dict(CPU_PARTS)),
        "checkpoint_root": digest("all states"),
        "states": (CAPTURED,),
        "snapshot_digest": digest("snapshot"),
        "settings_digest": digest("settings"),
        "series": SERIES,
        "runs": RUNS,
        "not_exercised": NOT_EXERCISED,
        "timeline": TIMELINE,
    }
    return Verdict.model_validate(plain | fields)


def diagnosed(outcome: Outcome, **found: object) -> Verdict:
    """Return a verdict about two runs with different losses; `found` is added to the diagnosis."""
    plain: dict[str, object] = {
        "first_step": 3,
        "kind": EventKind.LOSS,
        "subject": "loss",
        "cause": "it differs",
        "remedy": "",
    }
    diagnosis = Diagnosis.model_validate(plain | found)
    return verdict(outcome, passes=False, diagnosis=diagnosis)
