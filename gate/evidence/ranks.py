"""Decide which processes trained: each attested, one for each rank, with complete records.

A command has one exit code for all its processes, and that code can mislead in two ways. A launcher
may take the gate's stop for a failure: the command fails, and nothing is wrong. Or a launcher may
ignore the crash of a rank: the command ends with 0, and a rank has failed. So the records that each
process wrote at its end decide.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from gate.errors import EvidenceError
from gate.evidence.harness_files import (
    Attestation,
    Ended,
    HarnessFile,
    ProcessFiles,
    Summary,
    Trainer,
    Untrained,
    read_harness_document,
    read_own_document,
)
from gate.evidence.observations import UnattestedChild, started_without
from gate.evidence.python_processes import (
    GENERAL,
    SeveralTrainedError,
    TrainingSpan,
    python_commands,
    renumbered_lines,
    several_processes,
    shut_out_by,
    shut_out_reason,
)
from gate.evidence.rank_ends import rank_ends
from gate.evidence.run_evidence import MAX_NODE, MAX_RANKS, HarnessProcess
from gate.evidence.step_lines import StepLines, read_step_lines
from gate.system.files.port import Files
from gate.text.phrases import count, rank_words
from gate.text.untrusted_text import plain_text
from gate.training.runs import RunEnd, RunRecord, StoppedBy, rank_on, told_nodes

MAX_SHOWN = 20
# Exceptions of these libraries are launchers' failures. They start workers in which the gate's
# stop, a `SystemExit`, counts as a failure. Launchers that look at an exit code (torchrun,
# accelerate, mpirun, spawn) take the stop for a normal end, so a failure that they report is a
# crash.
LAUNCHERS = ("ray.", "submitit.", "joblib.", "concurrent.futures.", "distributed.")


def read_end(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> RunEnd:
    """Return how the ranks ended, and whether a failed command is excused by the gate's stop.

    A failed command is excused (`by_stop`) if all of this is true: the gate stopped every rank, the
    number of ranks is each rank's world size, and no rank ended with an exception of its own.
    Besides, the launcher must have failed because of the stop alone: its exception contains the
    stop, or it is an exception of a launcher and all ranks reported a normal end.

    Raises `EvidenceError` if a file cannot be read.
    """
    ended = _read(files, out, processes)
    trained = {process for process in processes if HarnessFile.STEPS in process.kinds}
    failed = tuple(_failed(ended, trained))
    ends = rank_ends(files, out, processes, ended)
    summaries = {
        process: read_harness_document(files, out, process.name(HarnessFile.SUMMARY), Summary)
        for process in trained
        if HarnessFile.SUMMARY in process.kinds
    }
    every = bool(trained) and summaries.keys() == trained and _as_many_as_known(summaries)
    by_gate = (summary.stopped_by is StoppedBy.MAX_STEPS for summary in summaries.values())
    stopped = every and all(by_gate)
    others = [end for process, end in ended.items() if process not in trained]
    of_launchers = bool(others) and all(
        name.startswith(LAUNCHERS)
        for name in chain.from_iterable(other_rank.exceptions for other_rank in others)
    )
    several = _several(files, out, trained, partial(_step_lines, files, out))
    held = any(other_rank.stopped for other_rank in others) or trained <= ended.keys()
    return RunEnd(
        stopped=stopped,
        by_stop=stopped and not failed and of_launchers and held,
        failed=failed[:MAX_SHOWN],
        ranks=ends,
        several="" if several is None else several.message,
        several_hint="" if several is None else several.hint or "",
    )


def refuse_crashed(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> None:
    """Raise `EvidenceError` if a rank ended with an exception although its command exited with 0.

    The records of this rank may be complete up to the exception, but the training still failed.
    """
    trained = {process for process in processes if HarnessFile.STEPS in process.kinds}
    failed = tuple(_failed(_read(files, out, processes), trained))
    if failed:
        raise EvidenceError(
            f"{failed[0]}, but the command exited with 0",
            hint="Let the command fail where a rank does: pass on the exit code of each process "
            "that it starts.",
            details=failed[:MAX_SHOWN],
        )


def refuse_leaves(processes: tuple[ProcessFiles, ...], run: RunRecord) -> tuple[ProcessFiles, ...]:
    """Return the processes; raise `EvidenceError` if one left digests instead of a state.

    Only on a cluster may digests replace a state: there a process of the gate digests the state on
    its node (T3). Elsewhere the gate hashes the state itself, and digests from the training would
    be its own claim.
    """
    for process in processes:
        if run.isolation.job is None and HarnessFile.LEAVES in process.kinds:
            raise EvidenceError(
                f"{process.name(HarnessFile.LEAVES)}: a training cannot digest its own state",
                hint="Only the harness may write into its output folder.",
            )
    return processes


def _read(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> dict[ProcessFiles, Ended]:
    return {
        process: read_own_document(files, out, process, HarnessFile.ENDED, Ended)
        for process in processes
        if HarnessFile.ENDED in process.kinds
    }


def _failed(ended: dict[ProcessFiles, Ended], trained: set[ProcessFiles]) -> Iterable[str]:
    for process, end in ended.items():
        if process in trained and end.exceptions:
            yield f"rank {process.rank} failed with {plain_text(end.exceptions[0])}"


def _as_many_as_known(summaries: dict[ProcessFiles, Summary]) -> bool:
    """Return whether the number of ranks is the world size that each rank recorded.

    A rank that crashed early leaves no summary, and is noticed only by this count.
    """
    ranks = {process.rank for process in summaries}
    world_sizes = {summary.environment.get("world_size", "") for summary in summaries.values()}
    return len(ranks) == len(summaries) and world_sizes <= {str(len(ranks)), ""}


LIMITS = "docs/limits.md lists what the harness sees."
NAMES: dict[Trainer, str] = {
    "jax": "JAX",
    "keras": "Keras",
    "lightgbm": "LightGBM",
    "numpy": "NumPy",
    "scipy.optimize": "SciPy",
    "sklearn": "scikit-learn",
    "tensorflow": "TensorFlow",
    "xgboost": "XGBoost",
}
# These libraries train without torch. The others in `NAMES` are often imported for other purposes.
OF_THEIR_OWN: dict[Trainer, str] = {
    "keras": "Keras has optimizers of its own, also on torch",
    "scipy.optimize": "SciPy's optimizers (BoTorch fits by them) take no torch step",
    "lightgbm": "LightGBM trains without torch",
    "xgboost": "XGBoost trains without torch",
}


def read_untrained(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Untrained, ...]:
    """Return the record of each process that ended without an optimizer step."""
    return tuple(
        read_own_document(files, out, process, HarnessFile.UNTRAINED, Untrained)
        for process in processes
        if HarnessFile.UNTRAINED in process.kinds
    )


def not_loaded(
    run: RunRecord,
    children: tuple[UnattestedChild, ...],
    untrained: tuple[Untrained, ...],
    said: tuple[str, ...],
) -> EvidenceError:
    """Return the error for a run in which no process attested its settings.

    `said` is the end of the training's output.
    """
    if children or not untrained or shut_out_reason(run.argv):
        return EvidenceError(
            "no process of the training loaded the harness, so nothing was observed",
            hint=shut_out_by(run.argv, children),
            details=said,
        )
    if not any(python_commands(run.argv)):
        # a Makefile or a shell script, which may have started further Python without the harness
        return EvidenceError(
            "no process that loaded the harness imported torch",
            hint=f"{shlex.join(run.argv)[:MAX_COMMAND]} may start the training without the "
            f"harness. {GENERAL}",
            details=said,
        )
    names = list(_imported(untrained))
    # NumPy says little, because nearly every library imports it
    shown = [name for name in names if name != "numpy"] or names
    also = f" It imported {' and '.join(NAMES[name] for name in shown)}." if shown else ""
    return EvidenceError(
        "the script never imported torch",
        hint=f"The gate judges PyTorch trainings only.{also} If the script should use torch, "
        "check what train.command starts.",
        details=said,
    )


def no_step(
    children: tuple[UnattestedChild, ...], untrained: tuple[Untrained, ...], said: tuple[str, ...]
) -> EvidenceError:
    """Return the error for a run in which no process took an optimizer step.

    The most specific explanation comes first: a process without the harness, then weights that are
    updated by hand, then a library with its own optimizers.
    """
    if children:
        return EvidenceError(
            "no step was recorded, and the training started Python without the harness",
            hint=f"{started_without(children)}. {GENERAL}",
            details=said,
        )
    stopped = [ended.backwards for ended in untrained if ended.stopped]
    if stopped:
        return EvidenceError(
            f"the script never called an optimizer in {max(stopped):,} backward passes",
            hint="It updates its weights by hand, which the harness cannot see: update them with "
            "a torch optimizer.",
            details=said,
        )
    others = [OF_THEIR_OWN[name] for name in _imported(untrained) if name in OF_THEIR_OWN]
    of_others = f" {'; '.join(others)}. {LIMITS}" if others else ""
    return EvidenceError(
        NO_STEP,
        hint="The smoke training must reach the step() of a torch optimizer; weights that the "
        "script updates itself cannot be judged. The details show what the script printed "
        f"last.{of_others}",
        details=said,
    )


def _imported(untrained: tuple[Untrained, ...]) -> Iterator[Trainer]:
    yield from dict.fromkeys(name for ended in untrained for name in ended.imported)


MAX_SHOWN_PROBLEMS = 40
MAX_COMMAND = 200  # characters
NO_STEP = "the script exited with 0 before any optimizer step"
MAX_DIGITS = 7
# the only kinds of files that a process without torch may leave
WITHOUT_TORCH = frozenset(
    (HarnessFile.CHILDREN, HarnessFile.EXITS, HarnessFile.UNTRAINED, HarnessFile.ENDED)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRank:
    """The record of one rank: its optimizer steps in order, and the summary of its end."""

    files: ProcessFiles
    lines: StepLines
    summary: Summary

    @property
    def last_step(self) -> int:
        """The number of the last optimizer step."""
        return int(self.lines.column("step").max())


def read_attestations(
    files: Files,
    out: Path,
    processes: tuple[ProcessFiles, ...],
    run: RunRecord,
    children: tuple[UnattestedChild, ...],
    said: tuple[str, ...] = (),
) -> tuple[HarnessProcess, ...]:
    """Return the attestation of each process.

    `children` are processes that are known to have started without the harness. `said` is the end
    of the training's output, which an error shows if nothing else is known.

    Raises `EvidenceError` in these cases: no process attested, a process that left other files did
    not, or a process attested only after CUDA had started. In a strict run any reported problem is
    an error too, because the run was then less strict than it should have been.
    """
    attestations = tuple(
        read_own_document(files, out, process, HarnessFile.PROCESS, Attestation)
        for process in processes
        if HarnessFile.PROCESS in process.kinds
    )
    if not attestations:
        raise not_loaded(run, children, read_untrained(files, out, processes), said)
    for process in processes:
        _check_attested(process)
    # This is an error in every mode. Torch reads some variables only when CUDA starts (cuBLAS
    # workspace, launch order), so it read values that the gate had not set.
    late = [
        f"process {attestation.pid}, rank {attestation.rank}"
        for attestation in attestations
        if attestation.late
    ]
    refuse_problems("CUDA was initialized before the harness could set anything", late)
    problems = [
        f"process {process.pid}, rank {process.rank}: {problem}"
        for process in attestations
        for problem in process.problems
    ]
    if run.mode.is_strict:
        refuse_problems("the deterministic settings did not take effect", problems)
    return tuple(_process(attestation) for attestation in attestations)


def _check_attested(process: ProcessFiles) -> None:
    """Refuse a process that left evidence without attesting its settings.

    A process that never imported torch, such as a launcher, has no settings to attest. It may still
    report its end and the processes that it started.
    """
    if HarnessFile.PROCESS in process.kinds or WITHOUT_TORCH.issuperset(process.kinds):
        return
    did = "took optimizer steps" if HarnessFile.STEPS in process.kinds else "wrote evidence"
    raise EvidenceError(
        f"process {process.pid}, rank {process.rank} {did} without attesting its settings",
        hint="Let every training process start with the harness; do not fork after torch was "
        "imported.",
    )


def _process(attestation: Attestation) -> HarnessProcess:
    return HarnessProcess(
        pid=attestation.pid,
        rank=attestation.rank,
        applied=attestation.applied,
        before=attestation.before,
        device=attestation.device,
        devices=attestation.devices,
        versions=attestation.versions,
        variables=attestation.variables,
        node=plain_text(attestation.node)[:MAX_NODE],
        problems=attestation.problems,
    )


def refuse_problems(what: str, problems: list[str]) -> None:
    """Raise `EvidenceError` with the problems listed, if there are any."""
    if problems:
        raise EvidenceError(
            f"{what} ({count(len(problems), 'problem')})",
            hint="Each line gives its cause; a strict run must have none.",
            details=tuple(map(plain_text, problems[:MAX_SHOWN_PROBLEMS])),
        )


def read_ranks(
    files: Files,
    out: Path,
    processes: tuple[ProcessFiles, ...],
    children: tuple[UnattestedChild, ...],
    attested: tuple[HarnessProcess, ...],
    said: tuple[str, ...] = (),
) -> tuple[TrainedRank, ...]:
    """Return the ranks that took optimizer steps, rank 0 first.

    `children` and `said`, the end of the output, explain an error if no process took a step.

    Raises `EvidenceError` if no process took a step, if rank 0 or another attested rank took none,
    if two processes of one rank did, if ranks took different numbers of steps, or if a record is
    incomplete.
    """
    steps = {
        process: _step_lines(files, out, process)
        for process in processes
        if HarnessFile.STEPS in process.kinds
    }
    stepping = [process for process, lines in steps.items() if lines]
    if not stepping:
        raise no_step(children, read_untrained(files, out, processes), said)
    _check_processes(files, out, {process: steps[process] for process in stepping})
    ranks = tuple(
        _trained(process, steps[process], _summary(files, out, process)) for process in stepping
    )
    for rank in ranks:
        _check_steps(rank)
    nodes = told_nodes({process.rank: process.node for process in attested})
    _check_same_length(ranks, nodes)
    _check_world(ranks, nodes)
    _refuse_idle_ranks(attested, ranks)
    return ranks


def _check_processes(files: Files, out: Path, steps: dict[ProcessFiles, StepLines]) -> None:
    several = _several(files, out, steps, steps.__getitem__)
    if several is not None:
        raise several
    # losses and step times are taken from rank 0, so a report needs it
    if next(iter(steps)).rank != 0:
        raise EvidenceError(
            "rank 0 took no optimizer step, other ranks did",
            hint="Ranks are read from the variable RANK and start at 0.",
        )


def _step_lines(files: Files, out: Path, process: ProcessFiles) -> StepLines:
    return read_step_lines(files, out, process.name(HarnessFile.STEPS))


def _several(
    files: Files,
    out: Path,
    trained: Iterable[ProcessFiles],
    lines_of: Callable[[ProcessFiles], StepLines],
) -> SeveralTrainedError | None:
    """Return the error for several processes that trained as one rank; None if there are none.

    Such processes may update weights in shared memory at once. The result then depends on their
    speed. `lines_of` is asked for the steps of such processes alone.
    """
    processes = Counter(process.rank for process in trained)
    rank = next((rank for rank, number in sorted(processes.items()) if number > 1), None)
    if rank is None:
        return None
    steps = {
        process: lines_of(process)
        for process in sorted(trained, key=lambda process: process.pid)
        if process.rank == rank
    }
    spans = [_span(files, out, process, lines) for process, lines in steps.items() if lines]
    return several_processes(rank, spans) if len(spans) > 1 else None


def _span(files: Files, out: Path, process: ProcessFiles, lines: StepLines) -> TrainingSpan:
    """Return when a process took its steps; without times if it did not record them."""
    if HarnessFile.SUMMARY not in process.kinds:
        return TrainingSpan(pid=process.pid)
    begun = _summary_document(files, out, process).first_step_clock_seconds
    if begun is None:
        return TrainingSpan(pid=process.pid)
    took = sum((line.seconds or 0.0) + line.harness_seconds for line in lines[1:])
    return TrainingSpan(pid=process.pid, first=begun, last=begun + took)


def _trained(process: ProcessFiles, lines: StepLines, summary: Summary) -> TrainedRank:
    name, numbers = process.name(HarnessFile.SUMMARY), summary.optimizer_numbers
    # With one optimizer the lines are already in order. Sorting them would turn every line into a
    # record, which is slow for a hundred thousand lines.
    if numbers and (numbers != (0,) or lines.optimizers != [0]):
        lines = StepLines.of(renumbered_lines(tuple(lines), numbers, name))
    return TrainedRank(files=process, lines=lines, summary=summary)


def _summary(files: Files, out: Path, process: ProcessFiles) -> Summary:
    # The summary is written last. Without it, the other files may be incomplete. In a run on a
    # cluster the states of other ranks stay on their nodes, and digests arrive instead.
    state = HarnessFile.LEAVES if HarnessFile.LEAVES in process.kinds else HarnessFile.STATE
    for kind in (state, HarnessFile.SUMMARY):
        if kind not in process.kinds:
            raise EvidenceError(
                f"{process.name(kind)} is missing: the training process did not exit cleanly",
                hint="os._exit, a signal, or a full disk at the end prevents the final record.",
            )
    return _summary_document(files, out, process)


def _summary_document(files: Files, out: Path, process: ProcessFiles) -> Summary:
    return read_harness_document(files, out, process.name(HarnessFile.SUMMARY), Summary)


def _check_steps(rank: TrainedRank) -> None:
    """Check that steps 1 to N have no gap, and that each optimizer's steps are in order."""
    name = rank.files.name(HarnessFile.STEPS)
    steps, optimizers = rank.lines.column("step"), rank.lines.column("optimizer")
    # Group the lines by optimizer. The sort is stable, so each group keeps the order of the file.
    order = np.argsort(optimizers, kind="stable")
    same = np.diff(optimizers[order]) == 0
    back = order[1:][same & (np.diff(steps[order]) <= 0)]
    if len(back):
        first = int(back.min())
        raise EvidenceError(
            f"{name}: step {steps[first]} of optimizer {optimizers[first]} is repeated or out of "
            "order",
            hint="Only the harness may write into its output folder.",
        )
    numbers = len(np.unique(steps))
    # if N different numbers have N as their maximum, there is no gap
    if numbers != rank.last_step or rank.summary.steps != rank.last_step:
        raise EvidenceError(
            f"{name}: {numbers} steps up to step {rank.last_step}, and the summary counts "
            f"{rank.summary.steps}",
            hint="A step was lost or added; run again, and look at the script's output.",
        )


