"""Tables that only the page has room for: the runs' evidence side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gate.comparison.differences import BASELINE_SIDE
from gate.evidence.observations import Override
from gate.evidence.run_evidence import HarnessProcess, MetricSeries, RunEvidence
from gate.evidence.step_columns import UNKNOWN
from gate.report.escape import NOTHING
from gate.report.layout import Cell, Limits, Row, Section, table_of
from gate.report.page.page_sources import PageSources
from gate.report.page.run_charts import quantile
from gate.report.wording import SHA256, duration, magnitude, short
from gate.text.phrases import count
from gate.training.runs import FIRST_STRICT, SECOND_STRICT
from gate.verdict.verdict import Verdict

SHOWN_DIGITS = 16
GIBIBYTE = 2**30


def page_sections(verdict: Verdict, sources: PageSources, limits: Limits) -> tuple[Section, ...]:
    """Return every table of the evidence that has rows."""
    made = (
        _measured(sources, limits),
        _metrics(sources, limits),
        _distances(sources, limits),
        _tensors(verdict, sources, limits),
        _environment(sources, limits),
        _devices(sources, limits),
        _knobs(sources, limits),
        _overrides(sources, limits),
        _children(sources, limits),
        _notes(sources, limits),
    )
    return tuple(section for section in made if section.table.rows)


def _section(
    title: str, headings: tuple[str, ...], rows: Iterable[Row], limit: int, *right: int
) -> Section:
    table = table_of(headings, rows, limit, *right)
    return Section(title=f"{title} ({table.total:,})", table=table)


def _measured(sources: PageSources, limits: Limits) -> Section:
    headings = (
        "Run", "Steps", "Samples", "First step", "Median step", "Slowest step", "Memory, GiB",
        "Device, GiB", "Observing",
    )  # fmt: skip
    rows = map(_measured_row, sources.runs)
    right = range(1, len(headings))
    return _section("What was measured", headings, rows, limits.rows, *right)


def _measured_row(run: RunEvidence) -> Row:
    seconds = sorted(run.timings.seconds)
    observing = run.recorder.share if run.recorder else None
    samples = sum(count for count in run.timings.samples if count != UNKNOWN)
    texts = (
        f"{len(run.steps):,}",
        f"{samples:,}" if samples else "",
        duration(run.first_step_seconds),
        duration(quantile(seconds, 0.5)) if seconds else "",
        duration(seconds[-1]) if seconds else "",
        f"{run.peak_memory_bytes / GIBIBYTE:,.3f}",
        f"{run.device_memory_bytes / GIBIBYTE:,.3f}" if run.device_memory_bytes else "",
        "" if observing is None else f"{observing * 100:.1f} %",
    )
    return (Cell(run.run.label, code=True), *(Cell(text or NOTHING) for text in texts))


def _metrics(sources: PageSources, limits: Limits) -> Section:
    headings = ("Metric", "Run", "Source", "Type", "Points", "First", "Last", "Lowest", "Highest")
    sides = [(run.run.label, run.metrics) for run in sources.runs]
    if sources.entry is not None:
        sides.append((BASELINE_SIDE, sources.entry.metrics))
    columns = [(series.name, label, series) for label, metrics in sides for series in metrics]
    rows = (_metric_row(label, series) for _, label, series in sorted(columns, key=_by_name))
    return _section("Metrics", headings, rows, limits.rows, 4, 5, 6, 7, 8)


def _by_name(column: tuple[str, str, MetricSeries]) -> str:
    return column[0]


def _metric_row(label: str, series: MetricSeries) -> Row:
    points = series.points
    if not points:
        ends = (NOTHING,) * 4
    else:
        values = points.values
        # a NaN is neither the lowest nor the highest value
        numbers = [value for value in values if not math.isnan(value)] or [math.nan]
        first, last, low, high = values[0], values[-1], min(numbers), max(numbers)
        ends = (repr(first), repr(last), repr(low), repr(high))
    return (
        Cell(series.name, code=True),
        Cell(label, code=True),
        Cell(series.source.value),
        Cell(series.dtype),
        Cell(f"{len(points):,}"),
        *map(Cell, ends),
    )


def _tensors(verdict: Verdict, sources: PageSources, limits: Limits) -> Section:
    """Return each leaf of the first strict run's state, and whether the other sides equal it."""
    comparisons = [
        comparison
        for comparison in (verdict.repeat, verdict.base_run, verdict.baseline)
        if comparison is not None
    ]
    moved = [
        {delta.name: delta.kind.value for delta in comparison.tensors} for comparison in comparisons
    ]
    run = sources.reference
    others = (f"{comparison.observed} and {comparison.expected}" for comparison in comparisons)
    rows = (
        (
            Cell(tensor.name, code=True),
            Cell(tensor.dtype),
            Cell(str(list(tensor.shape)) if tensor.shape else NOTHING),
            Cell(tensor.sha256[:SHOWN_DIGITS], code=True),
            *(Cell(kinds.get(tensor.name, "equal")) for kinds in moved),
        )
        for tensor in (run.checkpoint.tensors if run else ())
    )
    headings = ("Tensor or value", "Type", "Shape", "SHA-256", *others)
    return _section(f"Training state of {FIRST_STRICT}", headings, rows, limits.deltas)


