"""The determinism switches by name: what strict mode turns on, and what may be turned off alone."""

from __future__ import annotations

from enum import StrEnum


class Knob(StrEnum):
    """A switch of the launcher or the guest; together they are strict mode."""

    DETERMINISTIC_ALGORITHMS = "deterministic_algorithms"
    CUDNN_DETERMINISTIC = "cudnn_deterministic"
    CUDNN_BENCHMARK_OFF = "cudnn_benchmark_off"
    CUBLAS_WORKSPACE = "cublas_workspace"
    INDUCTOR_DETERMINISTIC = "inductor_deterministic"
    FLASH_ATTENTION = "flash_attention"
    TRANSFORMER_ENGINE = "transformer_engine"
    FILL = "fill_uninitialized_memory"


KnobSet = frozenset[Knob]
NO_KNOBS: KnobSet = frozenset()
ALL_KNOBS: KnobSet = frozenset(Knob)
# Filling costs time and hides reads of uninitialised memory, so it is asked for on its own.
STRICT_KNOBS: KnobSet = ALL_KNOBS - {Knob.FILL}
# These speak to libraries that run on a GPU alone; on a CPU they change nothing.
GPU_KNOBS: KnobSet = frozenset(
    {
        Knob.CUDNN_DETERMINISTIC,
        Knob.CUDNN_BENCHMARK_OFF,
        Knob.CUBLAS_WORKSPACE,
        Knob.FLASH_ATTENTION,
        Knob.TRANSFORMER_ENGINE,
    }
)


def strict_knobs(*, fill: bool) -> KnobSet:
    """What a strict run turns on, with or without filling new memory."""
    return ALL_KNOBS if fill else STRICT_KNOBS


def knob_names(knobs: KnobSet) -> tuple[str, ...]:
    """The names in the order of the table above."""
    return tuple(knob.value for knob in Knob if knob in knobs)
