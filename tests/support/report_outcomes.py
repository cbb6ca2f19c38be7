"""The cases of the golden files: verdicts that the pipeline's own `judge` returns.

Only the evidence of runs is made up here: numbers, digests, an environment. Nothing that a report
shows is written by hand, so no golden file can show what the program cannot produce.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from data_cases import many_files, set_of
from evidence_cases import evidence_set_of, record_of
from report_cases import BASE, COMMIT, CPU_PARTS, SERIES, TENSOR_NAMES, TIMELINE, digest, loss
from resume_cases import attempt, boundary

from gate.baseline.acceptance import FarFromPeers
from gate.baseline.entry import Baseline, BaselineEntry, Baselines
from gate.baseline.record import with_entry
from gate.comparison.data_moves import data_moves
from gate.data.data_sets import UnrepeatedData
from gate.errors import RunError
from gate.evidence.columns import Points
from gate.evidence.lock_files import BroughtEnvironment
from gate.evidence.observations import Boundary, KilledSave, LeftBy, Override, OverrideKind
from gate.evidence.run_evidence import (
    CheckpointManifest,
    EvidenceSet,
    HarnessProcess,
    MetricSeries,
    MetricSource,
    RunEvidence,
    TensorDigest,
)
from gate.evidence.step_columns import StepDigest, StepDigests, StepTiming, Timings
from gate.isolation.modes import Isolation, IsolationMode, RunIsolation
from gate.pipelines.case import ClosedCase, case_of
from gate.pipelines.gate import judge
from gate.pipelines.unaffected import unaffected_verdict
from gate.settings.data import DataKind
from gate.settings.gate_settings import GateSettings
from gate.settings.load import training_settings
from gate.settings.policy_change import PolicyChange
from gate.settings.variations import KillPoint
from gate.system.git.changes import Change, ChangedLines
from gate.training.environment import Environment
from gate.training.runs import BASE_HERE, Commit
from gate.verdict.assemble import error_verdict
from gate.verdict.request import GateRequest
from gate.verdict.verdict import NotRun, RunPurpose, Verdict, WhyNotRun

STEPS = 24
RECORDED_AT, JUDGED_AT = "2026-08-01T09:30:00+00:00", "2026-08-22T12:00:00+00:00"
LEARNING_RATE = "state/optimizer/0/group/0/lr"
CHAIN = ("batch", "gradients", "parameters", "optimizer")
OLD_PARTS = {**CPU_PARTS, "driver": "550.54"}
MOVED_PARTS = {**CPU_PARTS, "torch": "2.12.1", "packages": digest("old")}
APART = RunIsolation(mode=IsolationMode.UID)
ISOLATED = Isolation(mode=IsolationMode.UID, credentials=None, reason="a golden")
# every case that `judged` decided, for what has to agree with each verdict
CLOSED_CASES: list[ClosedCase] = []


def settings(**sections: object) -> GateSettings:
    """Return the settings of a small project, with these sections."""
    train = {"command": ("python", "train.py"), "max_steps": STEPS}
    return GateSettings.model_validate({"version": 1, "train": train, **sections})


EXACT = settings()
TOLERANT = settings(compare={"tolerances": ({"metric": "*", "relative": 0.002},)})


def ran(  # noqa: PLR0913 - each is another way in which a run can be another one
    label: str = "strict-1",
    *,
    steps: int = STEPS,
    first: str = "loss",
    since: int | None = None,
    by: float = 0.002,
    leaves: tuple[str, ...] | None = None,
    parts: Mapping[str, str] = CPU_PARTS,
    commit: Commit = Commit.HEAD,
    overrides: tuple[Override, ...] = (),
    rate: str = "",
) -> RunEvidence:
    """Return the evidence of a run.

    From step `since` on the run differs from the usual one, beginning with the quantity `first`.
    `rate` is the learning rate in the optimizer's state; empty for a state without one.
    """
    names = TENSOR_NAMES if leaves is None else leaves
    moved = since is not None
    return RunEvidence(
        run=record_of(label).model_copy(update={"commit": commit, "isolation": APART}),
        metrics=(
            _series("loss", MetricSource.HARNESS, steps, _parted(since, first != "loss"), by),
            _series("file.accuracy", MetricSource.FILE, steps, _parted(since, late=True), by),
        ),
        steps=StepDigests.of(_step(step, since, first) for step in range(1, steps + 1)),
        timings=Timings.of(
            StepTiming(step=step, seconds=_seconds(label, step)) for step in range(1, steps + 1)
        ),
        checkpoint=_manifest(names, moved=moved, rate=rate),
        environment=Environment(
            parts=dict(parts),
            packages=("numpy==2.4.6", f"torch=={parts['torch']}", "typer==0.25.1"),
            imported=("numpy", "torch"),
        ),
        processes=(HarnessProcess(pid=7, applied={}),),
        peak_memory_bytes=1_000_000,
        overrides=overrides,
    )


def _parted(since: int | None, late: bool) -> int | None:  # noqa: FBT001 - one of two ways
    """Return the step from which a metric differs: with `late` one after the fingerprints."""
    return since + 1 if since is not None and late else since


def _series(
    name: str, source: MetricSource, steps: int, since: int | None, by: float
) -> MetricSeries:
    points = []
    for step in range(1, steps + 1):
        value = round(loss(step) if source is MetricSource.HARNESS else 1 - loss(step) / 3, 6)
        if since is not None and step >= since:
            value = round(value * (1 + by * (step - since + 1)), 6)
        points.append((step, value))
    return MetricSeries(name=name, source=source, points=Points(points))


def _step(step: int, since: int | None, first: str) -> StepDigest:
    fingerprints = {name: _fingerprint(name, step, since, first) for name in CHAIN}
    return StepDigest(
        step=step, parameters=fingerprints.pop("parameters"), fingerprints=fingerprints
    )


def _fingerprint(name: str, step: int, since: int | None, first: str) -> str:
    order = ("batch", "loss", "gradients", "parameters", "optimizer")
    begins = since if since is None or order.index(name) >= order.index(first) else since + 1
    if name == "batch" and first != "batch":
        begins = None
    return f"sha256:{digest(f'{name} {step} {begins is not None and step >= begins}')}"


def _seconds(label: str, step: int) -> float:
    """Return a step's seconds: strict steps are 4 % slower, with a little deterministic noise."""
    noise = 1 + 0.002 * math.sin(step * 1.3 + len(label))
    return (0.01294 if label.startswith(("strict", "base")) else 0.01242) * noise


