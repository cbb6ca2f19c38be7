"""Compare two results: `compare_results` returns one `Comparison`, which lists and judges nothing.

Two runs miss a rare fault: a branch taken once in ten runs is missed by two of them four times out
of five. A gate call makes four runs. Where strict mode changes nothing about the computation, all
four must be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from gate.checkpoint.digest import is_weight
from gate.checkpoint.numbers import relative_distance
from gate.comparison.differences import (
    Comparison,
    EnvironmentChange,
    Event,
    EventKind,
    FingerprintDifference,
    StepFault,
    StepFaultKind,
    TensorChange,
    TensorDelta,
)
from gate.comparison.first_difference import (
    Numbering,
    Recorded,
    first_events,
    first_ranks,
    kind_of_metric,
    numbering_of_both,
    own_metrics,
    pairs_of,
    ranks_apart,
    renamed_series,
    trained_ranks,
    unrecorded_from,
)
from gate.comparison.metric_differences import compare_metrics, with_rank_metrics
from gate.comparison.work import compare_optimizer_settings, compare_work
from gate.evidence.run_evidence import (
    CheckpointManifest,
    MetricSeries,
    RankRecord,
    RunEvidence,
    TensorDigest,
)
from gate.evidence.step_columns import StepDigests
from gate.evidence.step_work import StepGiven
from gate.settings.gate_settings import ComparisonSettings
from gate.settings.levels import TensorLimit
from gate.training.environment import (
    CPU,
    DEVICE,
    PACKAGES,
    Environment,
    PackageMoves,
    moved_packages,
)


def equal_results(left: RunEvidence, right: RunEvidence) -> bool:
    """Return whether two runs agree in every number and tensor, and every step both observed.

    Both must have numbers and tensors: an empty comparison is never equal (T4).
    """
    if not left.metrics or not left.checkpoint.tensors:
        return False
    faults, _ = compare_steps(left.steps, right.steps)
    same_state = (left.checkpoint.algorithm, left.checkpoint.root) == (
        right.checkpoint.algorithm,
        right.checkpoint.root,
    )
    if _by_rank(left) != _by_rank(right):
        return False
    return not faults and same_state and left.metrics == right.metrics


def _by_rank(run: RunEvidence) -> list[tuple[int, tuple[MetricSeries, ...]]]:
    return [(record.rank, record.metrics) for record in run.ranks]


def distinct_results(runs: tuple[RunEvidence, ...]) -> int:
    """Return the number of different results: 1 only when every run equals every other one.

    Two runs that both equal a third may still differ at a step that only they observed. A run
    therefore joins a result only if it equals all of its members.
    """
    results: list[list[RunEvidence]] = []
    for run in runs:
        # `all`, because equality at observed steps is not transitive.
        fitting = (members for members in results if all(equal_results(run, m) for m in members))
        members = next(fitting, None)
        if members is None:
            results.append([run])
        else:
            members.append(run)
    return len(results)


ABSENT = "none"
SHOWN_DIGITS = 16
ROUNDING = 1e-5


class Result(Protocol):
    """What a run and a baseline entry have in common."""

    @property
    def metrics(self) -> tuple[MetricSeries, ...]:
        """Every series."""
        ...

    @property
    def steps(self) -> StepDigests:
        """The parameters' digest after each step."""
        ...

    @property
    def given(self) -> tuple[StepGiven, ...]:
        """What the optimizer steps were given: samples, passes and settings."""
        ...

    @property
    def checkpoint(self) -> CheckpointManifest:
        """Every tensor of the final state."""
        ...

    @property
    def environment(self) -> Environment:
        """The environment in which the result was made."""
        ...

    @property
    def ranks(self) -> tuple[RankRecord, ...]:
        """What each of several ranks recorded; a baseline has one record for all of them."""
        ...


