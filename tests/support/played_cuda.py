"""A fake `torch.cuda` with devices that do not exist, to replace the real one in a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 1024**3


@dataclass
class PlayedCuda:
    """`names` of the devices, `peaks` what torch ever held on each, in bytes.

    `asked` lists the devices whose figures were asked for, one after the other.
    """

    names: tuple[str, ...]
    peaks: tuple[int, ...]
    current: int = 0
    backend: str = "native"
    memory_bytes: int = 80 * GIB - 5
    asked: list[int] = field(default_factory=list)
    nccl: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(version=lambda: (2, 29, 7))
    )

    def is_initialized(self) -> bool:
        return True

    def get_allocator_backend(self) -> str:
        return self.backend

    def device_count(self) -> int:
        return len(self.names)

    def current_device(self) -> int:
        return self.current

    def memory_stats(self, index: int) -> dict[str, int]:
        self.asked.append(index)
        return {"reserved_bytes.all.peak": self.peaks[index]} if self.peaks[index] else {}

    def get_device_properties(self, index: int) -> SimpleNamespace:
        return SimpleNamespace(
            name=self.names[index],
            major=9,
            minor=0,
            multi_processor_count=132,
            total_memory=self.memory_bytes,
            uuid=f"uuid-{index}",
        )
