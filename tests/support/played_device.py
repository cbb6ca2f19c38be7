"""A simulated GPU: a queue of work with a timeline of its own, beside the host's.

The host's clock only moves when a test lets the host work or wait. So every time that the harness
reports is known beforehand, independent of the machine's speed.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from gate.harness import cuda
from gate.harness.recording import recorder, time_and_memory

DEVICE = torch.device("cuda:1")


class PlayedDevice:
    """`host_seconds` is the host's clock; the device is busy until `busy_until`.

    `waits` counts how often the host was really blocked by the device.
    """

    def __init__(self) -> None:
        self.host_seconds = 0.0
        self.busy_until = 0.0
        self.waits = 0
        self.capturing = False
        self.sync_debug_mode = 0
        self.asked: set[torch.device] = set()

    def work(self, seconds: float) -> None:
        """Let the host compute, or read data, for this long."""
        self.host_seconds += seconds

    def launch(self, seconds: float) -> None:
        """Queue work on the device that takes this long."""
        self.busy_until = max(self.busy_until, self.host_seconds) + seconds

    def wait_until(self, moment: float) -> None:
        """Block the host until the device reaches this moment."""
        assert not self.capturing, "waiting spoils a capture"
        assert not self.sync_debug_mode, "the script forbids waiting"
        self.waits += moment > self.host_seconds
        self.host_seconds = max(self.host_seconds, moment)

    def synchronize(self, device: torch.device) -> None:
        """As torch.cuda.synchronize."""
        self.asked.add(device)
        self.wait_until(self.busy_until)

    def event(self, *, enable_timing: bool) -> PlayedEvent:
        """As torch.cuda.Event."""
        assert enable_timing
        return PlayedEvent(self)

    def stream(self, device: torch.device) -> str:
        """As torch.cuda.current_stream."""
        self.asked.add(device)
        return "the current one"

    def bytes_on(self, device: torch.device) -> int:
        """As torch.cuda.memory_allocated."""
        self.asked.add(device)
        return 1000

    def play(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Replace torch.cuda, and report this device for every optimizer's parameters."""
        monkeypatch.setattr(
            cuda,
            "_cuda",
            SimpleNamespace(
                is_initialized=lambda: True,
                is_current_stream_capturing=lambda: self.capturing,
                Event=self.event,
                current_stream=self.stream,
                get_sync_debug_mode=lambda: self.sync_debug_mode,
                set_sync_debug_mode=self._set_sync_debug_mode,
                default_generators=(),
                _is_in_bad_fork=lambda: False,
            ),
        )
        for name, played in {
            "synchronize": self.synchronize,
            "memory_allocated": self.bytes_on,
            "max_memory_allocated": self.bytes_on,
        }.items():
            monkeypatch.setattr(torch.cuda, name, played)
        monkeypatch.setattr(cuda, "devices_of", lambda _: (DEVICE,))
        for module in (time_and_memory, recorder):
            monkeypatch.setattr(module, "perf_counter", lambda: self.host_seconds)

    def _set_sync_debug_mode(self, mode: int) -> None:
        self.sync_debug_mode = mode


class PlayedEvent:
    """A moment on the device's timeline."""

    def __init__(self, device: PlayedDevice) -> None:
        self._device = device
        self.seconds = 0.0

    def record(self, stream: str) -> None:
        """Set the event to the end of the work that is queued now."""
        assert stream == "the current one"
        self.seconds = max(self._device.busy_until, self._device.host_seconds)

    def query(self) -> bool:
        """Return whether the device has passed the event."""
        return self.seconds <= self._device.host_seconds

    def synchronize(self) -> None:
        """Block the host until the device has passed the event."""
        self._device.wait_until(self.seconds)

    def elapsed_time(self, later: PlayedEvent) -> float:
        """Return milliseconds between two events; like torch, refuse events not yet passed."""
        assert self.query()
        assert later.query()
        return (later.seconds - self.seconds) * 1000
