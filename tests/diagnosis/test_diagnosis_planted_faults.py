"""One planted fault for each fingerprint, in a real training on the CPU: found at its step."""

from __future__ import annotations

import pytest
from evidence_cases import settings_of
from harness_runs import HarnessRuns

from gate.comparison.compare import compare_results
from gate.comparison.differences import Comparison
from gate.diagnosis.diagnosis import Diagnosis
from gate.diagnosis.first_divergence import diagnose_repeat
from gate.diagnosis.suspects import NOTHING_KNOWN
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_columns import FAMILIES, GENERATORS, RANDOM, WEIGHTS
from gate.training.runs import RunMode

pytestmark = pytest.mark.torch

TRAINING = """
import os, random
import numpy as np, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

fault = os.environ.get("FAULT", "")
if fault == "initial":
    torch.seed()
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 8))
noise = np.random.default_rng(None if fault == "batch" else 7)

class Data(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        x = torch.arange(6.0) * 0.1 + index
        return {"x": x + noise.normal() * 1e-3, "y": x.sum()}

named = dict(model.named_parameters())
order = set(named) if fault == "set" else sorted(named)[fault == "structure":]
optimizer = torch.optim.AdamW([named[name] for name in order], lr=0.01)
step = 0
def disturb(*_):
    if fault == "optimizer" and step == 2:
        optimizer.state[named["4.bias"]]["exp_avg"][0] *= 1 + 1e-6
optimizer.register_step_post_hook(disturb)
for batch in DataLoader(Data(), batch_size=4, shuffle=True):
    step += 1
    if fault == "weights" and step == 3:
        model[0].weight.data.view(-1)[3] *= 1 + 1e-6
    if fault == "random" and step == 3:
        random.random()
    optimizer.zero_grad()
    loss = (model(batch["x"]).sum(1) - batch["y"]).square().mean()
    loss.backward()
    if fault == "gradients" and step == 3:
        model[0].weight.grad.view(-1)[3] *= 1 + 1e-6
    if fault == "parameters" and step == 3:
        optimizer.param_groups[0]["lr"] *= 1 + 1e-5
    optimizer.step()
"""

# Weights move inside a step: by the updates of a closure, or away and back around a pass.
CLOSURE = """
import os, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.linspace(0, 1, 32).reshape(8, 4)
rate = float(os.environ.get("FAULT", "0.2"))
optimizer = torch.optim.LBFGS(model.parameters(), lr=rate, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = (model(x) - 2).square().mean()
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
"""
PERTURBED = """
import os, torch
model = torch.nn.Linear(4, 1)
x = torch.linspace(0, 1, 32).reshape(8, 4)
radius = float(os.environ.get("FAULT", "0.05"))
weights = list(model.parameters())
optimizer = torch.optim.SGD(weights, lr=0.01)
for _ in range(3):
    moves = [0, 0]
    for sign in (1, -1):
        optimizer.zero_grad()
        (model(x) - 2).square().mean().backward()
        with torch.no_grad():
            moves = [weight.grad * radius for weight in weights] if sign > 0 else moves
            for weight, move in zip(weights, moves):
                weight.add_(move, alpha=sign)
    optimizer.step()
"""

