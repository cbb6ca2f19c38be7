"""A whole strict training under the harness."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

if TYPE_CHECKING:
    from tests.harness.conftest import Harness, Outcome

pytestmark = pytest.mark.torch

# Draws from every stream, probes for torch as libraries do, swallows exceptions, and tells whether
# it was allowed to end in order. It does not know the harness.
TRAINING = """
import atexit, importlib.util, json, random
importlib.util.find_spec("torch")
import numpy, torch
from torch import nn

drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses, told = [], []
atexit.register(lambda: print(json.dumps([drawn, losses, told])))
try:
    for _ in range(10):
        try:
            optimizer.zero_grad()
            loss = model(torch.randn(16, 4)).square().mean()
            losses.append(loss.item().hex())
            loss.backward()
            optimizer.step()
        except Exception:
            told.append("swallowed")
finally:
    told.append("finally ran")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, "saved.pt")
"""


@pytest.fixture(scope="module")
def training(harness: Harness) -> Outcome:
    return harness.run(TRAINING)


@pytest.fixture(scope="module")
def training_again(harness: Harness) -> Outcome:
    return harness.run(TRAINING)


def printed(outcome: Outcome) -> tuple[list[float], list[str], list[str]]:
    """What the training drew, its losses, and what else it told."""
    drawn, losses, told = json.loads(outcome.stdout)
    return drawn, losses, told


MEASURED = ("seconds", "harness_seconds", "observe_seconds", "memory_bytes")


def untimed_steps(outcome: Outcome) -> list[dict[str, Any]]:
    return [line | dict.fromkeys(MEASURED) for line in outcome.lines("steps")]


def test_the_script_ends_well_and_silently(training: Outcome) -> None:
    assert (training.code, training.stderr) == (0, "")


def test_every_file_of_the_protocol_is_written(training: Outcome) -> None:
    assert training.names() == ["ended", "process", "state", "steps", "summary"]


def test_seeds_reach_every_stream(training: Outcome, harness: Harness) -> None:
    generator = torch.Generator().manual_seed(harness.seed)
    assert printed(training)[0] == [
        random.Random(harness.seed).random(),  # noqa: S311 - the stream of a seed is the subject
        np.random.RandomState(harness.seed).rand(),
        torch.rand(1, generator=generator).item(),
    ]


def test_the_switches_are_attested_as_read_back(training: Outcome, harness: Harness) -> None:
    attestation = training.document("process")
    assert attestation["problems"] == []
    strict = {
        "seed_torch": str(harness.seed),
        "threads": "1",
        "deterministic_algorithms": "on",
        "memory_fill": "off",
        "cudnn_deterministic": "on",
        "cudnn_benchmark": "off",
        "attention_cudnn": "off",
    }
    assert strict.items() <= attestation["applied"].items()


def test_what_torch_had_before_is_attested_too(training: Outcome) -> None:
    before = training.document("process")["before"]
    assert before["deterministic_algorithms"] == "off"
    assert before["memory_fill"] == "on"
    assert before["attention_cudnn"] == "on"


def test_precision_is_recorded_and_left_alone(training: Outcome) -> None:
    attestation = training.document("process")
    names = ("fp32_matmul", "fp32_cudnn", "fp32_conv", "fp32_rnn", "reduced_fp16", "reduced_bf16")
    chosen = [attestation["applied"][name] for name in names]
    assert chosen == [attestation["before"][name] for name in names]
    assert chosen == ["ieee", "tf32", "tf32", "tf32", "on", "on"]


def test_versions_device_and_variables_are_attested(training: Outcome) -> None:
    attestation = training.document("process")
    assert attestation["versions"]["torch"] == str(torch.__version__)
    assert (attestation["device"], attestation["started"]) == ("cpu", "program")
    assert attestation["variables"] == {"OMP_NUM_THREADS": "1"}
    assert attestation["late"] is False


def test_rank_and_process_are_named_inside_as_outside(training: Outcome) -> None:
    attestation = training.document("process")
    assert training.path("process").name == f"process-r0-{attestation['pid']}.json"
    assert attestation["rank"] == 0


def test_training_stops_after_the_last_step(training: Outcome) -> None:
    assert [line["step"] for line in training.lines("steps")] == [1, 2, 3]
    summary = training.document("summary")
    assert (summary["steps"], summary["stopped_by"]) == (3, "max_steps")
    assert summary["problems"] == []
    assert summary["parameter_names"] == {
        "0/0": "model/0/0.weight",
        "0/1": "model/0/0.bias",
        "0/2": "model/0/1.weight",
        "0/3": "model/0/1.bias",
        "0/4": "model/0/3.weight",
        "0/5": "model/0/3.bias",
    }


def test_the_stop_passes_except_and_runs_finally_and_exit_handlers(training: Outcome) -> None:
    assert printed(training)[2] == ["finally ran"]


def test_losses_are_recorded_exactly(training: Outcome) -> None:
    losses = [line["loss"] for line in training.lines("steps")]
    assert losses == [{"dtype": "float32", "hex": text} for text in printed(training)[1]]


def test_each_step_is_timed_but_the_first(training: Outcome) -> None:
    first, *rest = [line["seconds"] for line in training.lines("steps")]
    assert first is None
    assert all(0 < seconds < 60 for seconds in rest)


def test_two_strict_runs_record_the_same(training: Outcome, training_again: Outcome) -> None:
    assert untimed_steps(training) == untimed_steps(training_again)
    assert training.state() == training_again.state()


def test_each_step_has_another_digest(training: Outcome) -> None:
    digests = {line["parameters"] for line in training.lines("steps")}
    assert len(digests) == 3
    assert all(digest.startswith("sha256:") for digest in digests)


def test_the_state_is_what_torch_itself_saves(training: Outcome) -> None:
    saved = torch.load(training.out.parent / "saved.pt", weights_only=True)
    expected = {f"model/0/{name}": tensor for name, tensor in saved["model"].items()}
    for index, parts in saved["optimizer"]["state"].items():
        expected |= {f"optimizer/0/state/{index}/{key}": part for key, part in parts.items()}
    state = training.state()
    found = {name: state.pop(name)[1:] for name in expected}
    assert found == {
        name: (tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in expected.items()
    }
    assert all(name.startswith("optimizer/0/group/0/") for name in state)


def test_the_numbers_of_a_group_are_kept_and_its_texts_left_out(training: Outcome) -> None:
    state = training.state()
    group = "optimizer/0/group/0"
    assert state[f"{group}/lr"] == ("F64", (), np.float64(0.01).tobytes())
    assert state[f"{group}/betas/1"] == ("F64", (), np.float64(0.999).tobytes())
    assert state[f"{group}/amsgrad"] == ("BOOL", (), b"\0")
    assert f"{group}/foreach" not in state  # None
    assert not any("params" in name for name in state)


def test_the_environment_has_every_part(training: Outcome) -> None:
    parts = training.document("summary")["environment"]
    assert set(parts) == {
        *("python", "torch", "numpy", "device", "cuda", "cudnn", "driver", "cpu"),
        *("cpu_capability", "os", "threads", "world_size", "packages"),
        *("cublas", "nccl", "variables"),
    }
    assert (parts["torch"], parts["numpy"]) == (str(torch.__version__), np.__version__)
    assert (parts["device"], parts["driver"]) == ("cpu", "none")
    assert (parts["threads"], parts["world_size"]) == ("1", "1")
    assert len(parts["packages"]) == 64


def test_peak_memory_is_told_in_bytes(training: Outcome) -> None:
    summary = training.document("summary")
    assert 50 * 2**20 < summary["peak_memory_bytes"] < 8 * 2**30
    assert summary["device_memory_bytes"] == 0


def test_watching_does_not_change_the_training(harness: Harness) -> None:
    seeded = f"import torch\ntorch.manual_seed(5)\ntorch.set_num_threads(1)\n{TRAINING}"
    watched = harness.run(seeded, REPRO_GATE_MODE="default", REPRO_GATE_MAX_STEPS="100")
    alone = harness.run(seeded, PYTHONPATH="")
    assert alone.names() == []
    assert printed(watched)[1] == printed(alone)[1]
    files = [outcome.out.parent / "saved.pt" for outcome in (watched, alone)]
    assert files[0].read_bytes() == files[1].read_bytes()
