"""A resumed run against the run that was never interrupted: the second one counts on from a step.

In a fresh process the harness counts steps from 1, so what it recorded there is moved by the steps
of the interrupted run. A script's own metrics may count on, or begin again; both are read. What
counts something else than steps, such as epochs, is left out: an epoch that was interrupted has
another mean, and nothing is wrong.

Of what the script itself saved, model, optimizer and random state are compared. What else it keeps
there, such as times and counters of its own, may differ after a correct resume.
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

# seen once, in the first step of a process, and of no use for a later one
OF_A_START: Final = frozenset({"initial", "structure"})
BATCH: Final = "batch"


def compare_resumed(
    whole: RunEvidence, resumed: RunEvidence, step: int, settings: ComparisonSettings
) -> Comparison:
    """What the resumed run gave against the steps behind `step` of the uninterrupted one."""
    names = (f"{whole.run.label} from step {step + 1} on", resumed.run.label)
    return compare_results(_rest(whole, step), _moved(resumed, whole, step), settings, names)


def compare_first_part(
    whole: RunEvidence, interrupted: RunEvidence, step: int, settings: ComparisonSettings
) -> Comparison:
    """The interrupted run up to `step` against the uninterrupted one; no state is compared.

    As no tensor is, this is never `numerically_equal`: ask whether it `differs`.
    """
    names = (f"{whole.run.label} up to step {step}", interrupted.run.label)
    return compare_results(_start(whole, step), _start(interrupted, step), settings, names)


def learning_rate(given: tuple[StepGiven, ...], step: int) -> dict[str, str]:
    """The rate of each group at that step's update, by its name in the state; none if unknown."""
    known = given_at(given, step) if is_told(step) else None
    settings = {} if known is None else known.settings
    return {name: word for name, word in settings.items() if name.endswith("/lr")}


def fingerprint(run: RunEvidence, name: str, step: int) -> str:
    """A fingerprint at a step, empty where it was not observed."""
    digest = next((record for record in run.steps.observed if record.step == step), None)
    return "" if digest is None else digest.with_parameters.get(name, "")


def _start(run: RunEvidence, step: int) -> RunEvidence:
    """The run up to a step, of what counts in steps."""
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
        # how a script numbers its own cannot be told from the half that an interrupted run has
        if series.source is not MetricSource.HARNESS:
            continue
        kept = [(own, value) for own, value in series.points.pairs() if own <= step]
        if kept:
            yield series.model_copy(update={"points": Points(kept)})


def _rest(run: RunEvidence, step: int) -> RunEvidence:
    """The run behind a step, in its own numbers."""
    numbering = numbering_of(run.metrics, len(run.steps), certain=False)
    metrics = (_behind(series, numbering, step) for series in run.metrics)
    return run.model_copy(
        update={
            "metrics": tuple(series for series in metrics if series.points),
            "steps": run.steps[step:],
            "given": (),
            "checkpoint": _compared(run.checkpoint),
            # in other numbers; what all ranks recorded together is compared
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
    """A resumed run in the numbers of the uninterrupted one, of the metrics that one has."""
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
            # in other numbers; what all ranks recorded together is compared
            "ranks": (),
        }
    )


def _counted_on(series: MetricSeries, numbering: Numbering, step: int) -> MetricSeries:
    """The series in the script's whole numbering: it may count on, or begin again."""
    pairs = list(series.points.pairs())
    places = [numbering.step(series.name, own) or 0 for own, _ in pairs]
    harness = series.source is MetricSource.HARNESS
    if harness or any(place <= step for place in places):
        pairs = [(own + step, value) for own, value in pairs]
    return series.model_copy(update={"points": Points(pairs)})


def _moved_steps(run: RunEvidence, whole: RunEvidence, step: int) -> StepDigests:
    # a script that skips what it has seen yields all of it before its first step
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
    """The captured state, and of what the script saved model, optimizer and random state."""
    tensors = tuple(leaf for leaf in manifest.tensors if not _is_bookkeeping(leaf))
    return manifest.model_copy(update={"tensors": tensors})


def _is_bookkeeping(leaf: TensorDigest) -> bool:
    if not SAVED_LEAF.match(leaf.name):
        return False
    path = SAVED_LEAF.sub("", leaf.name, count=1)
    return part_of(path, leaf.dtype, tensor=not leaf.dtype.islower()) == OTHER
