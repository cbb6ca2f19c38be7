"""What the guest's step lines tell beside the loss: every backward pass, and skipped steps."""

from __future__ import annotations

from collections.abc import Sequence

from gate.evidence.guest_documents import ExactNumber, StepLine
from gate.evidence.series import SeriesCollector
from gate.records.evidence import FloatType, MetricSeries, MetricSource


def step_series(lines: Sequence[StepLine]) -> tuple[MetricSeries, ...]:
    """`guest.losses` and `guest.skipped`, with `.<i>` for further optimizers, where they apply.

    `guest.losses` is there when a step had several backward passes (accumulated gradients, the
    closures of LBFGS, two losses of a GAN): each scalar in its order, counted from 1 over the run,
    of which `guest.loss` is the last in each step. `guest.skipped` is 1.0 for a step that a
    gradient scaler skipped and 0.0 for one that it let through.
    """
    collector = SeriesCollector(MetricSource.GUEST, "the guest's record")
    for number in sorted({line.optimizer for line in lines}):
        own = [line for line in lines if line.optimizer == number]
        suffix = f".{number}" if number else ""
        if any(len(line.losses) > 1 for line in own):
            _add_losses(collector, f"guest.losses{suffix}", own)
        for line in own:
            if line.skipped is not None:
                collector.add(f"guest.skipped{suffix}", line.step, float(line.skipped))
    return collector.series()


def _add_losses(collector: SeriesCollector, name: str, lines: Sequence[StepLine]) -> None:
    """Losses of several types become float64, which holds each of them exactly."""
    losses = [loss for line in lines for loss in line.losses]
    dtype = _common_type([loss for loss in losses if loss is not None])
    for ordinal, loss in enumerate(losses, start=1):
        if loss is not None:
            collector.add(name, ordinal, loss.value, dtype=dtype)


def _common_type(losses: Sequence[ExactNumber]) -> FloatType:
    types = {loss.dtype for loss in losses}
    return types.pop() if len(types) == 1 else "float64"
