"""The cases of the golden files: every outcome, and the two ways in which drift can end."""

from __future__ import annotations

from collections.abc import Mapping

from report_cases import (
    FACTS,
    SERIES,
    STEPS,
    TENSOR_NAMES,
    TOO_SHORT,
    WITHIN_NOISE,
    against_baseline,
    comparison,
    delta,
    digest,
    run,
    tensor,
    verdict,
)

from gate.records.comparison import EnvironmentChange, MetricDelta, SeriesFault, TensorChange
from gate.records.runs import RunMode
from gate.records.verdict import Diagnosis, Finding, Outcome, Severity, Verdict

ACCEPT = (
    "repro-gate baseline accept --config repro-gate.yml --out repro-gate-out "
    "--reason 'why the result moved'"
)
AGAIN = "repro-gate gate --config repro-gate.yml --verbose"
ALL_TENSORS = tuple(tensor(name) for name in TENSOR_NAMES)
MOVED = (
    EnvironmentChange(part="torch", expected="2.12.1", observed="2.13.0", comparable=False),
    EnvironmentChange(
        part="packages", expected=digest("old"), observed=digest("packages"), comparable=True
    ),
)


def _drift(first: int, by: float, *, within: bool) -> tuple[MetricDelta, ...]:
    return tuple(
        delta(step, by * (step - first + 1), within=within) for step in range(first, STEPS + 1)
    )


