"""Planted faults: a script that turns back every knob, and the place and step that are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# Each override is on a line of its own, told by its comment; two training steps have gone before
# most.
OVERRIDES = """
import os, random, time
random.seed(time.time())  # override: random.seed 1
import numpy, torch
from torch.nn.attention import SDPBackend, sdpa_kernel

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)

def step():
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()

torch.manual_seed(7)  # override: torch.manual_seed 1
step()
step()
torch.backends.cudnn.benchmark = True  # override: cudnn_benchmark 3
torch.backends.cudnn.deterministic = False  # override: cudnn_deterministic 3
torch.utils.deterministic.fill_uninitialized_memory = True  # override: memory_fill 3
torch.backends.cuda.enable_cudnn_sdp(True)  # override: attention_cudnn 3
torch.backends.cuda.enable_flash_sdp(False)
torch.set_num_threads(2)  # override: threads 3
torch.manual_seed(int(time.time()))  # override: torch.manual_seed 3
torch.seed()  # override: torch.seed 3
random.seed()  # override: random.seed 3
numpy.random.seed()  # override: numpy.random.seed 3
numpy.random.default_rng()  # override: numpy.random.default_rng 3
numpy.random.default_rng(5)  # override: numpy.random.default_rng 3
numpy.random.RandomState(6)  # override: numpy.random.RandomState 3
random.Random(7)  # override: random.Random 3
torch.cuda.manual_seed_all(3)  # override: torch.cuda.manual_seed_all 3
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"  # override: cublas_workspace 3
os.environ.pop("NCCL_ALGO")  # override: nccl_algorithm 3
for name in ("OMP_NUM_THREADS", "PYTHONHASHSEED"):
    os.environ[name] = os.environ[name]
step()
torch.use_deterministic_algorithms(False)  # override: deterministic_algorithms 4
step()
print(torch.get_num_threads(), torch.backends.cudnn.benchmark,
      torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"])
"""

# What is taken back within a step: a suspended determinism, and two contexts.
CLOSING = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for number in range(6):
    optimizer.zero_grad()
    if number == 1:
        torch.use_deterministic_algorithms(False)  # override: deterministic_algorithms 2
        torch.use_deterministic_algorithms(True)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # override: cudnn_benchmark 1
        loss = weight.square().sum()
    loss.backward()
    optimizer.step()
"""
KNOBS = "cublas_workspace=:4096:8;nccl_algorithm=Ring;hash_seed=1;omp_threads=1"
VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_ALGO": "Ring",
    "PYTHONHASHSEED": "1",
    "REPRO_GATE_KNOBS": KNOBS,
    "REPRO_GATE_MAX_STEPS": "9",
}


def planted(source: str) -> set[tuple[str, int, int]]:
    """Name, line and step of each override of a script, as its comments tell them."""
    found = set()
    for number, line in enumerate(source.splitlines(), start=1):
        if "# override: " in line:
            name, step = line.partition("# override: ")[2].split()
            found.add((name, number, int(step)))
    return found


def told(outcome: Outcome) -> set[tuple[str, int, int]]:
    lines = outcome.lines("overrides")
    assert {line["file"] for line in lines} == {"script.py"}
    return {(line["name"], line["line"], line["step"]) for line in lines}


def by_name(outcome: Outcome, step: int = 3) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in outcome.lines("overrides") if line["step"] >= step}


@pytest.fixture(scope="module")
def overrides(harness: Harness) -> Outcome:
    return harness.run(OVERRIDES, **VARIABLES)


@pytest.fixture(scope="module")
def restored(harness: Harness) -> Outcome:
    return harness.run(OVERRIDES, REPRO_GATE_ON_OVERRIDE="restore", **VARIABLES)


@pytest.fixture(scope="module")
def closing(harness: Harness) -> Outcome:
    return harness.run(CLOSING, REPRO_GATE_MAX_STEPS="9")


def test_every_planted_override_is_told_with_its_line_and_step(overrides: Outcome) -> None:
    assert (overrides.code, overrides.stderr) == (0, "")
    assert told(overrides) == planted(OVERRIDES)


