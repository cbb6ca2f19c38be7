from __future__ import annotations

import pytest
from guest_folder import GuestFolder

from gate.adapters.files.files import LocalFiles
from gate.errors import EvidenceError, RunError
from gate.evidence.census import explained, read_census
from gate.evidence.guest_files import find_processes
from gate.records.census import OperatorCensus

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
FAULT = RunError("run strict-1: python train.py exited with 1", hint="by hand", details=("boom",))


def read(guest: GuestFolder) -> OperatorCensus:
    files = LocalFiles()
    return read_census(files, guest.path, find_processes(files, guest.path))


def test_without_a_census_there_is_an_empty_one(guest: GuestFolder) -> None:
    guest.whole()
    assert read(guest) == OperatorCensus()


def test_the_census_of_every_process_is_put_together(guest: GuestFolder) -> None:
    guest.census(uses=[USE], modules=["flash_attn"], dropped=2)
    guest.of(rank=1, pid=12).census(uses=[USE], modules=["flash_attn"], dropped=1)
    found = read(guest)
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
def test_a_broken_census_is_refused(
    guest: GuestFolder, changes: dict[str, object], told: str
) -> None:
    guest.census(**changes)
    with pytest.raises(EvidenceError) as caught:
        read(guest)
    assert told in str(caught.value)


def test_a_census_of_another_process_is_refused(guest: GuestFolder) -> None:
    guest.census(pid=99)
    with pytest.raises(EvidenceError, match="names process 99, rank 0 inside"):
        read(guest)


def test_uses_beyond_the_limit_of_a_run_are_counted(guest: GuestFolder) -> None:
    for pid in (1, 2):
        guest.of(pid=pid).census(uses=[{**USE, "line": line} for line in range(600)])
    found = read(guest)
    assert (len(found.uses), found.dropped) == (1000, 200)


def test_a_failure_is_explained_by_the_operator_that_was_refused(guest: GuestFolder) -> None:
    guest.census(refused=[REFUSED])
    fault = explained(FAULT, read(guest).refused)
    assert fault.message == (
        "run strict-1: python train.py exited with 1: strict mode refused put_ at train.py:7, "
        "step 2: it has no deterministic implementation"
    )
    assert "indices that occur once" in fault.hint
    assert "determinism: {allow_operators: ['put_']}" in fault.hint
    assert fault.details == ("boom",)


def test_a_failure_without_a_refused_operator_stays_as_it_is() -> None:
    assert explained(FAULT, ()) is FAULT