def compare_results(
    expected: Result, observed: Result, settings: ComparisonSettings, names: tuple[str, str]
) -> Comparison:
    """Compare two results completely; `names` are how a reader is shown the two sides."""
    rules, ranks = settings.tolerances, pairs_of(expected, observed)
    metrics = compare_metrics(expected.metrics, observed.metrics, rules)
    metrics = with_rank_metrics(metrics, ranks, rules)
    step_faults, compared_steps = compare_steps(expected.steps, observed.steps)
    fingerprints, recorded = compare_fingerprints(expected.steps, observed.steps)
    tensors = compare_tensors(expected.checkpoint, observed.checkpoint, settings.tensors)
    counts = (len(expected.steps), len(observed.steps))
    work = compare_work(expected, observed)
    numbering = numbering_of_both((renamed_series(expected), renamed_series(observed)), counts)
    given = observed.given or expected.given
    world = max(trained_ranks(expected), trained_ranks(observed))
    apart = ranks_apart(
        {left.rank: compare_fingerprints(left.steps, right.steps)[0] for left, right in ranks},
        (metrics.deltas, metrics.faults),
        tensors,
        given=given,
        numbering=numbering,
        own=_own_metrics(expected, observed, every_rank=len(ranks) == world),
    )
    events = first_events(
        numbering,
        steps=counts,
        given=given,
        work=work,
        fingerprints=fingerprints,
        deltas=metrics.deltas,
        faults=metrics.faults,
        tensors=tensors,
    )
    return Comparison(
        expected=names[0],
        observed=names[1],
        metrics=metrics.deltas,
        series=metrics.faults,
        tensors=tensors,
        step_faults=step_faults,
        environment=compare_environments(
            expected.environment, observed.environment, settings.comparable_environment
        ),
        packages_aside=_packages_aside(expected.environment, observed.environment),
        compared_points=metrics.compared,
        compared_steps=compared_steps,
        compared_tensors=_in_both(expected.checkpoint, observed.checkpoint),
        steps_expected=counts[0],
        steps_observed=counts[1],
        events=events,
        unrecorded_from=unrecorded_from(events, recorded),
        loss_unrecorded=_loss_unrecorded((expected, observed), numbering, events),
        fingerprints=fingerprints,
        compared_fingerprints=tuple(sorted(recorded)),
        optimizer_settings=compare_optimizer_settings(expected, observed, tensors),
        work=work,
        ranks_apart=apart if world > 1 else (),
        first_ranks=first_ranks(apart, world),
    )


def _own_metrics(expected: Result, observed: Result, *, every_rank: bool) -> frozenset[str]:
    # A baseline only has rank 0's losses. A difference in them does not make rank 0 the first to
    # differ, so they count only if every rank is compared.
    return own_metrics(expected) | own_metrics(observed) if every_rank else frozenset()


def _loss_unrecorded(
    sides: tuple[Result, Result], numbering: Numbering, events: tuple[Event, ...]
) -> bool:
    """Return whether a side has no loss in the step of the first event; for a metric, in any."""
    step = events[0].step if events and events[0].kind is not EventKind.METRIC else None

    def recorded(side: Result) -> bool:
        losses = [
            series for series in side.metrics if kind_of_metric(series.name) is EventKind.LOSS
        ]
        if step is None:
            return bool(losses)
        steps = ((loss.name, own) for loss in losses for own in loss.points.steps)
        return any(numbering.step(name, own) == step for name, own in steps)

    return not all(map(recorded, sides))


class Comparisons:
    """The comparisons of one call: each pair of results is compared only once.

    Comparing many points takes long. Evidence never changes, so a result is known by its identity.
    """

    def __init__(self, settings: ComparisonSettings) -> None:
        """Start without any comparison."""
        self._settings = settings
        self._made: dict[tuple[int, int, tuple[str, str]], tuple[Result, Result, Comparison]] = {}

    def of(self, expected: Result, observed: Result, names: tuple[str, str]) -> Comparison:
        """Return the comparison of two results, as `compare_results` makes it."""
        key = id(expected), id(observed), names
        if key not in self._made:
            comparison = compare_results(expected, observed, self._settings, names)
            # Keep both objects alive: CPython may reuse an `id` once its object is gone.
            self._made[key] = expected, observed, comparison
        return self._made[key][-1]


def _in_both(expected: CheckpointManifest, observed: CheckpointManifest) -> int:
    """Return how many tensors have the same name on both sides."""
    return len(
        {tensor.name for tensor in expected.tensors} & {tensor.name for tensor in observed.tensors}
    )