REPRODUCED = verdict(
    Outcome.REPRODUCED,
    passes=True,
    cause="both strict runs equal the baseline, bit for bit",
)
WITHIN_TOLERANCE = verdict(
    Outcome.WITHIN_TOLERANCE,
    passes=True,
    cause="inside tolerance: loss at step 24 is 0.471856, expected 0.471847",
    baseline=against_baseline(
        metrics=_drift(5, 0.000001, within=True), tensors=ALL_TENSORS, first_step=5
    ),
    cost=WITHIN_NOISE,
)
CODE_DRIFT = verdict(
    Outcome.CODE_DRIFT,
    passes=False,
    cause="differs from the baseline: loss at step 7 is 1.338445, expected 1.335773",
    next_command=ACCEPT,
    baseline=against_baseline(
        metrics=(*_drift(7, 0.002, within=False), delta(7, 0.0001, within=True, metric="accuracy")),
        tensors=ALL_TENSORS,
        first_step=7,
    ),
    diagnosis=Diagnosis(
        first_step=7,
        stream="loss",
        subject="loss",
        cause="Code: the environment is the same and both runs agree with each other.",
        remedy="If the change is meant, accept the new result as the baseline.",
    ),
)
ENVIRONMENT_DRIFT = verdict(
    Outcome.ENVIRONMENT_DRIFT,
    passes=False,
    cause="differs from the base commit run here: loss at step 7 is 1.338445, expected 1.335773",
    next_command=ACCEPT,
    baseline=against_baseline(
        metrics=_drift(2, 0.0005, within=False),
        tensors=ALL_TENSORS,
        environment=MOVED,
        first_step=2,
    ),
    base_run=comparison(
        expected="base-1",
        metrics=_drift(7, 0.002, within=False),
        tensors=ALL_TENSORS,
        first_step=7,
    ),
    baseline_facts=FACTS.model_copy(update={"age_days": 203, "stale": True}),
    findings=(
        Finding(
            code="environment-moved",
            severity=Severity.WARNING,
            message="torch: 2.12.1 became 2.13.0",
        ),
        Finding(
            code="baseline-stale",
            severity=Severity.NOTICE,
            message="the baseline is 203 days old",
            remedy="Record it again while results still agree: repro-gate baseline record",
        ),
    ),
)
ENVIRONMENT_MOVED = verdict(
    Outcome.WITHIN_TOLERANCE,
    passes=True,
    cause="the environment moved (torch, packages); equal to the base commit run on this machine",
    baseline=against_baseline(
        metrics=_drift(2, 0.0005, within=False),
        tensors=ALL_TENSORS,
        environment=MOVED,
        first_step=2,
    ),
    base_run=comparison(expected="base-1"),
)
BASELINE_CHANGE = verdict(
    Outcome.BASELINE_CHANGE,
    passes=True,
    cause="the pull request brings a new baseline, and this run reproduces it bit for bit",
    baseline_facts=FACTS.model_copy(update={"from_base": False, "age_days": 0}),
    findings=(
        Finding(
            code="baseline-changed",
            severity=Severity.WARNING,
            message="this pull request changes .repro-gate/baseline.json",
            remedy="Merge only if the new result is what you want.",
        ),
        Finding(
            code="decides-changed",
            severity=Severity.WARNING,
            message="this pull request changes repro-gate.yml; the base commit's version decided",
        ),
        Finding(
            code="injected-seed",
            severity=Severity.NOTICE,
            message="the script sets no seed itself: it is reproducible only with the gate's",
            remedy="Call torch.manual_seed in the script.",
        ),
    ),
)
NO_BASELINE = verdict(
    Outcome.NO_BASELINE,
    passes=False,
    cause="the baseline has no entry for this environment; a proposed one is in the artifact",
    next_command=ACCEPT,
    baseline=None,
    baseline_facts=None,
    cost=TOO_SHORT,
    findings=(
        Finding(
            code="dirty-tree",
            severity=Severity.WARNING,
            message="2 file(s) differ from the commit: src/model.py, train.py",
            remedy="Commit them: this result belongs to no commit and is not sealed.",
        ),
    ),
    changed_files=("src/model.py", "train.py"),
)
NOT_COMPARABLE = verdict(
    Outcome.NOT_COMPARABLE,
    passes=False,
    cause="metric loss: the baseline has steps 1 to 50, this run 1 to 24",
    next_command=ACCEPT,
    baseline=against_baseline(
        series=(
            SeriesFault(metric="loss", reason="the baseline has steps 1 to 50, this run 1 to 24"),
            SeriesFault(metric="accuracy", reason="not in the baseline"),
        ),
        step_faults=("step 25 is missing (and 25 more)",),
        tensors=(
            tensor("model/0/conv3.weight", TensorChange.MISSING),
            tensor("model/0/norm.weight", TensorChange.EXTRA),
        ),
    ),
)
NONDETERMINISTIC = verdict(
    Outcome.NONDETERMINISTIC,
    passes=False,
    cause="two strict runs of the same commit differ from step 3 on",
    next_command=AGAIN,
    repeat=comparison(
        metrics=_drift(3, 0.0000004, within=False), tensors=ALL_TENSORS, first_step=3
    ),
    baseline=None,
    baseline_facts=None,
    checkpoint_root="",
    diagnosis=Diagnosis(
        first_step=3,
        stream="loss",
        subject="loss",
        cause="A random source that the seed does not reach, for example random.SystemRandom or "
        "the time of day.",
        remedy="Look at what step 3 reads that step 2 does not; then draw it from a seeded "
        "generator.",
    ),
)
ERROR = verdict(
    Outcome.ERROR,
    passes=False,
    cause="run strict-1 ended with exit code 1",
    next_command=AGAIN,
    repeat=None,
    baseline=None,
    baseline_facts=None,
    cost=None,
    canary=(),
    environment=None,
    checkpoint_root="",
    series=(),
    runs=(run("strict-1", RunMode.STRICT, 1),),
    not_exercised=(),
    fault_details=(
        "Traceback (most recent call last):",
        '  File "train.py", line 12, in <module>',
        '    rows = open("data/digits.csv").read()',
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/digits.csv'",
    ),
)

CASES: Mapping[str, Verdict] = {
    "reproduced": REPRODUCED,
    "within-tolerance": WITHIN_TOLERANCE,
    "code-drift": CODE_DRIFT,
    "environment-drift": ENVIRONMENT_DRIFT,
    "environment-moved": ENVIRONMENT_MOVED,
    "baseline-change": BASELINE_CHANGE,
    "no-baseline": NO_BASELINE,
    "not-comparable": NOT_COMPARABLE,
    "nondeterministic": NONDETERMINISTIC,
    "error": ERROR,
}
# a curve with a hole, for the drawings
BROKEN_SERIES = SERIES[0].model_copy(
    update={"values": (*SERIES[0].values[:12], None, float("nan"), *SERIES[0].values[14:])}
)
