"""Which processes trained: attested, one a rank, with whole records from step 1 on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gate.errors import EvidenceError
from gate.evidence.children import UnattestedChild
from gate.evidence.harness_files import Attestation, StepLine, Summary
from gate.evidence.one_a_rank import TrainingSpan, several_processes
from gate.evidence.optimizer_order import in_order
from gate.evidence.processes_harness_files import (
    HarnessFile,
    ProcessFiles,
    read_harness_document,
    read_harness_lines,
    read_own_document,
)
from gate.evidence.run_evidence import HarnessProcess
from gate.evidence.untrained import no_step, not_loaded, read_untrained
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text
from gate.training.runs import RunMode, RunRecord

MAX_SHOWN_PROBLEMS = 40
# all that a process without torch may leave
WITHOUT_TORCH = frozenset((HarnessFile.CHILDREN, HarnessFile.UNTRAINED, HarnessFile.ENDED))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedRank:
    """One rank's record: its optimizer steps in order, and how it ended."""

    files: ProcessFiles
    lines: tuple[StepLine, ...]
    summary: Summary

    @property
    def last_step(self) -> int:
        """The number of the last optimizer step."""
        return max(line.step for line in self.lines)


def read_attestations(
    files: Files,
    out: Path,
    found: tuple[ProcessFiles, ...],
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
        for process in found
        if HarnessFile.PROCESS in process.kinds
    )
    if not attestations:
        raise not_loaded(run, children, read_untrained(files, out, found), said)
    for process in found:
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
    if run.mode is RunMode.STRICT:
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
        problems=attestation.problems,
    )


def refuse_problems(what: str, problems: list[str]) -> None:
    """Raise `EvidenceError` with the problems listed, if there are any."""
    if problems:
        raise EvidenceError(
            f"{what} ({len(problems)} problem(s))",
            hint="Each line gives its cause; a strict run must have none.",
            details=tuple(map(plain_text, problems[:MAX_SHOWN_PROBLEMS])),
        )


def read_ranks(
    files: Files,
    out: Path,
    found: tuple[ProcessFiles, ...],
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
        process: read_harness_lines(files, out, process.name(HarnessFile.STEPS), StepLine)
        for process in found
        if HarnessFile.STEPS in process.kinds
    }
    stepping = [process for process, lines in steps.items() if lines]
    if not stepping:
        raise no_step(children, read_untrained(files, out, found), said)
    _check_processes(files, out, {process: steps[process] for process in stepping})
    ranks = tuple(
        _trained(process, steps[process], _summary(files, out, process)) for process in stepping
    )
    for rank in ranks:
        _check_steps(rank)
    _check_same_length(ranks)
    _refuse_idle_ranks(attested, ranks)
    return ranks


def _check_processes(
    files: Files, out: Path, steps: dict[ProcessFiles, tuple[StepLine, ...]]
) -> None:
    for rank, count in Counter(process.rank for process in steps).items():
        # weights in shared memory that several processes
        # update at once: results depend on their speed
        if count > 1:
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


def _span(
    files: Files, out: Path, process: ProcessFiles, lines: tuple[StepLine, ...]
) -> TrainingSpan:
    """When a process made its steps, as far as it said that."""
    if HarnessFile.SUMMARY not in process.kinds:
        return TrainingSpan(pid=process.pid)
    begun = _summary_document(files, out, process).first_step_clock_seconds
    if begun is None:
        return TrainingSpan(pid=process.pid)
    took = sum((line.seconds or 0.0) + line.harness_seconds for line in lines[1:])
    return TrainingSpan(pid=process.pid, first=begun, last=begun + took)


def _trained(process: ProcessFiles, lines: tuple[StepLine, ...], summary: Summary) -> TrainedRank:
    name = process.name(HarnessFile.SUMMARY)
    ordered = in_order(lines, summary.optimizer_numbers, name)
    return TrainedRank(files=process, lines=ordered, summary=summary)


def _summary(files: Files, out: Path, process: ProcessFiles) -> Summary:
    # the summary is written last: where it is missing, the rest may be cut short
    for kind in (HarnessFile.STATE, HarnessFile.SUMMARY):
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
    before: dict[int, int] = {}
    for line in rank.lines:
        if line.step <= before.get(line.optimizer, 0):
            raise EvidenceError(
                f"{name}: step {line.step} of optimizer {line.optimizer} is repeated or out of "
                "order",
                hint="Only the harness may write into its output folder.",
            )
        before[line.optimizer] = line.step
    numbers = {line.step for line in rank.lines}
    # as many different numbers as the highest one: so there is no gap
    if len(numbers) != rank.last_step or rank.summary.steps != rank.last_step:
        raise EvidenceError(
            f"{name}: {len(numbers)} steps up to step {rank.last_step}, and the summary counts "
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


def _check_same_length(ranks: tuple[TrainedRank, ...]) -> None:
    for rank in ranks:
        if rank.last_step != ranks[0].last_step:
            raise EvidenceError(
                f"rank {rank.files.rank} took {rank.last_step} steps, rank 0 took "
                f"{ranks[0].last_step}",
                hint="All ranks must take the same optimizer steps.",
            )
