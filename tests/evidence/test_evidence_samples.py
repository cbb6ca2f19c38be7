"""Samples that a run reports: summed over a step's optimizers, bounded, unknown where one is."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_cases import record_of, settings_of
from harness_folder import HarnessFolder, step_line

from gate.errors import EvidenceError
from gate.evidence.collect import collect_run
from gate.system.files.files import LocalFiles

MOST = 2**32


def samples_of(files: LocalFiles, harness: HarnessFolder, *counts: object) -> int | None:
    """What is read of step 2, whose optimizers report these counts."""
    harness.whole(steps=2)
    lines = [
        step_line(step, optimizer=optimizer, samples=count, seconds=0.25)
        for step in (1, 2)
        for optimizer, count in enumerate(counts)
    ]
    harness.steps(*lines)
    tree = Path(harness.path)
    run = collect_run(files, record_of(), harness.path, tree, b"", settings_of().train)
    return run.timings[-1].samples


@pytest.mark.parametrize(
    ("counts", "samples"),
    [((32,), 32), ((32, 0), 32), ((MOST, MOST), 2 * MOST), ((32, None), None)],
)
def test_the_optimizers_of_a_step_share_what_was_read(
    files: LocalFiles,
    harness: HarnessFolder,
    counts: tuple[int | None, ...],
    samples: int | None,
) -> None:
    assert samples_of(files, harness, *counts) == samples


@pytest.mark.parametrize("count", [-1, MOST + 1, 1.5, "32", 10**400])
def test_a_count_that_the_harness_never_writes_is_refused(
    files: LocalFiles, harness: HarnessFolder, count: object
) -> None:
    with pytest.raises(EvidenceError, match=r"steps-r0-11\.jsonl: line 1: 1 error") as refused:
        samples_of(files, harness, count)
    assert "samples" in str(refused.value)
