"""Runs on each cluster node after a run and collects what the run left there.

Small documents and rank 0's state are copied into the shared folder, within limits. A confined
child digests the states of other ranks, which stay on the node. The report, with the digest of each
copy, is written last. The collector holds no secret and parses nothing itself.
"""

from __future__ import annotations

import gc
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from gate.errors import EvidenceError, GateError, StorageError
from gate.evidence.capture import MAX_STATE_BYTES
from gate.evidence.harness_files import (
    MAX_HARNESS_FILES,
    MAX_LINES_BYTES,
    MAX_NAMES,
    HarnessFile,
)
from gate.evidence.node_reports import (
    FILE_PATTERN,
    MAX_DOCUMENTS_BYTES,
    MAX_LEAVES_BYTES,
    REPORT_NAME,
    NodeReport,
    StateLeaves,
)
from gate.evidence.saved_state import captured_state, state_leaves
from gate.isolation.confined_look import read_apart, reading_seconds
from gate.pipelines.run_watch import last_written_step
from gate.system.files.files import LocalFiles
from gate.system.files.port import Files
from gate.system.machine import machine_facts
from gate.system.node import NodeFacts, gpu_clocks, node_hardware
from gate.text.digests import sha256_hex
from gate.text.documents import RecordForm
from gate.text.untrusted_text import safe_line

# digests that a training claims for its own state are never copied; the gate computes them itself
NAME: Final = re.compile(f"(?!{HarnessFile.LEAVES}-){FILE_PATTERN}", re.ASCII)
EXIT_NAME: Final = re.compile(r"exit-(0|[1-9][0-9]{0,5})\Z", re.ASCII)
STATE_NAME: Final = re.compile(r"state-r([1-9][0-9]*)-([0-9]+)\.safetensors\Z", re.ASCII)
STEPS_NAME: Final = re.compile(r"steps-r(0|[1-9][0-9]{0,5})-[0-9]+\.jsonl\Z", re.ASCII)
LARGE: Final = (".safetensors",)


def main(folder: str, reports: str, token: str) -> None:
    """Report what the run `token` left below `folder` on this node, then remove it."""
    # the imported modules stay for the whole process, so the collector need not look at them
    gc.freeze()
    gc.enable()
    number = int(os.environ["SLURM_NODEID"])
    name = os.environ.get("SLURMD_NODENAME") or platform.node()
    files = LocalFiles()
    base = Path(f"{folder}-{number}")
    target = Path(reports) / str(number)
    try:
        report = collect(files, base, target, token, number, name)
        files.write_new(target / REPORT_NAME, report.model_dump_json().encode())
    except GateError as error:
        # the gate shows the last lines of this output
        sys.exit(str(error))
    finally:
        files.remove_tree(base)


def collect(
    files: Files, base: Path, target: Path, token: str, number: int, name: str
) -> NodeReport:
    """Copy and digest the files in `base/out`; ignore a folder of another run.

    Raises `EvidenceError` for a link, a pipe, or more than the limits allow.
    """
    # if a task could not start, the folder is missing or belongs to another run
    here = files.exists(base / token)
    try:
        collected = dict(_collected(files, base / "out", target)) if here else {}
    except StorageError as error:
        raise EvidenceError(f"node {name}: {error.message}", hint=error.hint) from error
    return NodeReport(
        token=token,
        number=number,
        node=facts_of_this_node(name),
        files=collected,
        exits=dict(_exits(files, base)) if here else {},
        steps=dict(_steps(files, base / "out")) if here else {},
    )


def _collected(files: Files, out: Path, target: Path) -> Iterator[tuple[str, str]]:
    names = [
        list_name
        for list_name in files.list_names(out, max_names=MAX_NAMES)
        if NAME.fullmatch(list_name)
    ]
    if len(names) > MAX_HARNESS_FILES:
        raise EvidenceError(
            f"the run left more than {MAX_HARNESS_FILES:,} files on this node",
            hint="Start fewer processes that import torch.",
        )
    # one budget for all documents of a node, because they are copied to the shared folder
    left = MAX_DOCUMENTS_BYTES
    for name in names:
        state = STATE_NAME.match(name)
        if state is not None:
            rank, pid = int(state[1]), int(state[2])
            data = _leaves(files, out / name, rank, pid).model_dump_json().encode()
            leaves = f"leaves-r{rank}-{pid}.json"
            files.write_new(target / leaves, data)
            yield leaves, sha256_hex(data)
            continue
        large = name.endswith(LARGE)
        most = MAX_STATE_BYTES if large else min(MAX_LINES_BYTES, left)
        yield name, files.copy_file(out / name, target / name, max_bytes=most)
        left -= 0 if large else (target / name).stat().st_size


def _leaves(files: Files, path: Path, rank: int, pid: int) -> StateLeaves:
    form: RecordForm[StateLeaves] = RecordForm(StateLeaves)
    return read_apart(
        form,
        lambda: state_leaves(captured_state(files, path, rank), rank, pid),
        what=f"the state of rank {rank}",
        seconds=reading_seconds(path),
        answer_bytes=MAX_LEAVES_BYTES,
    )


def _exits(files: Files, base: Path) -> Iterator[tuple[str, int]]:
    for name in files.list_names(base, max_names=MAX_NAMES):
        task = EXIT_NAME.match(name)
        if task is None:
            continue
        with suppress(StorageError, ValueError):
            # a shell's exit code has 8 bits
            yield task[1], int(files.read_bytes(base / name, max_bytes=8)) & 0xFF


def _steps(files: Files, out: Path) -> Iterator[tuple[str, int]]:
    """Yield the last step of each rank, used only in the message about a failed run."""
    for name in files.list_names(out, max_names=MAX_NAMES):
        rank = STEPS_NAME.match(name)
        if rank is None:
            continue
        with suppress(StorageError, OSError):
            step = last_written_step(files, out / name)
            if step:
                yield rank[1], step


def facts_of_this_node(name: str) -> NodeFacts:
    """Return what is known about this node."""
    path = os.environ.get("PATH", os.defpath)
    machine, hardware = machine_facts(path), node_hardware()
    drivers = {gpu.driver_version for gpu in machine.gpus}
    return NodeFacts(
        name=safe_line(name, limit=200),
        cpu=hardware.cpu,
        cpus=hardware.cpus,
        memory_bytes=hardware.memory_bytes,
        kernel=safe_line(platform.release(), limit=200),
        driver=", ".join(sorted(drivers))[:200],
        gpus=machine.gpus,
        clocks=gpu_clocks(path),
        topology=machine.topology,
        networks=hardware.networks,
        rdma=hardware.rdma,
        address=safe_line(os.environ.get("SLURM_TOPOLOGY_ADDR", ""), limit=200),
    )