def _refuse_idle_ranks(
    attested: tuple[HarnessProcess, ...], ranks: tuple[TrainedRank, ...]
) -> None:
    # a rank without a step gave nothing to compare
    trained = {rank.files.rank for rank in ranks}
    for process in attested:
        if process.rank not in trained:
            raise EvidenceError(
                f"rank {process.rank} took no optimizer step, rank 0 did",
                hint="All ranks must take the same optimizer steps; check whether one ended early.",
            )


def _check_same_length(ranks: tuple[TrainedRank, ...], nodes: Mapping[int, str]) -> None:
    first = ranks[0]
    for rank in ranks:
        if rank.last_step != first.last_step:
            who, other = (
                rank_on(ended.files.rank, nodes.get(ended.files.rank, ""))
                for ended in (rank, first)
            )
            raise EvidenceError(
                f"{who} took {rank.last_step} steps, {other} took {first.last_step}",
                hint="All ranks must take the same optimizer steps: give each rank a share of the "
                "data of the same size (DistributedSampler does).",
            )


def _check_world(ranks: tuple[TrainedRank, ...], nodes: Mapping[int, str]) -> None:
    """Refuse ranks that disagree about the number of ranks, and ranks that left no step."""
    sizes = {rank.files.rank: rank.summary.environment.get("world_size", "") for rank in ranks}
    first, size = next(iter(sizes.items()))
    for number, other in sizes.items():
        if other != size and other and size:
            raise EvidenceError(
                f"{rank_on(number, nodes.get(number, ''))} is one of {plain_text(other)[:20]} "
                f"ranks, {rank_on(first, nodes.get(first, ''))} one of {plain_text(size)[:20]}",
                hint="Start all ranks with one world size: check --nproc-per-node of each node and "
                "WORLD_SIZE.",
            )
    known = int(size) if size.isascii() and size.isdigit() and len(size) <= MAX_DIGITS else 0
    missing = [number for number in range(min(known, MAX_RANKS)) if number not in sizes]
    # WORLD_SIZE alone proves nothing: a script may run with it and never join a process group.
    grouped = len(sizes) > 1 or bool(ranks[0].summary.facts.get("process_group"))
    if missing and grouped:
        raise EvidenceError(
            f"{rank_words(missing)} of {known} left no step, the others took {ranks[0].last_step}",
            hint="Every rank must train under the harness: check whether one was never started, "
            "or was started in an environment without the gate's variables.",
        )
