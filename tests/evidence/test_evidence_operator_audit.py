from __future__ import annotations

import pytest
from harness_folder import HarnessFolder

from gate.errors import EvidenceError, RunError
from gate.evidence.harness_files import find_processes
from gate.evidence.operator_logs import explained, read_operator_audit
from gate.evidence.operator_records import OperatorAudit
from gate.system.files.files import LocalFiles

USE = {
    "source": "alert",
    "operator": "put_",
    "device": "any",
    "direction": "forward",
    "file": "train.py",
    "line": 7,
    "spans": [[1, 3, 2]],
}
REFUSED = {"operator": "put_", "file": "train.py", "line": 7, "step": 2}
FAULT = RunError(
    "run strict-1: python train.py exited with 1",
    hint="by hand",
    details=("boom",),
    file="train.py",
    line=7,
)


def read(harness: HarnessFolder) -> OperatorAudit:
    files = LocalFiles()
    return read_operator_audit(files, harness.path, find_processes(files, harness.path))


def test_without_an_operator_audit_there_is_an_empty_one(harness: HarnessFolder) -> None:
    harness.whole()
    assert read(harness) == OperatorAudit()


def test_the_operator_audit_of_every_process_is_put_together(harness: HarnessFolder) -> None:
    harness.operator_audit(uses=[USE], modules=["flash_attn"], dropped=2)
    harness.of(rank=1, pid=12).operator_audit(uses=[USE], modules=["flash_attn"], dropped=1)
    found = read(harness)
    assert (len(found.uses), found.modules, found.dropped) == (2, ("flash_attn",), 3)
    (span,) = found.uses[0].spans
    assert (span.first, span.last, span.calls, found.uses[0].place) == (1, 3, 2, "train.py:7")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"uses": [{**USE, "spans": [[3, 1, 1]]}]}, "ends at step 1, before its first step 3"),
        ({"uses": [{**USE, "spans": [[0, 1, 1]]}]}, "greater than or equal to 1"),
        ({"uses": [{**USE, "operator": "x" * 121}]}, "at most 120 characters"),
        ({"uses": [USE] * 1001}, "at most 1000 items"),
        ({"refused": [REFUSED] * 101}, "at most 100 items"),
        ({"modules": "flash_attn"}, "must be a valid array"),
        ({"colour": "red"}, "is not a known key"),
        ({"autotuners": [{"kernel": "k", "configurations": 1}]}, "greater than or equal to 2"),
    ],
)
def test_a_broken_operator_audit_is_refused(
    harness: HarnessFolder, changes: dict[str, object], told: str
) -> None:
    harness.operator_audit(**changes)
    with pytest.raises(EvidenceError) as caught:
        read(harness)
    assert told in str(caught.value)


def test_an_operator_audit_of_another_process_is_refused(harness: HarnessFolder) -> None:
    harness.operator_audit(pid=99)
    with pytest.raises(EvidenceError, match="names process 99, rank 0 inside"):
        read(harness)


def test_uses_beyond_the_limit_of_a_run_are_counted(harness: HarnessFolder) -> None:
    for pid in (1, 2):
        harness.of(pid=pid).operator_audit(uses=[{**USE, "line": line} for line in range(600)])
    found = read(harness)
    assert (len(found.uses), found.dropped) == (1000, 200)


def test_a_failure_is_explained_by_the_operator_that_was_refused(harness: HarnessFolder) -> None:
    harness.operator_audit(refused=[REFUSED])
    fault = explained(FAULT, read(harness).refused)
    assert fault.message == (
        "run strict-1: python train.py exited with 1: strict mode refused put_ at train.py:7, "
        "step 2: it has no deterministic implementation"
    )
    assert "indices that occur once" in fault.hint
    assert "determinism: {allow_operators: ['put_']}" in fault.hint
    # nothing else of the failure is lost: the line that raised may be the change's own
    assert (fault.details, fault.file, fault.line) == (("boom",), "train.py", 7)


def test_a_failure_without_a_refused_operator_stays_as_it_is() -> None:
    assert explained(FAULT, ()) is FAULT
