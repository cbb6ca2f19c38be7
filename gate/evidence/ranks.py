"""Which processes trained: attested, one a rank, with whole records from step 1 on.

The exit code of a command is one number for all its processes. A launcher may take the gate's stop
for a failure (the command fails, and nothing is wrong), or pass over the crash of a rank (the
command ends with 0, and a rank has failed). What each process told at its end decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
    TrainingSpan,
    in_order,
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
# these start a worker in which the stop, a `SystemExit`, is a failure like any other; for those
# that ask for an exit code (torchrun, accelerate, mpirun, spawn) it is the end of a run that went
# well, so what they report is a crash
LAUNCHERS = ("ray.", "submitit.", "joblib.", "concurrent.futures.", "distributed.")


def read_end(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> RunEnd:
    """Whether the gate had ended every rank, and whether a command that failed did so for that.

    That is so where every rank was stopped, as many as each of them knew of, none ended
    with an exception of its own, and whoever started them failed for that stop alone: its exception
    holds the stop, or it is a launcher's and all ranks told a sound end.

    Raises `EvidenceError` for a file that cannot be read.
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
    held = any(other_rank.stopped for other_rank in others) or trained <= ended.keys()
    return RunEnd(
        stopped=stopped,
        by_stop=stopped and not failed and of_launchers and held,
        failed=failed[:MAX_SHOWN],
        ranks=ends,
    )


def refuse_crashed(files: Files, out: Path, processes: tuple[ProcessFiles, ...]) -> None:
    """Raise `EvidenceError` where a rank ended with an exception, whatever its command made of it.

    What the rank had recorded by then may be whole, and is all the same no training that went well.
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
    """The same; `EvidenceError` for digests in the place of a state, but of a run on a cluster."""
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
    """Whether there are as many ranks as each was told: one that crashed early is missed."""
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
# beside torch these train by themselves; the rest are imported by libraries for other ends
OF_THEIR_OWN: dict[Trainer, str] = {
    "keras": "Keras has optimizers of its own, also on torch",
    "scipy.optimize": "SciPy's optimizers (BoTorch fits by them) take no torch step",
    "lightgbm": "LightGBM trains without torch",
    "xgboost": "XGBoost trains without torch",
}


def read_untrained(
    files: Files, out: Path, processes: tuple[ProcessFiles, ...]
) -> tuple[Untrained, ...]:
    """What each process said that ended without a step."""
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
    """The fault that no process attested its settings; `said` is the end of the output."""
    if children or not untrained or shut_out_reason(run.argv):
        return EvidenceError(
            "no process of the training loaded the harness, so nothing was observed",
            hint=shut_out_by(run.argv, children),
            details=said,
        )
    names = list(_imported(untrained))
    # nearly everything imports NumPy
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
    """The fault that no process took an optimizer step."""
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
NO_STEP = "the script exited with 0 before any optimizer step"
MAX_DIGITS = 7
# all that a process without torch may leave
WITHOUT_TORCH = frozenset(
    (HarnessFile.CHILDREN, HarnessFile.EXITS, HarnessFile.UNTRAINED, HarnessFile.ENDED)
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRank:
    """One rank's record: its optimizer steps in order, and how it ended."""

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
    """What each process attested; `children` are known to have been started without the harness.

    `said` is the end of what the training printed, shown where that is all there is.
    Raises `EvidenceError` when there is none at all, when a process that left anything did not
    attest or did so after CUDA had started, and when a strict run reports a problem: then it was
    not the run that it should have been.
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
    # in every mode: what torch reads when CUDA starts (cuBLAS workspace, launch order) was not ours
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
    """Refuse what a process left without saying under which settings it ran.

    One that never imported torch, such as a launcher, may still tell of that and of its children.
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
    """The ranks that took optimizer steps, rank 0 first; `children` explain where none did.

    `said` is the end of what the training printed.

    Raises `EvidenceError` when none did, when one did without attesting, when one of the `attested`
    did not, when two processes of a rank did, when rank 0 did not, or when a record is not whole.
    """
    steps = {
        process: read_step_lines(files, out, process.name(HarnessFile.STEPS))
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
    for rank, processes in Counter(process.rank for process in steps).items():
        # weights in shared memory that several processes
        # update at once: results depend on their speed
        if processes > 1:
            spans = [
                _span(files, out, process, lines)
                for process, lines in steps.items()
                if process.rank == rank
            ]
            raise several_processes(rank, spans)
    # rank 0 has losses and times: without it there is nothing to draw or to price
    if next(iter(steps)).rank != 0:
        raise EvidenceError(
            "rank 0 took no optimizer step, other ranks did",
            hint="Ranks are read from the variable RANK and start at 0.",
        )


def _span(files: Files, out: Path, process: ProcessFiles, lines: StepLines) -> TrainingSpan:
    """When a process made its steps, as far as it said that."""
    if HarnessFile.SUMMARY not in process.kinds:
        return TrainingSpan(pid=process.pid)
    begun = _summary_document(files, out, process).first_step_clock_seconds
    if begun is None:
        return TrainingSpan(pid=process.pid)
    took = sum((line.seconds or 0.0) + line.harness_seconds for line in lines[1:])
    return TrainingSpan(pid=process.pid, first=begun, last=begun + took)


def _trained(process: ProcessFiles, lines: StepLines, summary: Summary) -> TrainedRank:
    name, numbers = process.name(HarnessFile.SUMMARY), summary.optimizer_numbers
    # one optimizer has one order: a hundred thousand lines need not become records for it
    if numbers and (numbers != (0,) or lines.optimizers != [0]):
        lines = StepLines.of(in_order(tuple(lines), numbers, name))
    return TrainedRank(files=process, lines=lines, summary=summary)


def _summary(files: Files, out: Path, process: ProcessFiles) -> Summary:
    # the summary is written last: where it is missing, the rest may be cut short
    # of a run on a cluster the states of other ranks stay where they are, and their digests come
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
    """Steps 1 to N without a gap, each optimizer once a step and in order."""
    name = rank.files.name(HarnessFile.STEPS)
    steps, optimizers = rank.lines.column("step"), rank.lines.column("optimizer")
    # each optimizer's lines beside each other, in the order in which they were written
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
    # as many different numbers as the highest one: so there is no gap
    if numbers != rank.last_step or rank.summary.steps != rank.last_step:
        raise EvidenceError(
            f"{name}: {numbers} steps up to step {rank.last_step}, and the summary counts "
            f"{rank.summary.steps}",
            hint="A step was lost or added; run again, and look at the script's output.",
        )


def _refuse_idle_ranks(
    attested: tuple[HarnessProcess, ...], ranks: tuple[TrainedRank, ...]
) -> None:
    # of a rank that took no step nothing was compared
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
    """Refuse ranks that do not agree how many there are, and a rank that left nothing."""
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
    # a variable that nobody joined a group by says nothing
    grouped = len(sizes) > 1 or bool(ranks[0].summary.facts.get("process_group"))
    if missing and grouped:
        raise EvidenceError(
            f"{rank_words(missing)} of {known} left no step, the others took {ranks[0].last_step}",
            hint="Every rank must train under the harness: check whether one was never started, "
            "or was started in an environment without the gate's variables.",
        )