def _distances(sources: PageSources, limits: Limits) -> Section:
    """Return how far each tensor differs between the two strict runs' states, worst first."""
    listed = sources.distance.tensors if sources.distance is not None else ()
    rows = (
        (
            Cell(tensor.name, code=True),
            Cell(magnitude(tensor.relative_l2)),
            Cell(magnitude(tensor.max_absolute)),
            Cell(f"{tensor.differing:,}"),
            Cell(f"{tensor.elements:,}"),
            Cell("yes" if tensor.finiteness_moved else "no"),
        )
        for tensor in listed
    )
    headings = (
        "Tensor", "Relative L2", "Largest difference", "Elements that differ", "Elements",
        "More NaN or ∞ on one side",
    )  # fmt: skip
    title = f"How far {SECOND_STRICT} is from {FIRST_STRICT}, by tensor"
    return _section(title, headings, rows, limits.deltas, 1, 2, 3, 4)


def _environment(sources: PageSources, limits: Limits) -> Section:
    """Return every part of the environment on every side, marking parts that are not the same."""
    sides = [(run.run.label, run.environment) for run in sources.runs]
    if sources.entry is not None:
        sides.insert(0, (BASELINE_SIDE, sources.entry.environment))
    names = sorted({name for _, here in sides for name in here.parts})
    # As in the comparison, only packages count that the training imports.
    moved = {name for _, here in sides[1:] for name in sides[0][1].moved(here)}
    rows = [
        _side_by_side(
            name, [here.parts.get(name, NOTHING) for _, here in sides], same=name not in moved
        )
        for name in names
    ]
    headings = ("Part", "Same", *(label for label, _ in sides))
    return _section("Environment, side by side", headings, rows, limits.rows)


def _side_by_side(name: str, values: list[str], *, same: bool) -> Row:
    shown = (short(value) if SHA256.fullmatch(value) else value for value in values)
    return (
        Cell(name, code=True),
        Cell("yes" if same else "NO"),
        *(Cell(value, code=True) for value in shown),
    )


def _devices(sources: PageSources, limits: Limits) -> Section:
    """Return each GPU that a process of the first run saw, and whether the process used it."""
    headings = ("Rank", "Process", "GPU", "Name", "Capability", "Memory, GiB", "Slice", "Used")
    rows = (
        (
            Cell(str(process.rank)),
            Cell(str(process.pid)),
            Cell(str(device.index)),
            Cell(device.name, code=True),
            Cell(device.capability),
            Cell(f"{device.memory_bytes / GIBIBYTE:,.1f}"),
            Cell(device.slice or NOTHING),
            Cell("yes" if device.used else "no"),
        )
        for run in sources.runs[:1]
        for process in run.processes
        for device in process.devices
    )
    return _section("GPUs as attested by the training", headings, rows, limits.rows, 5)


def _knobs(sources: PageSources, limits: Limits) -> Section:
    """Return the knobs of each run's first process, as it attested them."""
    sides = [(run.run.label, _settings(run.processes[0])) for run in sources.runs if run.processes]
    names = sorted({name for _, settings in sides for name in settings})
    rows = (
        (Cell(name, code=True), *(Cell(side.get(name, NOTHING), code=True) for _, side in sides))
        for name in names
    )
    headings = ("Knob", *(label for label, _ in sides))
    return _section("Knobs as attested by the training", headings, rows, limits.rows)


def _settings(process: HarnessProcess) -> dict[str, str]:
    return {**process.applied, **process.variables}


def _overrides(sources: PageSources, limits: Limits) -> Section:
    headings = ("Run", "Step", "What", "Name", "Before", "After", "Where", "Then")
    rows = (
        _override_row(run.run.label, override) for run in sources.runs for override in run.overrides
    )
    return _section("Knobs that the script overrode", headings, rows, limits.rows, 1)


def _override_row(label: str, override: Override) -> Row:
    then = "the script reverted it" if override.closed else "kept"
    return (
        Cell(label, code=True),
        Cell(str(override.step)),
        Cell(override.kind.value),
        Cell(override.name, code=True),
        Cell(override.before, code=True),
        Cell(override.after, code=True),
        Cell(override.place, code=True),
        Cell("the harness restored it" if override.restored else then),
    )


def _children(sources: PageSources, limits: Limits) -> Section:
    rows = (
        (
            Cell(run.run.label, code=True),
            Cell(child.command, code=True),
            Cell(child.place, code=True),
            Cell(child.reason),
        )
        for run in sources.runs
        for child in run.children
    )
    headings = ("Run", "Started", "Where", "Why it was not instrumented")
    return _section("Uninstrumented subprocesses", headings, rows, limits.rows)


def _notes(sources: PageSources, limits: Limits) -> Section:
    """Return what was left out of the evidence, and what a process could not do."""
    rows: list[Row] = []
    for run in sources.runs:
        notes = (*run.notes, *run.left_out)
        rows += [(Cell(run.run.label, code=True), Cell(note)) for note in notes]
        for process in run.processes:
            rows += [
                (Cell(run.run.label, code=True), Cell(problem)) for problem in process.problems
            ]
        if run.overridden > len(run.overrides):
            more = count(run.overridden, "override")
            rows.append((Cell(run.run.label, code=True), Cell(f"{more} seen, not all listed")))
    return _section("Notes on the runs", ("Run", "Note"), rows, limits.rows)
