"""Where two runs part first, and what class of cause that order of events points to.

Within a step the order is: the batch is drawn, the loss is computed, gradients follow, the
optimizer moves the parameters. So a loss that differs while the parameters before it were equal
means other inputs or other arithmetic in the forward pass; parameters that differ after an equal
loss mean the backward pass or the optimizer.
"""

from __future__ import annotations

from gate.records.comparison import Comparison
from gate.records.verdict import Diagnosis

LOSS_PREFIX = "guest.loss"


def diagnose(comparison: Comparison) -> Diagnosis | None:
    """The first divergence of two strict runs, or None when they are equal."""
    if not comparison.differs:
        return None
    if comparison.environment:
        return _environment(comparison)
    if any("optimizer steps" in fault for fault in comparison.step_faults):
        return _step_count(comparison)
    if comparison.first_step is None:
        return _end_state(comparison)
    return _at_step(comparison, comparison.first_step)


def _environment(comparison: Comparison) -> Diagnosis:
    change = comparison.environment[0]
    return Diagnosis(
        first_step=comparison.first_step,
        stream="environment",
        subject=change.part,
        cause=f"the environment moved between the runs: {change.part} {change.expected} became "
        f"{change.observed}",
        remedy="Keep the machine to itself while the gate runs, and check what the script sets.",
    )


def _step_count(comparison: Comparison) -> Diagnosis:
    return Diagnosis(
        first_step=comparison.first_step,
        stream="steps",
        subject=comparison.step_faults[0],
        cause="the runs did not take the same number of optimizer steps",
        remedy="Look for a stopping rule that depends on time, or on a metric that differs.",
    )


def _end_state(comparison: Comparison) -> Diagnosis:
    names = [delta.name for delta in comparison.tensors]
    names += [fault.metric for fault in comparison.series]
    subject = names[0]
    return Diagnosis(
        first_step=None,
        stream="state",
        subject=subject,
        cause="every observed step is equal, but the state at the end is not",
        remedy="Look at what runs after the last step: averaging, evaluation, writing the file.",
    )


def _at_step(comparison: Comparison, step: int) -> Diagnosis:
    metrics = sorted({delta.metric for delta in comparison.metrics if delta.step == step})
    losses = [name for name in metrics if name.startswith(LOSS_PREFIX)]
    parameters = any(f"from step {step} on" in fault for fault in comparison.step_faults)
    if losses and step == 1:
        return Diagnosis(
            first_step=step,
            stream="loss",
            subject=losses[0],
            cause="the very first loss differs: other initial weights or another first batch, so "
            "a random source that the seeds do not reach",
            remedy="Look for np.random.default_rng() without a seed, a generator seeded from the "
            "time, os.urandom, or an order taken from a set or an unsorted directory.",
        )
    if losses:
        return Diagnosis(
            first_step=step,
            stream="loss",
            subject=losses[0],
            cause=f"the weights were equal up to step {step - 1}, then the loss differs: another "
            "batch, another random draw, or a nondeterministic operator in the forward pass",
            remedy="Look at data loading and augmentation first, then at custom kernels.",
        )
    if parameters:
        return Diagnosis(
            first_step=step,
            stream="parameters",
            subject=f"parameters after step {step}",
            cause="the loss is equal and the updated parameters are not: a nondeterministic "
            "operator in the backward pass, or the optimizer",
            remedy="Look for scatter, index_add or interpolation in the model, and for custom "
            "kernels that torch cannot see.",
        )
    return Diagnosis(
        first_step=step,
        stream="metric",
        subject=metrics[0],
        cause="losses and weights are equal, but a metric that the script writes is not",
        remedy="Look at how this metric is computed: time, memory and speed differ in every run; "
        "leave such a metric out of the file.",
    )