def _manifest(names: tuple[str, ...], *, moved: bool, rate: str) -> CheckpointManifest:
    every = {
        f"state/{name}": digest(name + ("'" if moved and "/group/" not in name else ""))
        for name in names
    }
    if rate:
        every[LEARNING_RATE] = digest(rate)
    return CheckpointManifest(
        algorithm="repro-gate-state-v1",
        tensors=tuple(
            TensorDigest(name=name, dtype="F32", shape=(8, 4), sha256=every[name])
            for name in sorted(every)
        ),
        parts={},
        root=digest(f"root {moved}"),
        optimizer_settings={LEARNING_RATE: rate} if rate else {},
    )


def entry(
    run: RunEvidence, *, recorded_at: str = RECORDED_AT, under: GateSettings = EXACT
) -> BaselineEntry:
    """Return the baseline entry that a run would be recorded as."""
    return BaselineEntry(
        commit=BASE,
        recorded_at=recorded_at,
        reason="first baseline",
        training=training_settings(under),
        environment=run.environment,
        metrics=run.metrics,
        steps=run.steps,
        checkpoint=run.checkpoint,
    )


REQUEST = GateRequest(
    top=Path("/github/workspace"),
    project=".",
    config_name="repro-gate.yml",
    settings=EXACT,
    settings_text=b"",
    settings_from="base",
    out=Path("/github/workspace/repro-gate-out"),
    commit=COMMIT,
    base_commit=BASE,
    pull_request=True,
    repository="org/digits",
    run_url="https://github.example/org/digits/actions/runs/4711",
    on_runner=True,
)


def judged(  # noqa: PLR0913 - what may be other in a case
    head: tuple[RunEvidence, RunEvidence] | None = None,
    *,
    against: BaselineEntry | None = None,
    brought: BaselineEntry | None = None,
    base: tuple[RunEvidence, ...] = (),
    request: GateRequest = REQUEST,
    same_code: bool = False,
    lone: bool = False,
    **declared: object,
) -> Verdict:
    """Return the pipeline's verdict about two strict and two default runs, or a `lone` strict one.

    `against` is the base's baseline entry, and `brought` the one that the pull request adds.
    `declared` are the fields of the evidence about declared data.
    """
    first, second = head or (ran(), ran("strict-2"))
    beside = first.model_copy(
        update={"run": record_of("default-1"), "timings": ran("default-1").timings}
    )
    default = (beside, beside.model_copy(update={"run": record_of("default-2")}))
    made = (first,) if lone else (first, default[0], second, default[1], *base)
    runs = evidence_set_of(*made)
    evidence = EvidenceSet.model_validate(
        runs.model_dump() | {"commit": COMMIT, "base_commit": BASE, "created_at": JUDGED_AT}
    ).model_copy(update=declared)
    trusted = Baseline(entries=(against,)) if against else None
    bringing = with_entry(trusted, brought) if brought else None
    same = frozenset({BASE} if same_code else ())
    baselines = Baselines(base=trusted, head=bringing, same_code=same)
    closed = case_of(request, baselines, evidence, ISOLATED)
    CLOSED_CASES.append(closed)
    return judge(closed).verdict.model_copy(update={"timeline": TIMELINE})


