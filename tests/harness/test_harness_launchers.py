"""Who takes the gate's stop for a failure, and who passes over a crash: told by the processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gate.errors import EvidenceError
from gate.evidence.harness_files import find_processes
from gate.evidence.ranks import read_end, refuse_crashed
from gate.system.files.files import LocalFiles
from gate.training.runs import RunEnd

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

# as Ray Train does: a worker hands its exception on, and whoever started it raises one of its own
RAY = """
import multiprocessing, threading

class WorkerGroupError(RuntimeError):
    def __init__(self, failures):
        super().__init__("failed")
        self.failures = failures

def work(train, connection):
    def target():
        try:
            train()
            connection.send(None)
        except BaseException as error:
            connection.send(error)
    thread = threading.Thread(target=target)
    thread.start()
    thread.join()

def fit(train):
    ours, theirs = multiprocessing.Pipe()
    worker = multiprocessing.get_context("fork").Process(target=work, args=(train, theirs))
    worker.start()
    error = ours.recv()
    worker.join()
    if error is not None:
        raise WorkerGroupError({0: error}) from None
"""
TRAIN = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor

def train():
    import torch
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for step in range(10):
            optimizer.zero_grad(); model(torch.ones(2)).sum().backward(); optimizer.step()
            if step == FAILS_AT:
                raise ValueError("planted")
    finally:
        BEHIND

"""
BY_RAY = "import ray.train\nray.train.fit(train)\n"
BY_POOL = """
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        pool.submit(train).result()
"""
BY_NOBODY_WHO_ASKS = """
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=train)
    worker.start()
    worker.join()
"""


@pytest.fixture
def ray(tmp_path: Path) -> str:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    (tmp_path / "ray" / "train.py").write_text(RAY)
    return str(tmp_path)


def script(start: str, *, fails_at: int = -1, behind: str = "pass") -> str:
    return TRAIN.replace("FAILS_AT", str(fails_at)).replace("BEHIND", behind) + start


def end_of(out: Path) -> RunEnd:
    return read_end(LocalFiles(), out, find_processes(LocalFiles(), out))


def test_a_stop_that_a_launcher_takes_for_a_failure_is_one_by_all_that_was_told(
    harness: Harness, ray: str
) -> None:
    outcome = harness.run(script(BY_RAY), python_path=ray)
    assert outcome.code == 1
    assert "WorkerGroupError" in outcome.stderr
    assert end_of(outcome.out) == RunEnd(stopped=True, by_stop=True)


@pytest.mark.parametrize("what", [{"fails_at": 1}, {"behind": "open('/none')"}])
def test_a_crash_before_or_after_the_stop_is_none(
    harness: Harness, ray: str, what: dict[str, str]
) -> None:
    outcome = harness.run(script(BY_RAY, **what), python_path=ray)  # type: ignore[arg-type] # by name
    assert outcome.code == 1
    assert not end_of(outcome.out).by_stop


def test_the_stop_reaches_who_waits_for_a_pool(harness: Harness) -> None:
    outcome = harness.run(script(BY_POOL))
    assert (outcome.code, outcome.stderr) == (0, "")
    assert end_of(outcome.out).stopped


def test_a_worker_that_crashed_is_refused_where_nobody_asked_for_its_exit_code(
    harness: Harness,
) -> None:
    sound = harness.run(script(BY_NOBODY_WHO_ASKS))
    refuse_crashed(LocalFiles(), sound.out, find_processes(LocalFiles(), sound.out))
    crashed = harness.run(script(BY_NOBODY_WHO_ASKS, behind="open('/none')"))
    assert crashed.code == 0
    with pytest.raises(EvidenceError, match=r"rank 0 failed with builtins.FileNotFoundError"):
        refuse_crashed(LocalFiles(), crashed.out, find_processes(LocalFiles(), crashed.out))