def compare_steps(
    expected: StepDigests, observed: StepDigests
) -> tuple[tuple[StepFault, ...], int]:
    """Compare per-step digests of the parameters; return the faults and the number compared.

    After the first difference every later digest differs too, so one fault is enough. Digests by
    two algorithms (a GPU run and a CPU run) cannot be compared and are a fault. A step that only
    one side observed has no digest on the other and is skipped. Where digests exist but no step has
    one on both sides, nothing was compared. That is a fault, never equality (T4).
    """
    left, right = (
        {digest.step: digest.parameters for digest in side.observed if digest.parameters}
        for side in (expected, observed)
    )
    steps, observed_steps = frozenset(expected.steps), frozenset(observed.steps)
    faults = []
    if steps != observed_steps:
        message = f"{len(steps)} optimizer steps expected, {len(observed_steps)} found"
        faults.append(StepFault(kind=StepFaultKind.COUNT, message=message))
    # A step that only one side observed proves nothing about equality.
    common = sorted(left.keys() & right.keys())
    # Comparing nothing is never a pass (T4 in docs/architecture.md).
    if not common and (left or right):
        message = "no optimizer step was observed on both sides"
        faults.append(StepFault(kind=StepFaultKind.NOTHING_COMMON, message=message))
    if common and _algorithm(left[common[0]]) != _algorithm(right[common[0]]):
        message = "per-step digests were made with two algorithms and cannot be compared"
        return (*faults, StepFault(kind=StepFaultKind.ALGORITHM, message=message)), 0
    differing = [step for step in common if left[step] != right[step]]
    if differing:
        counted = f"{len(differing)} of {len(common)} steps"
        message = f"parameters differ from step {differing[0]} on ({counted})"
        faults.append(StepFault(kind=StepFaultKind.PARAMETERS, message=message))
    return tuple(faults), len(common)


def _algorithm(digest: str) -> str:
    return digest.partition(":")[0]


def compare_fingerprints(
    expected: StepDigests, observed: StepDigests
) -> tuple[tuple[FingerprintDifference, ...], Recorded]:
    """Return the fingerprints that differ, by name, and the steps of all that were compared.

    Only steps at which both sides observed a fingerprint count. A fingerprint that only one side
    has is skipped, because a baseline keeps fewer of them.
    """
    left, right = _by_fingerprint(expected), _by_fingerprint(observed)
    # Each run has its own sampling interval, so two runs share only some of their observed steps.
    common = {name: left[name].keys() & right[name].keys() for name in left.keys() & right.keys()}
    recorded = {name: steps for name, steps in common.items() if steps}
    differences = (_first_difference(name, left[name], right[name]) for name in sorted(recorded))
    return tuple(difference for difference in differences if difference is not None), recorded


def _by_fingerprint(digests: StepDigests) -> dict[str, dict[int, str]]:
    by_fingerprint: dict[str, dict[int, str]] = {}
    for digest in digests.observed:
        for fingerprint, text in digest.with_parameters.items():
            by_fingerprint.setdefault(fingerprint, {})[digest.step] = text
    return by_fingerprint


def _first_difference(
    fingerprint: str, expected: dict[int, str], observed: dict[int, str]
) -> FingerprintDifference | None:
    equal_until = None
    for step in sorted(expected.keys() & observed.keys()):
        if expected[step] != observed[step]:
            return FingerprintDifference(
                fingerprint=fingerprint, first_step=step, equal_until=equal_until
            )
        equal_until = step
    return None


def compare_tensors(
    expected: CheckpointManifest, observed: CheckpointManifest, limit: TensorLimit | None = None
) -> tuple[TensorDelta, ...]:
    """Return the tensors that changed, are missing or are extra, sorted by name."""
    # Digests by two algorithms differ even for equal tensors, so no row would mean anything.
    if expected.algorithm != observed.algorithm:
        delta = TensorDelta(
            name="(digest algorithm)",
            kind=TensorChange.MISSING,
            expected=expected.algorithm,
            observed=observed.algorithm,
        )
        return (delta,)
    left = {tensor.name: tensor for tensor in expected.tensors}
    right = {tensor.name: tensor for tensor in observed.tensors}
    names = sorted(left.keys() | right.keys())
    rows = ((name, left.get(name), right.get(name)) for name in names)
    return tuple(_tensor_deltas(rows, limit, (expected.sketches, observed.sketches)))


