"""Numbers that differ, in the sentences that stand first in a report."""

from __future__ import annotations

from gate.comparison.differences import Comparison, MetricDelta, TensorDelta
from gate.report.wording import pair, points_words, share, worst_first


def numbers_words(comparison: Comparison | None) -> str:
    """The first number outside, and the worst of all when it is farther off."""
    if comparison is None:
        return ""
    if comparison.retyped:
        tensor = comparison.retyped[0]
        expected, observed = (
            form.rpartition(" ")[0] for form in (tensor.expected, tensor.observed)
        )
        return f"Tensor {tensor.name} is {observed} instead of {expected}."
    delta = comparison.first_outside
    beyond = comparison.first_tensor_beyond
    if delta is None and beyond is not None and beyond.limit:
        return (
            f"Tensor {tensor_words(beyond)}. compare.tensors allows "
            f"{share(beyond.limit)}. Every metric is equal or within tolerance."
        )
    if delta is None:
        return (
            f"{len(comparison.tensors):,} of {comparison.compared_tensors:,} tensors differ at the "
            "end; every metric is equal or within tolerance."
        )
    words = delta_words(delta, f"at step {delta.step}")
    # of the metric that was named: another one's small numbers move by hundreds of percents
    same = tuple(one for one in comparison.metrics if one.metric == delta.metric)
    worst = next(iter(worst_first(same)), None)
    if worst is not None and (worst.relative or 0) > (delta.relative or 0) * 1.01:
        words += f"; up to {moved_by(worst)} later (step {worst.step})"
    return f"{words}."


def tensor_words(delta: TensorDelta) -> str:
    """`state/model/0/head.weight moved by about 50 % of its size`."""
    if delta.distance is None:
        return f"{delta.name} moved by a distance that is not known"
    return f"{delta.name} moved by about {share(delta.distance)} of its size"


def moved_by(delta: MetricDelta) -> str:
    """How far a metric moved: an accuracy between 0 and 1 in points, else as a percentage."""
    return points_words(delta.metric, delta.expected, delta.observed) or share(delta.relative)


def delta_words(delta: MetricDelta, which: str) -> str:
    """`Loss at step 7: 1.338 instead of 1.336 (+0.2 %)`."""
    expected, observed = pair(delta.expected, delta.observed)
    # a metric's own name stays as it is
    name = "Loss" if delta.metric == "loss" else delta.metric
    if which == "the last":
        name, which = f"Last {delta.metric}", ""
    signed = ""
    if delta.relative is not None:
        judged = "" if delta.better is None else f", {'better' if delta.better else 'worse'}"
        signed = f" ({'-' if _falls(delta) else '+'}{moved_by(delta)}{judged})"
    return f"{f'{name} {which}'.rstrip()}: {observed} instead of {expected}{signed}"


def _falls(delta: MetricDelta) -> bool:
    try:
        return float(delta.observed) < float(delta.expected)
    except ValueError:
        return False


def worst_words(comparison: Comparison | None) -> str:
    """How far the worst metric is off, to be put behind a sentence's last word."""
    worst = next(iter(worst_first(comparison.metrics if comparison else ())), None)
    if worst is None or worst.relative is None:
        return ""
    return f": {worst.metric} is off by {moved_by(worst)} at step {worst.step}, at most"