# Two threads add a million numbers into four places, in an order that nobody fixes.
ACCUMULATING = """
import torch
weights = torch.nn.Parameter(torch.randn(4))
index = torch.randint(0, 4, (1_000_000,))
values = torch.randn(1_000_000)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(10):
    gathered = torch.zeros(4).index_put_((index,), values * weights[index], accumulate=True)
    loss = gathered.square().sum() * 1e-9
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def compare(first: RunEvidence, second: RunEvidence) -> Comparison:
    return compare_results(first, second, settings_of().compare, ("strict-1", "strict-2"))


def diagnosed(first: RunEvidence, second: RunEvidence) -> Diagnosis:
    found = diagnose_repeat(compare(first, second), NOTHING_KNOWN, one_cpu_thread=False)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def sound(runs: HarnessRuns) -> RunEvidence:
    return runs.run(TRAINING)


def test_without_a_fault_every_fingerprint_is_compared_and_equal(
    sound: RunEvidence, runs: HarnessRuns
) -> None:
    comparison = compare(sound, runs.run(TRAINING))
    assert comparison.numerically_equal
    assert comparison.fingerprints == ()
    # no generator of CUDA is in use here
    generators = {f"{RANDOM}.{name}" for name in GENERATORS if name != "cuda"}
    compared = set(comparison.compared_fingerprints)
    # nothing writes to the weights between two passes of a step
    assert compared == {*FAMILIES, *generators, "weights.first"} - {RANDOM, WEIGHTS}


@pytest.mark.parametrize(
    ("fault", "step", "subject"),
    [
        ("initial", 1, "initial"),
        ("batch", 1, "batch"),
        ("gradients", 3, "gradients"),
        ("parameters", 3, "parameters"),
        ("weights", 3, "weights.first"),
        ("optimizer", 2, "optimizer"),
    ],
)
def test_a_planted_fault_is_found_in_its_fingerprint_and_step(
    sound: RunEvidence, runs: HarnessRuns, fault: str, step: int, subject: str
) -> None:
    found = diagnosed(sound, runs.run(TRAINING, FAULT=fault))
    assert (found.kind, found.first_step, found.subject) == (fault, step, subject)


@pytest.mark.parametrize(("script", "fault"), [(CLOSURE, "0.3"), (PERTURBED, "0.07")])
def test_weights_that_move_inside_a_step_are_no_other_start_and_no_forward_pass(
    runs: HarnessRuns, script: str, fault: str
) -> None:
    expected, observed = runs.run(script), runs.run(script, FAULT=fault)
    found = diagnosed(expected, observed)
    assert (found.kind, found.first_step, found.subject) == ("weights", 1, "weights.last")
    assert found.cause == (
        "the first backward pass of step 1 uses equal weights, but the last one does not"
    )
    fingerprints = {one.fingerprint for one in compare(expected, observed).fingerprints}
    assert "initial" not in fingerprints


def test_a_parameter_that_is_left_out_is_found_in_the_structure(
    sound: RunEvidence, runs: HarnessRuns
) -> None:
    found = diagnosed(sound, runs.run(TRAINING, FAULT="structure"))
    assert (found.kind, found.first_step) == ("structure", 1)


def test_an_order_taken_from_a_set_is_no_difference(sound: RunEvidence, runs: HarnessRuns) -> None:
    found = compare(sound, runs.run(TRAINING, FAULT="set", PYTHONHASHSEED="3"))
    assert found.numerically_equal
    assert found.fingerprints == ()


def test_an_extra_draw_that_changes_no_number_is_seen_and_decides_nothing(
    sound: RunEvidence, runs: HarnessRuns
) -> None:
    comparison = compare(sound, runs.run(TRAINING, FAULT="random"))
    assert comparison.numerically_equal
    (difference,) = comparison.fingerprints
    assert (difference.fingerprint, difference.first_step, difference.equal_until) == (
        "random.python",
        3,
        2,
    )


def test_an_accumulation_by_two_threads_is_found_as_arithmetic(runs: HarnessRuns) -> None:
    """Truly nondeterministic, so which of the three differs first is not certain."""
    first, second = (
        runs.run(ACCUMULATING, mode=RunMode.DEFAULT, threads=2, REPRO_GATE_MAX_STEPS="6")
        for _ in range(2)
    )
    found = diagnosed(first, second)
    assert found.kind in {"loss", "backward", "gradients", "parameters"}
    assert found.subject in {"loss", "backward", "gradients", "parameters"}
    assert "nondeterministic operator" in found.cause


def test_a_thinned_run_is_compared_where_both_observed(runs: HarnessRuns) -> None:
    """With no budget at all a run observes while it calibrates, then at the last step alone."""
    dense = runs.run(TRAINING, REPRO_GATE_MAX_STEPS="9")
    sparse = runs.run(
        TRAINING,
        REPRO_GATE_MAX_STEPS="9",
        REPRO_GATE_FREE_SECONDS="0",
        REPRO_GATE_OVERHEAD_BUDGET="0",
    )
    observed = [digest.step for digest in sparse.steps if digest.parameters]
    assert {1, 9} <= set(observed) <= {1, 2, 3, 9}
    assert {step.step for step in sparse.steps if "random.torch" in step.fingerprints} == set(
        observed
    )
    comparison = compare(dense, sparse)
    assert comparison.numerically_equal
    assert comparison.fingerprints == ()
    assert comparison.compared_steps == len(observed)


def test_without_observers_only_loss_time_memory_and_end_state_remain(
    sound: RunEvidence, runs: HarnessRuns
) -> None:
    blind = runs.run(TRAINING, REPRO_GATE_OBSERVE="off")
    assert all(not digest.parameters and not digest.fingerprints for digest in blind.steps)
    assert (blind.metrics, blind.checkpoint) == (sound.metrics, sound.checkpoint)
    assert len(blind.timings) == 3
    assert all(memory.resident_bytes > 10**7 for memory in blind.memory)


def test_observing_is_priced(sound: RunEvidence) -> None:
    assert sound.recorder is not None
    assert 0 < sound.recorder.observe_seconds < 60
    assert sound.recorder.sampling_intervals == {"random": 1, "batch": 1, "tensors": 1}
