"""What the training's own Python says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gate.system.gpu import GpuTried


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSeen:
    """What the training's own Python says of itself, from where trainings run.

    `parts`, `packages` and `origins` are those of an environment, as a baseline keeps them; `gpus`
    the devices that torch can use, by name and memory, and `tried` what came of asking for them;
    `shm_bytes` the size of /dev/shm there, None where there is none.
    It is the training's word: printable, bounded, and nothing more.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    tried: GpuTried = field(default_factory=GpuTried)
    shm_bytes: int | None = None
    problem: str = ""
    hint: str = ""
