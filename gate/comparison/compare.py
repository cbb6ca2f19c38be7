"""Two results in, one `Comparison` out; it finds differences and judges none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gate.comparison.metrics import MetricDifferences, compare_metrics
from gate.comparison.streams import compare_streams
from gate.records.comparison import (
    Comparison,
    EnvironmentChange,
    TensorChange,
    TensorDelta,
)
from gate.records.evidence import (
    CheckpointManifest,
    Environment,
    MetricSeries,
    StepDigest,
    TensorDigest,
)
from gate.records.settings import ComparisonSettings

ABSENT = "none"
SHOWN_DIGITS = 16


class Result(Protocol):
    """What a run and a baseline entry have in common."""

    @property
    def metrics(self) -> tuple[MetricSeries, ...]:
        """Every series."""
        ...

    @property
    def steps(self) -> tuple[StepDigest, ...]:
        """The parameters' digest after each step."""
        ...

    @property
    def checkpoint(self) -> CheckpointManifest:
        """Every tensor at the end."""
        ...

    @property
    def environment(self) -> Environment:
        """Where it was made."""
        ...


def compare_results(
    expected: Result,
    observed: Result,
    settings: ComparisonSettings,
    names: tuple[str, str],
) -> Comparison:
    """Compare everything that two results hold; `names` says what they are, for the reader."""
    metrics = compare_metrics(expected.metrics, observed.metrics, settings.tolerances)
    steps, compared_steps, first_differing = compare_steps(expected.steps, observed.steps)
    streams, compared_streams = compare_streams(expected.steps, observed.steps)
    tensors = compare_tensors(expected.checkpoint, observed.checkpoint)
    compared_tensors = len(
        {tensor.name for tensor in expected.checkpoint.tensors}
        & {tensor.name for tensor in observed.checkpoint.tensors}
    )
    return Comparison(
        expected=names[0],
        observed=names[1],
        metrics=metrics.deltas,
        series=metrics.faults,
        tensors=tensors,
        step_faults=steps,
        environment=compare_environments(
            expected.environment, observed.environment, settings.comparable_environment
        ),
        compared_points=metrics.compared,
        compared_steps=compared_steps,
        compared_tensors=compared_tensors,
        first_step=_first_step(metrics, first_differing),
        streams=streams,
        compared_streams=compared_streams,
    )


def _first_step(metrics: MetricDifferences, step_digest: int | None) -> int | None:
    steps = [delta.step for delta in metrics.deltas]
    if step_digest is not None:
        steps.append(step_digest)
    return min(steps, default=None)


def compare_steps(
    expected: tuple[StepDigest, ...], observed: tuple[StepDigest, ...]
) -> tuple[tuple[str, ...], int, int | None]:
    """Compare per-step digests: sentences, how many were compared, the first that differs.

    After the first difference every later digest differs too, so one sentence says it. Digests of
    two algorithms (one run on a GPU, one on a CPU) are not compared and say so. A step that one
    side did not observe is there and has no digest: it is not compared. Where digests were taken
    and no step has one on both sides, nothing was compared, which is a fault and no equality.
    """
    left = {digest.step: digest.parameters for digest in expected}
    right = {digest.step: digest.parameters for digest in observed}
    faults = []
    if left.keys() != right.keys():
        faults.append(f"{len(left)} optimizer steps expected, {len(right)} found")
    common = sorted(step for step in left.keys() & right.keys() if left[step] and right[step])
    if not common and (any(left.values()) or any(right.values())):
        faults.append("no optimizer step was observed on both sides")
    if common and _algorithm(left[common[0]]) != _algorithm(right[common[0]]):
        faults.append("per-step digests were made by two algorithms and cannot be compared")
        return tuple(faults), 0, None
    differing = [step for step in common if left[step] != right[step]]
    first = differing[0] if differing else None
    if first is not None:
        count = len(differing)
        faults.append(f"parameters differ from step {first} on ({count} of {len(common)} steps)")
    return tuple(faults), len(common), first


def _algorithm(digest: str) -> str:
    return digest.partition(":")[0]


def compare_tensors(
    expected: CheckpointManifest, observed: CheckpointManifest
) -> tuple[TensorDelta, ...]:
    """Tensors that changed, are missing or are extra, sorted by name."""
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
    return tuple(_tensor_deltas((name, left.get(name), right.get(name)) for name in names))


def _tensor_deltas(
    rows: Iterable[tuple[str, TensorDigest | None, TensorDigest | None]],
) -> Iterable[TensorDelta]:
    for name, expected, observed in rows:
        if expected is None:
            kind = TensorChange.EXTRA
        elif observed is None:
            kind = TensorChange.MISSING
        elif expected != observed:
            kind = TensorChange.CHANGED
        else:
            continue
        yield TensorDelta(
            name=name, kind=kind, expected=_shown(expected), observed=_shown(observed)
        )


def _shown(tensor: TensorDigest | None) -> str:
    """What a reader can tell apart: type, shape and digest; of a plain value its kind and digest.

    A value itself is not in the manifest, since it may be a secret of whoever saved it.
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
    """Every part that moved; a part that only one side knows has moved too."""
    names = sorted(expected.parts.keys() | observed.parts.keys())
    return tuple(
        EnvironmentChange(
            part=name,
            expected=expected.parts.get(name, ABSENT),
            observed=observed.parts.get(name, ABSENT),
            comparable=name in comparable,
        )
        for name in names
        if expected.parts.get(name, ABSENT) != observed.parts.get(name, ABSENT)
    )
