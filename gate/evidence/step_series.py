"""What the harness's step lines tell beside the loss: every backward pass, and skipped steps."""

from __future__ import annotations

from collections.abc import Sequence

from gate.evidence.harness_files import ExactNumber, StepLine
from gate.evidence.run_evidence import FloatType, MetricSeries, MetricSource
from gate.evidence.series import SeriesCollector

# of all optimizers together; what further passes do shows in the loss, the last one, and after it
MAX_PASS_SERIES = 200


def step_series(lines: Sequence[StepLine]) -> tuple[MetricSeries, ...]:
    """`loss.pass<n>` and `skipped`, with `.<i>` before for further optimizers.

    The first is there when a step had several backward passes (accumulated gradients, the closures
    of LBFGS, two losses of a GAN): the scalar of the n-th pass at each optimizer step, of which
    `loss` is the last. Steps are optimizer steps in every series that the harness makes, so
    that all of them and the fingerprints have one numbering. `skipped` is 1.0 for a step that
    a gradient scaler skipped and 0.0 for one that it let through.
    """
    collector = SeriesCollector(MetricSource.HARNESS, "the harness's record")
    # for all optimizers together: a script may have one for each parameter
    passes_left = MAX_PASS_SERIES
    for number in sorted({line.optimizer for line in lines}):
        own = [line for line in lines if line.optimizer == number]
        suffix = f".{number}" if number else ""
        most = max(len(line.losses) for line in own)
        if most > 1:
            for place in range(min(most, passes_left)):
                _add_pass(collector, f"loss{suffix}.pass{place + 1}", own, place)
            passes_left -= min(most, passes_left)
        for line in own:
            if line.skipped is not None:
                collector.add(f"skipped{suffix}", line.step, float(line.skipped))
    return collector.series()


def _add_pass(collector: SeriesCollector, name: str, lines: Sequence[StepLine], place: int) -> None:
    """One pass of each step; losses of several types become float64, which holds all exactly."""
    losses = {line.step: line.losses[place] for line in lines if len(line.losses) > place}
    dtype = _common_type([loss for loss in losses.values() if loss is not None])
    for step, loss in losses.items():
        if loss is not None:
            collector.add(name, step, loss.value, dtype=dtype)


def _common_type(losses: Sequence[ExactNumber]) -> FloatType:
    types = {loss.dtype for loss in losses}
    return types.pop() if len(types) == 1 else "float64"
