"""Turn the files that a run left on disk into the record that it is judged by (`RunEvidence`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from gate.errors import EvidenceError, MissingOutputError, OutputError
from gate.evidence.capture import SAVED_COPY
from gate.evidence.carried import resumability
from gate.evidence.configuration import plain_values
from gate.evidence.harness_files import (
    BoundaryFile,
    HarnessFile,
    MetricLine,
    ProcessFiles,
    Summary,
    find_processes,
    read_harness_lines,
    read_own_document,
)
from gate.evidence.harness_logs import live_threads, read_children, read_sources
from gate.evidence.logged_values import ReadMetrics
from gate.evidence.metric_series import (
    file_metrics,
    harness_series,
    output_metrics,
    pattern_of_a_printed_number,
    printed_numbers,
    step_series,
)
from gate.evidence.observations import Boundary, Override, Resumability
from gate.evidence.operator_logs import read_operator_audit, read_overrides
from gate.evidence.rank_environments import environment_of, facts_of
from gate.evidence.rank_records import rank_records, replica_drift
from gate.evidence.ranks import (
    TrainedRank,
    read_attestations,
    read_ranks,
    refuse_crashed,
    refuse_leaves,
    refuse_problems,
)
from gate.evidence.run_evidence import (
    MAX_NOT_FINITE,
    CheckpointManifest,
    HarnessProcess,
    MetricSeries,
    MetricSource,
    NotFiniteTensor,
    RunEvidence,
    UnusedSetting,
)
from gate.evidence.saved_state import (
    ReadState,
    captured_name,
    captured_state,
    left_state,
    manifest,
    parameter_leaves,
    saved_checkpoint,
)
from gate.evidence.steps import recorder_cost, step_digests, step_given, step_memory, step_timings
from gate.evidence.tensorboard import tensorboard_series
from gate.evidence.trackio_runs import trackio_metrics
from gate.evidence.wandb_runs import wandb_metrics
from gate.settings.gate_settings import TrainSettings
from gate.system.files.port import Files
from gate.text.untrusted_text import last_lines, plain_text
from gate.training.runs import RunMode, RunRecord, StoppedBy

NOTHING_TAKEN: Mapping[str, Path] = MappingProxyType({})


def collect_run(  # noqa: PLR0913 - each is another place that a run leaves something in
    files: Files,
    run: RunRecord,
    out: Path,
    workdir_tree: Path,
    output: bytes,
    train: TrainSettings,
    *,
    taken: Mapping[str, Path] = NOTHING_TAKEN,
) -> RunEvidence:
    """Read everything that a run left, and return it as one record.

    `out` is the harness's output folder, `workdir_tree` the training's working directory, and
    `output` what it printed. `taken` maps names of harness files to the copies that are read
    instead. The entry `SAVED_COPY` is the copy of the folder that contains train.checkpoint.

    The captured state and the script's own checkpoint become one manifest with one root. Files of a
    partial run are not required, since it may end before they are written.

    Raises `EvidenceError` if something is missing, malformed or contradictory.
    """
    process_files = refuse_leaves(find_processes(files, out), run)
    children, weaker = read_children(files, out, process_files)
    said = last_lines(output)
    processes = read_attestations(files, out, process_files, run, children, said)
    ranks = read_ranks(files, out, process_files, children, processes, said)
    _refuse_crashed(files, out, process_files, run)
    problems = _problems(run, ranks)
    overrides = read_overrides(files, out, process_files)
    # a partial run does not reach its final save; the captured state has the same weights
    saved = train.model_copy(update={"checkpoint": None}) if run.partial else train
    try:
        states = _states(files, out, ranks, taken, workdir_tree, saved)
        script = _script_metrics(files, run, workdir_tree, output, train)
    except MissingOutputError as error:
        # the gate may have stopped the script before it wrote this output
        raise _told_of_the_stop(error, ranks, train) from error
    series = (*_harness_metrics(files, out, ranks[0]), *script.series)
    return RunEvidence(
        run=run,
        metrics=_metrics(series, output, required=not run.partial),
        steps=step_digests(ranks),
        given=step_given(ranks[0]),
        timings=step_timings(ranks[0]),
        checkpoint=(kept := manifest(states)),
        not_finite=_not_finite(states, constant := _constants(ranks, states)),
        constant_infinities=constant,
        environment=environment_of(_summaries(ranks)),
        rank_facts=facts_of(_summaries(ranks)),
        processes=processes,
        peak_memory_bytes=max(rank.summary.peak_memory_bytes for rank in ranks),
        device_memory_bytes=max(rank.summary.device_memory_bytes for rank in ranks),
        memory=step_memory(ranks[0]),
        recorder=recorder_cost(ranks),
        first_step_seconds=ranks[0].summary.first_step_seconds,
        left_out=_left_out(ranks),
        resumability=_resumability(train, ranks, states, overrides),
        notes=(*problems, *(note for state in states for note in state.notes)),
        operator_audit=read_operator_audit(files, out, process_files),
        overrides=overrides,
        sources=read_sources(files, out, process_files),
        live_threads=live_threads(ranks[0]),
        children=children,
        unused_settings=() if run.partial else tuple(_unused(script.series, states, train)),
        passed_over=script.passed_over,
        weaker_children=weaker,
        parameter_names=_parameter_names(ranks, states),
        overridden=sum(rank.summary.overridden for rank in ranks),
        boundaries=_boundaries(files, out, ranks),
    ).model_copy(update=_start(ranks[0].summary) | _by_rank(files, out, ranks, processes, kept))


def _by_rank(
    files: Files,
    out: Path,
    ranks: tuple[TrainedRank, ...],
    processes: tuple[HarnessProcess, ...],
    checkpoint: CheckpointManifest,
) -> dict[str, object]:
    """Return what each rank recorded, where replicas differ, and the configuration values.

    Rank 0 has no metrics here, because its metrics are those of the run.
    """
    others = {rank.files.rank: _harness_metrics(files, out, rank) for rank in ranks[1:]}
    return {
        "ranks": rank_records(ranks, processes, others),
        "replica_drift": replica_drift(ranks, checkpoint),
        "configuration": plain_values(ranks[0].summary.configuration),
    }


def _refuse_crashed(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...], run: RunRecord
) -> None:
    # an interrupted run gets SIGTERM, whose handler may raise an exception for a good reason
    if run.mode is not RunMode.INTERRUPTED:
        refuse_crashed(files, out, processes)


def _boundaries(files: Files, out: Path, ranks: tuple[TrainedRank, ...]) -> tuple[Boundary, ...]:
    """Return the state of each rank where it was interrupted, or where it was resumed."""
    boundaries = (
        read_own_document(files, out, rank.files, HarnessFile.BOUNDARY, BoundaryFile)
        for rank in ranks
        if HarnessFile.BOUNDARY in rank.files.kinds
    )
    return tuple(
        Boundary.model_validate(boundary.model_dump(exclude={"pid"})) for boundary in boundaries
    )


def _start(summary: Summary) -> dict[str, object]:
    """Return the time until the run had torch, and the clock at the end of its first step."""
    return {
        "first_step_clock_seconds": summary.first_step_clock_seconds,
        "ready_seconds": summary.ready_seconds,
    }


def _summaries(ranks: tuple[TrainedRank, ...]) -> dict[int, Summary]:
    return {rank.files.rank: rank.summary for rank in ranks}


def _problems(run: RunRecord, ranks: tuple[TrainedRank, ...]) -> list[str]:
    """Return what the harness could not observe; in a strict run that is an error."""
    problems = [
        f"rank {rank.files.rank}: {plain_text(problem)}"
        for rank in ranks
        for problem in rank.summary.problems
    ]
    # a default run mainly measures the cost, so an incomplete observation is only noted
    if run.mode.is_strict:
        refuse_problems("the harness could not observe everything", problems)
    return problems


def _left_out(ranks: tuple[TrainedRank, ...]) -> tuple[str, ...]:
    """Return the sentences about what the harness did not record; equal ones of all ranks once."""
    sentences = (plain_text(sentence) for rank in ranks for sentence in rank.summary.left_out)
    return tuple(dict.fromkeys(sentences))


def _resumability(
    train: TrainSettings,
    ranks: tuple[TrainedRank, ...],
    states: tuple[ReadState, ...],
    overrides: tuple[Override, ...],
) -> Resumability | None:
    """Return what the script's own checkpoint lacks for a resume, or None if none was read."""
    # the first state is the one captured on rank 0, the last one the script's own
    contents = states[-1].contents
    if train.checkpoint is None or contents is None:
        return None
    carried = {rank.files.rank: rank.summary.carried for rank in ranks}
    captured = [leaf.path for leaf in states[0].leaves]
    return resumability(contents, train.checkpoint, carried, captured, overrides)


