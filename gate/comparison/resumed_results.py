"""Compare a resumed run with the run that was never interrupted, from the resumed step on.

In a fresh process the harness counts steps from 1, so its records are shifted by the steps of the
interrupted run. A script's own metrics may count on or start again; both are understood. Metrics
that count something other than steps, such as epochs, are left out: an interrupted epoch correctly
has a different mean.

In the script's own saved file, only model, optimizer and random state are compared. Anything else
that it saves, such as times and counters, may differ after a correct resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gate.checkpoint.digest import SAVED_LEAF
from gate.checkpoint.parts import OTHER, part_of
from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.comparison.first_difference import Numbering, numbering_of
from gate.evidence.columns import Points
from gate.evidence.run_evidence import (
    CheckpointManifest,
    MetricSeries,
    MetricSource,
    RunEvidence,
    TensorDigest,
)
from gate.evidence.step_columns import StepDigest, StepDigests
from gate.evidence.step_work import StepGiven, given_at, is_told
from gate.settings.gate_settings import ComparisonSettings

# These are taken once, in the first step of a process, and mean nothing for a later step.
OF_A_START: Final = frozenset({"initial", "structure"})
BATCH: Final = "batch"


def compare_resumed(
    whole: RunEvidence, resumed: RunEvidence, step: int, settings: ComparisonSettings
) -> Comparison:
    """Compare the resumed run with the steps after `step` of the uninterrupted run."""
    names = (f"{whole.run.label} from step {step + 1} on", resumed.run.label)
    return compare_results(_rest(whole, step), _moved(resumed, whole, step), settings, names)


def compare_first_part(
    whole: RunEvidence, interrupted: RunEvidence, step: int, settings: ComparisonSettings
) -> Comparison:
    """Compare the interrupted run with the uninterrupted one up to `step`, without any state.

    Without tensors the result is never `numerically_equal`, so ask whether it `differs`.
    """
    names = (f"{whole.run.label} up to step {step}", interrupted.run.label)
    return compare_results(_start(whole, step), _start(interrupted, step), settings, names)


def learning_rate(given: tuple[StepGiven, ...], step: int) -> dict[str, str]:
    """Return the rate of each group at that step's update, by its name in the state.

    {} where it is unknown.
    """
    known = given_at(given, step) if is_told(step) else None
    settings = {} if known is None else known.settings
    return {name: word for name, word in settings.items() if name.endswith("/lr")}


def fingerprint(run: RunEvidence, name: str, step: int) -> str:
    """Return a run's fingerprint at a step; "" if it was not observed."""
    digest = next((record for record in run.steps.observed if record.step == step), None)
    return "" if digest is None else digest.with_parameters.get(name, "")


def _start(run: RunEvidence, step: int) -> RunEvidence:
    """Return the run up to a step, with only what counts in steps."""
    metrics = tuple(_series_until(run.metrics, step))
    nothing = run.checkpoint.model_copy(update={"tensors": ()})
    return run.model_copy(
        update={
            "metrics": metrics,
            "steps": run.steps[:step],
            "given": (),
            "checkpoint": nothing,
            "ranks": (),
        }
    )


def _series_until(metrics: tuple[MetricSeries, ...], step: int) -> Iterator[MetricSeries]:
    for series in metrics:
        # The half that an interrupted run has does not show how a script numbers its own metrics.
        if series.source is not MetricSource.HARNESS:
            continue
        kept = [(own, value) for own, value in series.points.pairs() if own <= step]
        if kept:
            yield series.model_copy(update={"points": Points(kept)})


def _rest(run: RunEvidence, step: int) -> RunEvidence:
    """Return the run after a step, in its own numbering."""
    numbering = numbering_of(run.metrics, len(run.steps), certain=False)
    metrics = (_behind(series, numbering, step) for series in run.metrics)
    return run.model_copy(
        update={
            "metrics": tuple(series for series in metrics if series.points),
            "steps": run.steps[step:],
            "given": (),
            "checkpoint": _compared(run.checkpoint),
            # ranks' own records count differently; the record of all ranks together is compared
            "ranks": (),
        }
    )


def _behind(series: MetricSeries, numbering: Numbering, step: int) -> MetricSeries:
    kept = [
        (own, value)
        for own, value in series.points.pairs()
        if (place := numbering.step(series.name, own)) is not None and place > step
    ]
    return series.model_copy(update={"points": Points(kept)})


def _moved(run: RunEvidence, whole: RunEvidence, step: int) -> RunEvidence:
    """Return a resumed run in the numbering of the uninterrupted one, with metrics both have."""
    numbering = numbering_of(whole.metrics, len(whole.steps), certain=False)
    there = {series.name for series in _rest(whole, step).metrics}
    metrics = (
        _counted_on(series, numbering, step) for series in run.metrics if series.name in there
    )
    return run.model_copy(
        update={
            "metrics": tuple(series for series in metrics if series.points),
            "steps": _moved_steps(run, whole, step),
            "given": (),
            "checkpoint": _compared(run.checkpoint),
            # as in `_rest`: only the record of all ranks together is compared
            "ranks": (),
        }
    )


def _counted_on(series: MetricSeries, numbering: Numbering, step: int) -> MetricSeries:
    """Return a series in the uninterrupted numbering: the script may count on or start again."""
    pairs = list(series.points.pairs())
    places = [numbering.step(series.name, own) or 0 for own, _ in pairs]
    harness = series.source is MetricSource.HARNESS
    if harness or any(place <= step for place in places):
        pairs = [(own + step, value) for own, value in pairs]
    return series.model_copy(update={"points": Points(pairs)})


def _moved_steps(run: RunEvidence, whole: RunEvidence, step: int) -> StepDigests:
    # A script that skips data it has seen loads all of it before its first step.
    skips = _samples(run.given, 1) != _samples(whole.given, step + 1)
    moved = []
    for place, number in enumerate(run.steps.steps):
        digest = run.steps.at(place)
        if digest.parameters or digest.fingerprints:
            kept = {
                name: text
                for name, text in digest.fingerprints.items()
                if not (number == 1 and (name in OF_A_START or (skips and name == BATCH)))
            }
            moved.append(
                (
                    place,
                    StepDigest(step=number + step, parameters=digest.parameters, fingerprints=kept),
                )
            )
    return StepDigests([number + step for number in run.steps.steps], moved)


def _samples(given: tuple[StepGiven, ...], step: int) -> int | None:
    known = given_at(given, step) if is_told(step) else None
    return None if known is None else known.samples


def _compared(manifest: CheckpointManifest) -> CheckpointManifest:
    """Return the manifest without saved leaves other than model, optimizer and random state."""
    tensors = tuple(leaf for leaf in manifest.tensors if not _is_bookkeeping(leaf))
    return manifest.model_copy(update={"tensors": tensors})


def _is_bookkeeping(leaf: TensorDigest) -> bool:
    if not SAVED_LEAF.match(leaf.name):
        return False
    path = SAVED_LEAF.sub("", leaf.name, count=1)
    return part_of(path, leaf.dtype, tensor=not leaf.dtype.islower()) == OTHER
