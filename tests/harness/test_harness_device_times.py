"""Times of a training whose work a device does, on a device that is played."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from played_device import DEVICE, PlayedDevice
from torch import nn

from gate.comparison.cost import UNDISTURBED
from gate.harness import cuda, tensor_digests
from gate.harness.output import Output, Problems
from gate.harness.recording import observer
from gate.harness.recording.observer import Schedule
from gate.harness.recording.recorder import Recorder

STEPS = 24
Started = Sequence[tensor_digests.StartedDigest]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PlayedDevice:
    played = PlayedDevice()
    played.play(monkeypatch)
    return played


class Training:
    """A small training on a played device, told to a recorder as the hooks would."""

    def __init__(self, device: PlayedDevice, folder: Path, *, observe: bool) -> None:
        self.device = device
        self.problems = Problems()
        self.out = Output(str(folder), 0, 1)
        schedule = Schedule(0.02, STEPS, free_seconds=2.0)
        self.recorder = Recorder(self.out, self.problems, schedule, observe=observe)
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss = torch.tensor(0.0)

    def step(self, *, read: float = 0.0, compute: float = 0.0, waits: bool = False) -> None:
        """Read a batch on the host, compute on the device; a script may wait for its loss."""
        self.device.work(read)
        self.recorder.note_batch([1, 2], collated=True)
        self.device.launch(compute)
        self.loss.fill_(self.recorder.steps)
        self.recorder.note_backward(self.loss)
        self.recorder.before(self.optimizer)
        self.recorder.observe(self.optimizer)
        if waits:
            self.device.wait_until(self.device.busy_until)

    def lines(self) -> list[dict[str, Any]]:
        """What is on record at the end."""
        self.recorder.flush()
        assert self.problems.sentences == []
        text = self.out.path("steps", ".jsonl").read_text("ascii")
        return [json.loads(line) for line in text.splitlines()]


def undisturbed(lines: list[dict[str, Any]]) -> list[float]:
    """As the gate chooses them."""
    later = [line for line in lines if line["step"] > 5]
    return [
        line["seconds"]
        for line in later
        if line["harness_seconds"] <= UNDISTURBED * line["seconds"]
    ]


@pytest.fixture
def observing_takes(device: PlayedDevice, monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds that the device takes for the digests of a step."""
    seconds = 0.02

    class Copies(tensor_digests.HostCopies):
        def __init__(self, started: Started, followed: cuda.Devices) -> None:
            if len(started) > 1:
                device.launch(seconds)
            super().__init__(started, followed)

    monkeypatch.setattr(observer, "HostCopies", Copies)
    return seconds


@pytest.mark.parametrize("observe", [True, False])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize(
    ("read", "strict", "default"),
    [(0.08, 0.10, 0.05), (0.08, 0.04, 0.02), (0.0, 0.3, 0.2)],
    ids=["input", "hidden", "device"],
)
@pytest.mark.usefixtures("observing_takes")
def test_the_price_is_that_of_the_pipeline_alone(  # noqa: PLR0913 - a table
    device: PlayedDevice,
    tmp_path: Path,
    read: float,
    strict: float,
    default: float,
    *,
    waits: bool,
    observe: bool,
) -> None:
    """Host and device side by side take the longer of both; a script that waits takes the sum."""
    for name, compute in (("strict", strict), ("default", default)):
        (tmp_path / name).mkdir()
        training = Training(device, tmp_path / name, observe=observe)
        for _ in range(STEPS):
            training.step(read=read, compute=compute, waits=waits)
        found = undisturbed(training.lines())
        assert len(found) >= 5
        expected = read + compute if waits else max(read, compute)
        assert found == pytest.approx([expected] * len(found))


def test_what_nothing_is_observed_of_is_never_waited_for(
    device: PlayedDevice, tmp_path: Path
) -> None:
    """But for the step before, which keeps the host from running ahead without bounds."""
    training = Training(device, tmp_path, observe=False)
    for _ in range(STEPS):
        training.step(read=0.5, compute=0.4)
    assert device.waits == 0
    assert [line["step"] for line in training.lines()] == list(range(1, STEPS + 1))


@pytest.mark.usefixtures("observing_takes")
def test_a_step_is_waited_for_at_most_once_and_only_when_the_next_is_handed_over(
    device: PlayedDevice, tmp_path: Path
) -> None:
    training = Training(device, tmp_path, observe=True)
    for step in range(1, STEPS + 1):
        before = device.waits
        training.step(compute=0.4)
        assert device.waits - before <= 1
        assert device.busy_until - device.host_seconds >= 0.399 or step == 1


def test_the_work_of_the_training_is_not_taken_for_the_harness_s(
    device: PlayedDevice, tmp_path: Path
) -> None:
    """The host is far ahead when an optimizer steps: what it would wait for is no observing."""
    training = Training(device, tmp_path, observe=True)
    for _ in range(STEPS):
        training.step(compute=0.08)
    lines = training.lines()
    assert [line["seconds"] for line in lines[1:]] == pytest.approx([0.08] * (STEPS - 1))
    assert sum(line["observe_seconds"] for line in lines) == pytest.approx(0.0)


def test_a_loss_is_the_one_of_its_backward_pass_even_when_a_graph_writes_the_next_one(
    device: PlayedDevice, tmp_path: Path
) -> None:
    training = Training(device, tmp_path, observe=True)
    training.recorder.note_backward(training.loss.fill_(7.0))
    training.recorder.note_backward(training.loss.fill_(8.0))
    training.recorder.before(training.optimizer)
    training.loss.fill_(9.0)
    training.recorder.observe(training.optimizer)
    (line,) = training.lines()
    assert [float.fromhex(loss["hex"]) for loss in line["losses"]] == [7.0, 8.0]


def test_only_the_devices_of_the_parameters_are_asked(device: PlayedDevice, tmp_path: Path) -> None:
    """The current device may be another one, where asking would start a context."""
    training = Training(device, tmp_path, observe=True)
    for _ in range(4):
        training.step(compute=0.1)
    assert device.asked == {DEVICE}
    assert {line["device_bytes"] for line in training.lines()} == {1000}
    assert training.recorder.devices == (DEVICE,)


def test_a_script_that_forbids_waiting_does_not_stop_the_harness(
    device: PlayedDevice, tmp_path: Path
) -> None:
    training = Training(device, tmp_path, observe=True)
    device.sync_debug_mode = 2
    for _ in range(STEPS):
        training.step(compute=0.1)
    assert device.sync_debug_mode == 2
    assert len(training.lines()) == STEPS