def both(**fields: object) -> tuple[RunEvidence, RunEvidence]:
    """Return two equal strict runs."""
    return ran("strict-1", **fields), ran("strict-2", **fields)  # type: ignore[arg-type] # handed on


def base_runs(**fields: object) -> tuple[RunEvidence, ...]:
    """Return two runs of the base commit on this machine."""
    return tuple(
        ran(label, commit=Commit.BASE, **fields)  # type: ignore[arg-type] # handed on
        for label in ("base-1", "base-2")
    )


def base_in_its_own(here: RunEvidence | None = None, **fields: object) -> tuple[RunEvidence, ...]:
    """Return two runs of the base commit in its own environment, and `here` in the change's."""
    own = tuple(
        run.model_copy(update={"run": run.run.model_copy(update={"environment": Commit.BASE})})
        for run in base_runs(**fields)
    )
    return own if here is None else (*own, here)


PLAIN = entry(ran())
DRIFTED = both(first="parameters", since=6)
UNSEEDED = Override(
    rank=0, pid=7, step=3, kind=OverrideKind.ENTROPY, name="numpy.random.default_rng", before="",
    after="none given", file="train.py", line=28, closed=False, restored=False,
)  # fmt: skip
BRINGS = PolicyChange(
    file=".repro-gate/baseline", what="loss", before="last 0.47", after="last 0.48"
)

