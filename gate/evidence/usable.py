"""Refuse runs whose evidence cannot be used for any comparison."""

from __future__ import annotations

from collections.abc import Sequence

from gate.errors import EvidenceError, RunError
from gate.evidence.operator_logs import refuse_overrides
from gate.evidence.rank_environments import is_ignored
from gate.evidence.run_evidence import RunEvidence
from gate.settings.gate_settings import Device, GateSettings
from gate.system.machine import GpuMissed
from gate.text.phrases import joined
from gate.training.runs import rank_on, told_nodes

# Tolerance at both ends: the gate's look at the clock and the start or the end of the run are not
# the same moment.
CLOCK_SECONDS = 2.0
SHOWN_RANKS = 8


def refuse_unusable(
    run: RunEvidence, settings: GateSettings, missed: GpuMissed | None = None
) -> None:
    """Raise an error for a run whose evidence cannot be compared.

    Raises `EvidenceError` if the files belong to another run, if ranks have different packages, or
    if settings were overridden and determinism.on_override is `fail`. If two runs were read from
    the same files, nobody would see a difference between them.

    Raises `RunError` if train.device is cuda and the training ran on the CPU, because every later
    comparison would be meaningless. `missed` says why the GPU was not used, if that is known.
    """
    _refuse_other_run(run)
    _refuse_unlike_ranks(run, settings.environment.ignore)
    refuse_overrides(run, settings.determinism.on_override)
    device = settings.train.device
    if device is Device.CUDA and run.environment.ranks_on_cpu:
        who = "a rank of the training" if run.environment.on_gpu else "the training"
        raise RunError(
            f"run {run.run.label}: train.device is cuda, but {who} ran on the CPU"
            f"{f': {missed.found}' if missed else ''}",
            hint=missed.fix
            if missed
            else "Check whether torch sees a GPU there (python -c 'import torch; "
            "print(torch.cuda.is_available())') and whether the script uses it.",
        )


def _refuse_unlike_ranks(run: RunEvidence, ignored: Sequence[str]) -> None:
    """Raise `EvidenceError` if ranks imported different versions of a package.

    `ignored` are the patterns of packages that do not count.
    """
    nodes = told_nodes({record.rank: record.node for record in run.ranks})
    for unlike in run.environment.unlike_ranks:
        moves = [words for name, words in unlike.versions.items() if not is_ignored(name, ignored)]
        if moves:
            raise EvidenceError(
                f"run {run.run.label}: {rank_on(unlike.rank, nodes.get(unlike.rank, ''))} trains "
                f"with {joined(moves)}, {rank_on(0, nodes.get(0, ''))} with the other",
                hint="Give every rank the same packages: one image, one lock file, one "
                "interpreter. environment.ignore leaves a package out.",
                details=tuple(
                    f"{rank_on(rank.rank, nodes.get(rank.rank, ''))}: last step {len(rank.steps)}, "
                    "exit code 0"
                    for rank in run.ranks[:SHOWN_RANKS]
                ),
            )


def _refuse_other_run(run: RunEvidence) -> None:
    """Raise `EvidenceError` if the first step was not taken while the run was in progress.

    Runs in a container are not checked, because a container may have a different clock.
    """
    record, stepped = run.run, run.first_step_clock_seconds
    if stepped is None or not record.clock_seconds or record.isolation.image:
        return
    end = record.clock_seconds + record.wall_seconds
    if not record.clock_seconds - CLOCK_SECONDS <= stepped <= end + CLOCK_SECONDS:
        raise EvidenceError(
            f"run {record.label}: its first step was not taken while it ran",
            hint="The files are of another run, or the training changed its clock. If it "
            "did not, this is a bug in repro-gate; please report it.",
        )
