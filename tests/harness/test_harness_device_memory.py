"""The training's peak of device memory, without the harness's scratch memory."""

from __future__ import annotations

import pytest
import torch

from gate.harness.recording.time_and_memory import DevicePeak

DEVICES = (torch.device("cuda:0"), torch.device("cuda:1"))


class PlayedAllocator:
    """As torch's: allocated now, and the largest amount so far, on one of two devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda at: self.now * at.index)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda at: self.peak * at.index)

    def hold(self, now: int) -> None:
        """Allocate or free until so much is held."""
        self.now, self.peak = now, max(self.peak, now)


def observe(memory: DevicePeak, allocator: PlayedAllocator, *, trained: int, scratch: int) -> None:
    """The training holds so much when the harness takes its scratch memory, and gives it back."""
    allocator.hold(trained)
    with memory.of_the_harness(DEVICES):
        allocator.hold(trained + scratch)
        allocator.hold(trained)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> PlayedAllocator:
    return PlayedAllocator(monkeypatch)


def test_what_the_harness_allocates_for_itself_is_not_the_training_s(
    allocator: PlayedAllocator,
) -> None:
    memory = DevicePeak()
    observe(memory, allocator, trained=100, scratch=60)
    assert memory.read(DEVICES) == 100
    assert allocator.peak == 160


def test_a_later_and_larger_peak_of_the_training_counts(allocator: PlayedAllocator) -> None:
    memory = DevicePeak()
    observe(memory, allocator, trained=100, scratch=60)
    allocator.hold(200)
    observe(memory, allocator, trained=90, scratch=160)
    assert memory.read(DEVICES) == 200


def test_a_peak_in_the_shadow_of_the_harness_s_is_told_by_what_is_held(
    allocator: PlayedAllocator,
) -> None:
    memory = DevicePeak()
    observe(memory, allocator, trained=100, scratch=60)
    allocator.hold(130)
    assert memory.read(DEVICES) == 130
    observe(memory, allocator, trained=50, scratch=0)
    assert memory.read(DEVICES) >= 100


def test_without_a_device_there_is_none() -> None:
    assert DevicePeak().read(()) == 0