REPRODUCED = judged(against=PLAIN)
ONE = settings(runs={"when_reproduced": "one"}, cost={"when": "nightly"})
ONE_RUN = judged(
    against=entry(ran(), under=ONE), lone=True,
    request=replace(REQUEST, settings=ONE, nightly=False),
)  # fmt: skip
ANSWERING = settings(
    runs={"unaffected": "answer"}, train={"command": "python train.py", "max_steps": 24,
                                          "files": ("train.py", "digits")},
)  # fmt: skip
UNAFFECTED = unaffected_verdict(
    replace(REQUEST, settings=ANSWERING, nightly=False),
    entry(ran(), under=ANSWERING).model_copy(update={"files_sha256": digest("files")}),
    EvidenceSet.model_validate(
        evidence_set_of().model_dump()
        | {"commit": COMMIT, "base_commit": BASE, "created_at": JUDGED_AT}
    ),
    RunIsolation(mode=IsolationMode.UID),
).model_copy(update={"timeline": TIMELINE})
WITHIN_TOLERANCE = judged(
    both(since=5, by=0.00001), against=entry(ran(), under=TOLERANT),
    request=replace(REQUEST, settings=TOLERANT),
)  # fmt: skip
CODE_DRIFT = judged(
    both(first="parameters", since=6, rate="0.002"), against=entry(ran(rate="0.001")),
    change=Change(hunks=(ChangedLines(
        file="train.py", first=31, last=31, gone=1,
        before=("RATE_FROM_STEP = {1: 0.0005, 6: 0.001}",),
        after=("RATE_FROM_STEP = {1: 0.0005, 6: 0.002}",),
    ),)),
)  # fmt: skip
ENVIRONMENT_DRIFT = judged(
    both(since=2), against=entry(ran(parts=MOVED_PARTS), recorded_at="2026-01-31T09:30:00+00:00"),
    base=base_runs(since=2),
)  # fmt: skip
ENVIRONMENT_MOVED = judged(
    both(since=2), against=entry(ran(parts=OLD_PARTS)), base=base_runs(since=2)
)
NEW_IMAGE = BroughtEnvironment(
    files=("Dockerfile",),
    base_image=f"ghcr.io/org/digits@sha256:{digest('old image')}",
    head_image=f"ghcr.io/org/digits@sha256:{digest('new image')}",
)
DEPENDENCY_DRIFT = judged(
    both(since=2), against=entry(ran(parts=MOVED_PARTS)),
    base=base_in_its_own(ran(BASE_HERE, commit=Commit.BASE, since=2), parts=MOVED_PARTS),
    request=replace(REQUEST, environment_change=NEW_IMAGE),
)  # fmt: skip
MINI = settings(data=({"path": "/srv/mini", "as": "mini"},))
RECORDED_DATA = (set_of(many_files(1200), mean=0.481),)
MOVED_DATA = (set_of(many_files(1200, changed=3), mean=0.533),)
WITH_DATA = entry(ran(), under=MINI).model_copy(update={"data": RECORDED_DATA})
DATA_DRIFT = judged(
    both(first="batch", since=2), against=WITH_DATA, base=base_runs(first="batch", since=2),
    request=replace(REQUEST, settings=MINI), data=MOVED_DATA, base_data=MOVED_DATA,
)  # fmt: skip
DATA_BROUGHT = judged(
    both(first="batch", since=2), against=WITH_DATA,
    request=replace(REQUEST, settings=MINI), data=MOVED_DATA, base_data=RECORDED_DATA,
)  # fmt: skip
PREPARED = settings(preprocess={"command": ("python", "prepare.py"), "out": "data/ready"})
WRITTEN = [
    (set_of({"train.csv": content}, "data/ready", kind=DataKind.PREPROCESS),)
    for content in (b"1,2", b"1,3")
]
PREPROCESSING = judged(
    against=entry(ran(), under=PREPARED).model_copy(update={"data": WRITTEN[1]}),
    request=replace(REQUEST, settings=PREPARED), data=WRITTEN[1],
    unrepeated=UnrepeatedData(
        command="python prepare.py", where="line 17", move=data_moves(WRITTEN[0], WRITTEN[1])[0]
    ),
)  # fmt: skip
SAME_CODE = judged(both(since=2), against=PLAIN, same_code=True)
BASELINE_CHANGE = judged(
    DRIFTED, against=PLAIN, brought=entry(DRIFTED[0], recorded_at=JUDGED_AT),
    request=replace(REQUEST, policy_changes=(BRINGS,)),
)  # fmt: skip
QUARANTINE = judged(
    against=entry(ran(since=2)), base=base_runs(),
    request=replace(REQUEST, settings=settings(baseline={"quarantine": ({
        "reason": "one runner has another CPU since Monday",
        "since": "2026-08-17", "until": "2026-09-05",
    },)})),
)  # fmt: skip
NO_BASELINE = judged()
PROVISIONAL = judged(
    against=entry(ran()).model_copy(update={"far": FarFromPeers(
        peers=2, metric="loss", step=24, value="0.489", least=0.31, most=0.312, room=0.024,
    )}),
)  # fmt: skip
OTHER_ACCELERATOR = judged(against=entry(ran(parts={**CPU_PARTS, "device": "NVIDIA H100"})))
NOT_COMPARABLE = judged(against=entry(ran(steps=18)))
NONDETERMINISTIC = judged(
    (ran(overrides=(UNSEEDED,)), ran("strict-2", first="batch", since=3, by=0.0000004)),
    against=PLAIN,
).model_copy(
    update={"not_run": (NotRun(part=RunPurpose.OPERATOR_AUDIT, why=WhyNotRun.RUNS_DIFFER, runs=1),)}
)
ERROR = error_verdict(
    REQUEST,
    COMMIT,
    JUDGED_AT,
    RunError(
        "run strict-1: python train.py exited with 1: FileNotFoundError: [Errno 2] No such file or "
        "directory: 'data/digits.csv'",
        hint="data/digits.csv is ignored by git; the gate trains only committed files. Commit a "
        "small sample of it.",
        details=(
            "Traceback (most recent call last):",
            '  File "train.py", line 12, in <module>',
            '    rows = open("data/digits.csv").read()',
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/digits.csv'",
        ),
    ),
)


def not_finite_from(step: int, run: RunEvidence, *, value: float = math.nan) -> RunEvidence:
    """Return the run with a loss of `value`, NaN or infinity, from a step on."""
    series, *others = run.metrics
    points = ((own, value if own >= step else number) for own, number in series.points.pairs())
    return run.model_copy(
        update={"metrics": (series.model_copy(update={"points": Points(points)}), *others)}
    )


