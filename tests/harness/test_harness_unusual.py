"""Scripts that do what the harness must live with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# Ends by itself before the last step; sums gradients; logs numbers of its own; has a step that
# calls its parent's step, with both known to torch.
SHORT = """
import torch
from repro_gate_harness import metrics

class Inner(torch.optim.SGD):
    pass

class Outer(Inner):
    def step(self):
        super().step()

weight = torch.nn.Parameter(torch.ones(3))
Inner([weight], lr=0.1)
optimizer = Outer([weight], lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    for part in range(2):
        (weight.double().sum() * (part + 0.1)).backward()
    optimizer.step()
    metrics.log("accuracy", torch.tensor(0.1, dtype=torch.bfloat16), step=step)
metrics.log("broken", "no number", step=0)
torch.backends.cudnn.benchmark = True
print("ended")
"""

# Its output folder goes away before the first record.
WITHOUT_FOLDER = """
import os
os.rmdir(os.environ["REPRO_GATE_OUT"])
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
try:
    for _ in range(5):
        weight.sum().backward()
        optimizer.step()
        print("stepped")
finally:
    print("ended")
"""

# No file may grow beyond 2,000 bytes, as on a disk that is almost full.
ON_FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
import torch
weight = torch.nn.Parameter(torch.ones(100_000))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""

# The whole step is compiled, by the one backend that needs no C compiler.
COMPILED = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torch.compile(backend="eager")
def step(batch):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()

for _ in range(5):
    step(torch.randn(5, 4))
"""

# The parent trains, then forks a worker that trains as rank 1; both end by themselves.
FORKING = """
import multiprocessing, os
import torch

def train(rank):
    os.environ["RANK"] = str(rank)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()

train(0)
worker = multiprocessing.get_context("fork").Process(target=train, args=(1,))
worker.start()
worker.join()
assert worker.exitcode == 0
"""

# Only a worker started anew trains; it learns its rank after torch has been imported.
SPAWNING = """
import multiprocessing, os
import torch

def train():
    os.environ["RANK"] = "1"
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.sum().backward()
    optimizer.step()

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=train)
    worker.start()
    worker.join()
"""


@pytest.fixture(scope="module")
def short(harness: Harness) -> Outcome:
    return harness.run(SHORT, REPRO_GATE_MODE="default")


@pytest.fixture(scope="module")
def forking(harness: Harness) -> Outcome:
    return harness.run(FORKING)


def test_a_script_may_end_before_the_last_step(short: Outcome) -> None:
    assert (short.code, short.stdout, short.stderr) == (0, "ended\n", "")
    summary = short.document("summary")
    assert (summary["steps"], summary["stopped_by"]) == (2, "script")


def test_default_mode_changes_no_switch(short: Outcome) -> None:
    applied = short.document("process")["applied"]
    assert applied["deterministic_algorithms"] == "off"
    assert applied["cudnn_deterministic"] == "off"
    assert applied["memory_fill"] == "on"  # torch's own default
    assert (applied["seed_torch"], applied["threads"]) == ("1234", "1")


def test_default_mode_lets_the_script_choose_its_switches(short: Outcome) -> None:
    assert "overrides" not in short.names()


def test_the_last_of_several_backwards_is_the_loss(short: Outcome) -> None:
    line = short.lines("steps")[0]
    assert line["backwards"] == 2
    expected = float(torch.ones(3).double().sum() * 1.1)
    assert line["loss"] == {"dtype": "float64", "hex": expected.hex()}


def test_a_step_that_calls_its_parents_step_counts_once(short: Outcome) -> None:
    assert [(line["step"], line["optimizer"]) for line in short.lines("steps")] == [(1, 0), (2, 0)]


def test_metrics_are_logged_exactly(short: Outcome) -> None:
    bits = float(torch.tensor(0.1, dtype=torch.bfloat16)).hex()
    assert short.lines("metrics") == [
        {"name": "accuracy", "step": step, "dtype": "bfloat16", "hex": bits} for step in (0, 1)
    ]


def test_a_metric_that_is_no_number_becomes_a_problem(short: Outcome) -> None:
    (problem,) = short.document("summary")["problems"]
    assert problem.startswith("logging the metric 'broken': ValueError")


def test_a_parameter_outside_every_module_is_in_the_state(short: Outcome) -> None:
    dtype, shape, _ = short.state()["parameter/0/0"]
    assert (dtype, shape) == ("F32", (3,))


def test_a_forked_worker_that_trains_keeps_a_record_of_its_own(forking: Outcome) -> None:
    assert (forking.code, forking.stderr) == (0, "")
    assert forking.names() == sorted(["ended", "process", "state", "steps", "summary"] * 2)
    owners = {tuple(path.stem.split("-")[1:]) for path in forking.out.glob("*-r*-*")}
    assert sorted(rank for rank, _ in owners) == ["r0", "r1"]


def test_each_forked_record_counts_its_own_steps(forking: Outcome) -> None:
    lines = [path.read_text(encoding="utf-8").splitlines() for path in forking.out.glob("steps-*")]
    assert [len(found) for found in lines] == [1, 1]


def test_a_spawned_worker_attests_the_rank_under_which_it_trains(harness: Harness) -> None:
    outcome = harness.run(SPAWNING)
    trained = [path.name for path in outcome.out.glob("*-r1-*")]
    assert sorted(name.split("-")[0] for name in trained) == [
        *("ended", "process", "state", "steps", "summary")
    ]


def test_a_folder_that_cannot_be_written_does_not_break_the_training(harness: Harness) -> None:
    outcome = harness.run(WITHOUT_FOLDER)
    assert (outcome.code, outcome.stdout) == (0, "stepped\nstepped\nended\n")
    assert "repro-gate: cannot write" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_full_disk_is_told_and_does_not_break_the_training(harness: Harness) -> None:
    outcome = harness.run(ON_FULL_DISK)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert outcome.names() == ["ended", "process", "steps", "summary"]
    problem = "writing the state: OSError: [Errno 27] File too large"
    assert outcome.document("summary")["problems"] == [problem]


def test_a_compiled_training_step_is_recorded(harness: Harness) -> None:
    outcome = harness.run(COMPILED)
    assert outcome.code == 0
    assert [line["backwards"] for line in outcome.lines("steps")] == [1, 1, 1]
    assert all(line["loss"] for line in outcome.lines("steps"))
    assert "repro_gate_harness" not in outcome.stderr  # the compiler did not look into the harness
    assert "getpid" not in outcome.stderr