def _states(
    files: Files,
    out: Path,
    ranks: tuple[TrainedRank, ...],
    taken: Mapping[str, Path],
    tree: Path,
    train: TrainSettings,
) -> tuple[ReadState, ...]:
    """Return the state that the harness captured on each rank, and the script's own."""
    own = saved_checkpoint(files, taken.get(SAVED_COPY, tree), train)
    return (*_captured(files, out, ranks, taken), own)


def _captured(
    files: Files, out: Path, ranks: tuple[TrainedRank, ...], taken: Mapping[str, Path]
) -> Iterator[ReadState]:
    for rank in ranks:
        name = rank.files.name(HarnessFile.STATE)
        if HarnessFile.LEAVES in rank.files.kinds:
            yield left_state(files, out, rank.files)
            continue
        yield captured_state(files, taken.get(name, out / name), rank.files.rank)


def _parameter_names(
    ranks: tuple[TrainedRank, ...], states: tuple[ReadState, ...]
) -> dict[str, str]:
    names = {rank.files.rank: rank.summary.parameter_names for rank in ranks}
    return parameter_leaves(names, states)


def _constants(ranks: tuple[TrainedRank, ...], states: tuple[ReadState, ...]) -> tuple[str, ...]:
    """Return the names of leaves whose infinities were there before the first forward pass.

    The harness names them only if all their bits are unchanged. A leaf with the same digest in the
    script's own checkpoint is a copy of such a leaf, and counts too. A leaf with NaN never counts.
    """
    constants = {
        captured_name(rank.files.rank, name)
        for rank in ranks
        for name in rank.summary.constant_infinities
    }
    digests = {leaf.path: leaf.digest for state in states for leaf in state.leaves}
    same = {digests[name] for name in constants if name in digests}
    odd = (leaf for state in states for leaf in state.not_finite if not leaf.nan)
    names = (leaf.path for leaf in odd if leaf.path in constants or digests.get(leaf.path) in same)
    return tuple(sorted(names))[:MAX_NOT_FINITE]


