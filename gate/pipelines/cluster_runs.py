"""Fetches a run's files from cluster nodes: reports, checked copies, and the node at fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from gate.errors import EvidenceError, RunError, StorageError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.node_reports import REPORT_NAME, NodeReport
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.cluster_processes import REPORTS, VISIBLE_SECONDS
from gate.isolation.process_request import ClusterStep, ProcessResult
from gate.pipelines.adapters import Adapters
from gate.pipelines.reader_questions import Ask, NodesQuestion
from gate.system.files.port import Files
from gate.system.node import described_nodes
from gate.training.environment import NODES

STALE_HINT: Final = (
    "The file system of cluster.folder shows this machine something else than the nodes. Nothing "
    "was judged: start the gate again, on a folder that is consistent when a file is closed."
)
# a shell reports 128 plus the signal's number for a command that a signal ended
SIGNALLED: Final = 128
MAX_SHOWN: Final = 4


def gather(adapters: Adapters, ask: Ask, step: ClusterStep, out: Path) -> tuple[NodeReport, ...]:
    """Copy every node's documents to `out`, check their digests, and return the reports.

    Raises `RunError` if the shared folder does not show them. Raises `EvidenceError` if two nodes
    report one process, because then one rank ran on both.
    """
    folder, nodes = step.root / REPORTS, step.settings.nodes
    # a network file system may show a new file late, so wait for a while (docs/cluster.md)
    until = adapters.clock.seconds() + VISIBLE_SECONDS
    for number in range(nodes):
        _wait_for(adapters, folder / str(number) / REPORT_NAME, until)
    question = NodesQuestion(folder=folder, token=step.token, nodes=nodes)
    reports = ask(question).reports
    # the run sees this folder too, but writes to the folder of its node; so what is here is not its
    # work
    adapters.files.fresh_folder(out)
    owners: dict[str, NodeReport] = {}
    for report in reports:
        for name, sha256 in report.files.items():
            if name in owners:
                raise EvidenceError(
                    f"{name} is from node {owners[name].node.name} and from node "
                    f"{report.node.name}",
                    hint="Two processes have one rank and one process id. If both nodes started "
                    "the same rank, let train.command use the variables of docs/cluster.md; else "
                    "start the gate again.",
                )
            owners[name] = report
            source = folder / str(report.number) / name
            _copy(adapters.files, source, out / name, sha256, report)
    return reports


def with_nodes(run: RunEvidence, reports: tuple[NodeReport, ...]) -> RunEvidence:
    """Return the run with its nodes as a part of the environment; a local run stays unchanged."""
    if not reports:
        return run
    nodes = tuple(report.node for report in reports)
    parts = {**run.environment.parts, NODES: described_nodes(nodes)}
    environment = run.environment.model_copy(update={"parts": parts})
    return run.model_copy(update={"nodes": nodes, "environment": environment})


def _wait_for(adapters: Adapters, path: Path, until: float) -> None:
    while not adapters.files.exists(path):
        if adapters.clock.seconds() >= until:
            raise RunError(
                f"the shared folder did not show the report of node {path.parent.name} in "
                f"{VISIBLE_SECONDS} s",
                hint=STALE_HINT,
            )
        time.sleep(0.1)


def _copy(files: Files, source: Path, target: Path, sha256: str, report: NodeReport) -> None:
    try:
        copied = files.copy_file(source, target, max_bytes=MAX_STATE_BYTES)
    except StorageError as error:
        raise RunError(
            f"{source.name} of node {report.node.name} cannot be copied: {error.message}",
            hint=error.hint or STALE_HINT,
        ) from error
    # the shared folder may still show an old version of the file
    if copied != sha256:
        raise RunError(
            f"{source.name} is not the file that node {report.node.name} reported: its digest "
            "differs",
            hint=STALE_HINT,
        )


def as_its_task_ended(result: ProcessResult, reports: tuple[NodeReport, ...]) -> ProcessResult:
    """Return the result with the exit code of the first task that failed by itself.

    `srun` returns the largest code of all tasks. That is the code of a task that `srun` itself
    ended.
    """
    codes = [code for report in reports for code in report.exits.values() if code]
    if not codes or not result.exit_code:
        return result
    number = codes[0] - SIGNALLED
    return replace(result, exit_code=-number if number in set(signal.Signals) else codes[0])


def with_node_at_fault(
    fault: RunError, reports: tuple[NodeReport, ...], step: ClusterStep | None
) -> RunError:
    """Add to a fault the nodes and ranks whose task failed by itself; `srun` ended the others."""
    if step is None:
        return fault
    failed = list(_failed(reports, step.settings.tasks_per_node))
    if not failed:
        return fault
    return type(fault)(
        f"{fault.message} ({'; '.join(failed[:MAX_SHOWN])})",
        hint=fault.hint,
        details=fault.details,
        file=fault.file,
        line=fault.line,
    )


def _failed(reports: tuple[NodeReport, ...], tasks_per_node: int) -> Iterator[str]:
    for report in reports:
        for task, code in report.exits.items():
            if code == 0:
                continue
            # a node's only task may be a launcher of all ranks there; of several tasks, each is one
            # rank
            steps = {
                int(rank): step
                for rank, step in report.steps.items()
                if tasks_per_node == 1 or rank == task
            }
            ranks = ", ".join(map(str, sorted(steps)))
            who = f"rank{'s' * (len(steps) > 1)} {ranks}" if steps else f"task {task}"
            last = f"after step {min(steps.values())}" if steps else "before a step"
            yield f"{who} on node {report.node.name}, {last}"