def test_the_summary_counts_all_overrides_and_holds_no_problem(overrides: Outcome) -> None:
    summary = overrides.document("summary")
    assert summary["overridden"] == len(planted(OVERRIDES))
    assert summary["problems"] == []


def test_an_override_tells_both_values_and_its_kind(overrides: Outcome) -> None:
    lines = by_name(overrides)
    found = {
        name: (line["kind"], line["before"], line["after"])
        for name, line in lines.items()
        if line["kind"] not in {"reseed", "entropy"}
    }
    assert found == {
        "cudnn_benchmark": ("switch", "off", "on"),
        "cudnn_deterministic": ("switch", "on", "off"),
        "memory_fill": ("switch", "off", "on"),
        "attention_cudnn": ("switch", "off", "on"),
        "deterministic_algorithms": ("switch", "on", "off"),
        "threads": ("threads", "1", "2"),
        "cublas_workspace": ("environment", ":4096:8", ":0:0"),
        "nccl_algorithm": ("environment", "Ring", ""),
    }


def test_a_seed_of_the_clock_or_of_nothing_is_told_apart_from_a_constant(
    overrides: Outcome,
) -> None:
    kinds = {
        (line["name"], line["step"]): line["kind"]
        for line in overrides.lines("overrides")
        if line["scope"] == "global"
    }
    constant = {("torch.manual_seed", 1), ("torch.cuda.manual_seed_all", 3)}
    assert {key for key, kind in kinds.items() if kind == "reseed"} == constant
    assert len(kinds) == 7


def test_observing_leaves_everything_as_the_script_wants_it(overrides: Outcome) -> None:
    assert overrides.stdout == "2 True False :0:0\n"


def test_restoring_puts_everything_back_and_tells_the_same(restored: Outcome) -> None:
    assert restored.stdout == "1 False True :4096:8\n"
    assert told(restored) == planted(OVERRIDES)
    switched = [line for line in restored.lines("overrides") if line["scope"] is None]
    assert all(line["restored"] for line in switched)


def test_what_is_taken_back_within_the_step_is_told_as_closed(closing: Outcome) -> None:
    lines = by_name(closing, step=1)
    hole, context = lines["deterministic_algorithms"], lines["cudnn_benchmark"]
    assert planted(CLOSING) <= told(closing)
    assert (hole["kind"], hole["closed"], context["kind"], context["closed"]) == (
        *("switch", True),
        *("context", True),
    )


def test_a_line_that_does_it_in_every_step_is_told_three_times(closing: Outcome) -> None:
    lines = [line for line in closing.lines("overrides") if line["name"] == "cudnn_benchmark"]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert closing.document("summary")["overridden"] > len(closing.lines("overrides"))


def test_a_switch_that_is_turned_unseen_is_told_at_the_end_of_its_step(harness: Harness) -> None:
    outcome = harness.run(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(2))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "plain = torch._C._set_cudnn_benchmark.__closure__\n"
        "plain = next(c.cell_contents for c in plain if 'built-in' in repr(c.cell_contents))\n"
        "weight.sum().backward()\n"
        "plain(True)\n"
        "optimizer.step()\n",
    )
    (line,) = outcome.lines("overrides")
    assert (line["name"], line["file"], line["line"], line["step"]) == ("cudnn_benchmark", "", 0, 1)


def test_data_workers_seed_themselves_without_a_word(harness: Harness) -> None:
    outcome = harness.run(
        "import torch\n"
        "data = torch.utils.data.TensorDataset(torch.arange(4.0))\n"
        "weight = torch.nn.Parameter(torch.ones(1))\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for (batch,) in torch.utils.data.DataLoader(data, num_workers=1):\n"
        "    (weight * batch).sum().backward()\n"
        "    optimizer.step()\n",
        REPRO_GATE_THREADS="2",
    )
    assert outcome.names() == ["ended", "process", "state", "steps", "summary"]
    assert outcome.document("summary")["overridden"] == 0
