"""How the work on a large state is done: on several threads, while no cycles are collected."""

from __future__ import annotations

import gc
import threading
from functools import partial

import pytest

from gate.checkpoint.tensor_hashing import gc_paused, run_all
from gate.errors import EvidenceError


def refuse() -> None:
    raise EvidenceError("state: is truncated", hint="Save it again.")


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_task_is_done_once(threads: int) -> None:
    done: list[int] = []
    run_all([partial(done.append, number) for number in range(50)], threads)
    assert sorted(done) == list(range(50))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fault_of_any_thread_reaches_the_caller(threads: int) -> None:
    with pytest.raises(EvidenceError, match="is truncated"):
        run_all([lambda: None, refuse, lambda: None], threads)


def test_a_fault_ends_the_rest() -> None:
    done: list[int] = []
    with pytest.raises(EvidenceError, match="is truncated"):
        run_all([partial(done.append, 1), refuse, partial(done.append, 2)], 1)
    assert done == [1]


def test_two_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=120)
    run_all([meeting.wait, meeting.wait], 2)


def test_the_collector_works_again_after_a_fault() -> None:
    with pytest.raises(EvidenceError), gc_paused():
        refuse()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