def _not_finite(
    states: tuple[ReadState, ...], constant: tuple[str, ...]
) -> tuple[NotFiniteTensor, ...]:
    """Return the first leaves with NaN or infinity.

    One is enough to refuse the run; more of them help to find the cause.
    """
    tensors = [
        NotFiniteTensor(name=leaf.path, nan=leaf.nan, infinite=leaf.infinite)
        for state in states
        for leaf in state.not_finite
        if leaf.path not in constant
    ]
    return tuple(tensors[:MAX_NOT_FINITE])


def _unused(
    script: tuple[MetricSeries, ...], states: tuple[ReadState, ...], train: TrainSettings
) -> Iterator[UnusedSetting]:
    """Yield the settings that name something to compare or to exclude, and match nothing."""
    from_file = any(series.source is MetricSource.FILE for series in script)
    if train.metrics.file is not None and not from_file:
        yield UnusedSetting(key="train.metrics.file", value=train.metrics.file)
    for rule in train.checkpoint_exclude:
        if not any(rule.pattern in state.excluded for state in states):
            yield UnusedSetting(key="train.checkpoint_exclude", value=rule.pattern)


def _harness_metrics(files: Files, out: Path, rank: TrainedRank) -> tuple[MetricSeries, ...]:
    logged: tuple[MetricLine, ...] = ()
    if HarnessFile.METRICS in rank.files.kinds:
        logged = read_harness_lines(files, out, rank.files.name(HarnessFile.METRICS), MetricLine)
    return (*harness_series(rank.lines, logged), *step_series(rank.lines))