def _tensor_deltas(
    rows: Iterable[tuple[str, TensorDigest | None, TensorDigest | None]],
    limit: TensorLimit | None,
    sketched: tuple[Mapping[str, str], Mapping[str, str]],
) -> Iterable[TensorDelta]:
    for name, expected, observed in rows:
        weight, distance, allowed = False, None, None
        if expected is None:
            kind = TensorChange.EXTRA
        elif observed is None:
            kind = TensorChange.MISSING
        elif (expected.dtype, expected.shape) != (observed.dtype, observed.shape):
            kind = TensorChange.RETYPED
        elif expected != observed or _disagree(expected.sha256, sketched):
            kind = TensorChange.CHANGED
            weight = is_weight(name, observed.dtype)
            distance = _distance(expected, observed, sketched)
            # A limit of zero means equal bits, even for an optimizer's state. A distance is
            # meaningful only for weights.
            if limit is not None and (weight or limit.relative == 0):
                allowed = limit.relative
        else:
            continue
        yield TensorDelta(
            name=name,
            kind=kind,
            expected=_shown(expected),
            observed=_shown(observed),
            weight=weight,
            distance=distance,
            limit=allowed,
        )


def _distance(
    expected: TensorDigest,
    observed: TensorDigest,
    sketched: tuple[Mapping[str, str], Mapping[str, str]],
) -> float | None:
    left, right = sketched
    return relative_distance(left.get(expected.sha256, ""), right.get(observed.sha256, ""))


def _disagree(sha256: str, sketched: tuple[Mapping[str, str], Mapping[str, str]]) -> bool:
    """Return whether the sides have different sketches of the same bytes: an edited entry.

    A pull request's entry counts as equal if its digests are. Its sketches later decide what is
    near, so they must not be free to choose.
    """
    left, right = (side.get(sha256, "") for side in sketched)
    # The order in which a processor adds changes the last digits of a sketch.
    return left != right and (relative_distance(left, right) or 0.0) > ROUNDING


def _shown(tensor: TensorDigest | None) -> str:
    """Return type, shape and digest of a tensor, or kind and digest of a plain value.

    The manifest does not contain plain values, because they may be secrets of the author.
    """
    if tensor is None:
        return ABSENT
    digest = tensor.sha256[:SHOWN_DIGITS]
    if tensor.dtype.islower():
        return f"{tensor.dtype} value {digest}"
    return f"{tensor.dtype}{list(tensor.shape)} {digest}"


def compare_environments(
    expected: Environment, observed: Environment, comparable: tuple[str, ...]
) -> tuple[EnvironmentChange, ...]:
    """Return every part that moved.

    A part that only one side knows has moved, unless that side's value is `none`.
    """
    return tuple(
        _environment_change(name, expected, observed, comparable=name in comparable)
        for name in expected.moved(observed)
    )


def _packages_aside(expected: Environment, observed: Environment) -> tuple[str, ...]:
    return tuple(move.described for move in moved_packages(expected, observed).aside)


def _environment_change(
    name: str, expected: Environment, observed: Environment, *, comparable: bool
) -> EnvironmentChange:
    moves = moved_packages(expected, observed) if name == PACKAGES else PackageMoves()
    return EnvironmentChange(
        part=name,
        expected=expected.part(name),
        observed=observed.part(name),
        comparable=comparable,
        details=tuple(move.described for move in moves.counted),
        pins=tuple(move.pin for move in moves.counted if move.pin),
        installed=observed.installed if moves.counted else 0,
        imports_known=moves.imports_known,
    )


ONE_THREAD = "1"


def runs_of_the_same_work(
    strict: RunEvidence, default: tuple[RunEvidence, ...], settings: ComparisonSettings
) -> tuple[Comparison, ...]:
    """Compare the first strict run with each default run; () where the modes are not comparable.

    They are comparable if every run used one CPU thread, which leaves no order of summation open,
    and at least one default run gave the strict result. Then the switches of strict mode did not
    matter here, and a default run that differs has a different cause.
    """
    if not default or not all(map(on_one_cpu_thread, (strict, *default))):
        return ()
    compared = tuple(
        compare_results(strict, run, settings, (strict.run.label, run.run.label)) for run in default
    )
    return compared if any(comparison.numerically_equal for comparison in compared) else ()


def on_one_cpu_thread(run: RunEvidence) -> bool:
    """Return whether neither threads nor a GPU left an order of summation open."""
    where = run.environment
    return where.of_ranks(DEVICE) == (CPU,) and where.part("threads") == ONE_THREAD


def missed_share(runs: int, strikes: float) -> float:
    """Return the probability that all runs agree although a fault strikes each with `strikes`."""
    # Runs agree in two ways: every run was struck, or none was.
    return float(strikes**runs + (1 - strikes) ** runs)