NAN = judged(
    (not_finite_from(1, ran()), not_finite_from(1, ran("strict-2"))), against=PLAIN,
    change=Change(hunks=(ChangedLines(
        file="train.py", first=49, last=49, gone=1,
        before=("    loss = (out - y).square().mean()",),
        after=("    loss = (out - y).sqrt().mean()",),
    ),)),
)  # fmt: skip

AT_STEP = 12
RESUMED_REQUEST = replace(
    REQUEST,
    settings=settings(resume={"checkpoint": "checkpoints/last.pt", "at_step": AT_STEP}),
)


def resumed_runs(lack: Boundary | None = None) -> tuple[RunEvidence, RunEvidence]:
    """Return an interrupted run and a resumed one, which is exact unless it `lack`s a state."""
    # the resumed run counts its steps from 1, so shift the usual run's digests
    rest = ran("resumed-1").steps[AT_STEP:]
    moved = [one.model_copy(update={"step": one.step - AT_STEP}) for one in rest]
    whole = ran().metrics
    tail = tuple(
        series.model_copy(
            update={
                "points": Points(
                    (own - AT_STEP, value + (0.01 if lack is not None else 0.0))
                    for own, value in series.points.pairs()
                    if own > AT_STEP
                )
            }
        )
        for series in whole
    )
    after = ran("resumed-1").model_copy(
        update={
            "metrics": tail,
            "steps": StepDigests.of(moved),
            "boundaries": (lack or boundary(AT_STEP, steps=0),),
        }
    )
    before = ran("interrupted-1", steps=AT_STEP).model_copy(
        update={"boundaries": (boundary(AT_STEP),)}
    )
    return before, after


def _resumed(lack: Boundary | None = None, against: BaselineEntry = PLAIN) -> Verdict:
    runs = resumed_runs(lack)
    return judged(against=against, base=runs, request=RESUMED_REQUEST, resume=attempt(AT_STEP))


NO_MOMENT = boundary(AT_STEP, steps=0, digests=dict(list(boundary(AT_STEP).digests.items())[:1]))
RESUME_DIFFERS = _resumed(NO_MOMENT)
RESUMES = _resumed()
RESUME_AND_RESULT_DIFFER = _resumed(NO_MOMENT, entry(both(since=6)[0]))
TORN = KilledSave(
    point=KillPoint.FIRST,
    left=LeftBy.TORN,
    in_place=True,
    why="checkpoints/last.pt: zip archive without an end record: it is truncated or has a comment",
    step=AT_STEP,
    path="checkpoints/last.pt",
    file="train.py",
    line=61,
    size_bytes=53219,
    byte=26609,
)
KILLED_REQUEST = replace(
    REQUEST,
    settings=settings(
        resume={"checkpoint": "checkpoints/last.pt", "at_step": AT_STEP, "kill_while_saving": True}
    ),
)


def killed(*kills: KilledSave, request: GateRequest = KILLED_REQUEST) -> Verdict:
    """Return the verdict about an exact resume and runs that were killed inside the save."""
    carried = attempt(AT_STEP).model_copy(
        update={"checkpoint": "checkpoints/last.pt", "kills": kills}
    )
    return judged(against=PLAIN, base=resumed_runs(), request=request, resume=carried)


CHECKPOINT_TORN = killed(TORN)

CASES: Mapping[str, Verdict] = {
    "reproduced": REPRODUCED,
    "one-run": ONE_RUN,
    "unaffected": UNAFFECTED,
    "within-tolerance": WITHIN_TOLERANCE,
    "code-drift": CODE_DRIFT,
    "environment-drift": ENVIRONMENT_DRIFT,
    "environment-moved": ENVIRONMENT_MOVED,
    "dependency-drift": DEPENDENCY_DRIFT,
    "data-drift": DATA_DRIFT,
    "data-brought": DATA_BROUGHT,
    "preprocessing": PREPROCESSING,
    "same-code": SAME_CODE,
    "baseline-change": BASELINE_CHANGE,
    "quarantine": QUARANTINE,
    "no-baseline": NO_BASELINE,
    "provisional": PROVISIONAL,
    "other-accelerator": OTHER_ACCELERATOR,
    "not-comparable": NOT_COMPARABLE,
    "nondeterministic": NONDETERMINISTIC,
    "resume-differs": RESUME_DIFFERS,
    "checkpoint-torn": CHECKPOINT_TORN,
    "error": ERROR,
    "nan": NAN,
}
# a curve with a gap and a NaN, for the drawings
BROKEN_SERIES = SERIES[0].model_copy(
    update={"values": (*SERIES[0].values[:12], None, float("nan"), *SERIES[0].values[14:])}
)