def _script_metrics(
    files: Files, run: RunRecord, workdir_tree: Path, output: bytes, train: TrainSettings
) -> ReadMetrics:
    """Return the metrics that the script wrote and printed, from the sources in the settings."""
    read: list[ReadMetrics] = []
    metrics, required = train.metrics, not run.partial
    path = workdir_tree / (metrics.file or "")
    if metrics.file is not None and (required or files.exists(path)):
        read.append(file_metrics(files, path, metrics.file))
    folder = workdir_tree / (metrics.tensorboard or "")
    if metrics.tensorboard is not None and (required or files.exists(folder)):
        scalars = tensorboard_series(
            files, folder, metrics.tensorboard, metrics.tensorboard_tags, required=required
        )
        read.append(ReadMetrics(series=scalars))
    folder = workdir_tree / (metrics.wandb or "")
    if metrics.wandb is not None and (required or files.exists(folder)):
        read.append(
            wandb_metrics(files, folder, metrics.wandb, metrics.wandb_keys, required=required)
        )
    folder = workdir_tree / (metrics.trackio or "")
    if metrics.trackio is not None and (required or files.exists(folder)):
        read.append(
            trackio_metrics(files, folder, metrics.trackio, metrics.trackio_keys, required=required)
        )
    if metrics.stdout_pattern is not None:
        if run.output_bytes > train.output_limit_bytes:
            raise EvidenceError(
                f"the script printed {run.output_bytes:,} bytes, of which "
                f"{train.output_limit_bytes:,} were kept: metrics in the rest are lost",
                hint="Raise train.output_limit_bytes, print less, or write a metrics file.",
            )
        read.append(output_metrics(metrics.stdout_pattern, output, required=required))
    return ReadMetrics(
        series=tuple(series for source in read for series in source.series),
        passed_over=tuple(passed for source in read for passed in source.passed_over)
        # a user who names a source of metrics has chosen what to compare, and needs no further hint
        if read
        else printed_numbers(output),
    )


def _told_of_the_stop(
    error: MissingOutputError, ranks: tuple[TrainedRank, ...], train: TrainSettings
) -> MissingOutputError:
    """Return the error with the explanation that the gate stopped the script too early.

    The gate stops a script inside its last step, so anything that is written after that step is
    missing.
    """
    # a script that ended by itself had its chance to write, so the stop explains nothing
    if any(rank.summary.stopped_by is not StoppedBy.MAX_STEPS for rank in ranks):
        return error
    return MissingOutputError(
        error.message,
        hint=f"The gate stopped the script in step {train.max_steps}, before anything that comes "
        "after that step. If the script writes this later, raise train.max_steps: above its own "
        f"number of steps, the script reaches its end. {error.hint}",
        details=error.details,
    )


def _metrics(
    series: tuple[MetricSeries, ...], output: bytes, *, required: bool
) -> tuple[MetricSeries, ...]:
    """Return all series sorted by name.

    Raises `EvidenceError` if metrics are `required` and there are none, because nothing could be
    compared then (T4). Its hint has a pattern for a number that is in the `output`.
    """
    if required and not series:
        pattern = pattern_of_a_printed_number(output)
        raise OutputError(
            "the run has no metric: no loss was recorded and none was logged",
            hint="Call backward() on a scalar loss between the steps, or name a source of metrics: "
            "train.metrics.file, or train.metrics.stdout_pattern for printed numbers"
            + (f". For what this script prints: stdout_pattern: '{pattern}'" if pattern else "."),
        )
    # The order in which the gate reads sources must not show in a document, so sort by name.
    return tuple(sorted(series, key=lambda item: item.name))
