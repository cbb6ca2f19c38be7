"""The knobs with a cost: what strict mode turns on, and what may be removed alone."""

from __future__ import annotations

from enum import StrEnum

from gate.settings.knobs import KEEP, OFF, ON


class PricedKnob(StrEnum):
    """A knob that strict mode sets; the value is the name shown."""

    DETERMINISTIC_ALGORITHMS = "deterministic_algorithms"
    CUDNN_DETERMINISTIC = "cudnn_deterministic"
    CUDNN_BENCHMARK_OFF = "cudnn_benchmark_off"
    CUBLAS_WORKSPACE = "cublas_workspace"
    INDUCTOR_DETERMINISTIC = "inductor_deterministic"
    FLASH_ATTENTION = "flash_attention"
    TRANSFORMER_ENGINE = "transformer_engine"
    FILL = "fill_uninitialized_memory"


KnobSet = frozenset[PricedKnob]
NO_KNOBS: KnobSet = frozenset()
ALL_KNOBS: KnobSet = frozenset(PricedKnob)
# Filling costs time and hides reads of uninitialised memory, so it is asked for on its own.
STRICT_KNOBS: KnobSet = ALL_KNOBS - {PricedKnob.FILL}
# These speak to libraries that run on a GPU alone; on a CPU they change nothing.
GPU_KNOBS: KnobSet = frozenset(
    {
        PricedKnob.CUDNN_DETERMINISTIC,
        PricedKnob.CUDNN_BENCHMARK_OFF,
        PricedKnob.CUBLAS_WORKSPACE,
        PricedKnob.FLASH_ATTENTION,
        PricedKnob.TRANSFORMER_ENGINE,
    }
)


def strict_knobs(*, fill: bool) -> KnobSet:
    """What a strict run turns on, with or without filling new memory."""
    return ALL_KNOBS if fill else STRICT_KNOBS


def knob_names(knobs: KnobSet) -> tuple[str, ...]:
    """The names in the order of the table above."""
    return tuple(knob.value for knob in PricedKnob if knob in knobs)


# The knob of the table behind each, its word when it is in the set, and when it is not.
_WORDS = {
    PricedKnob.CUDNN_BENCHMARK_OFF: ("cudnn_benchmark", OFF, KEEP),
    PricedKnob.FILL: ("memory_fill", ON, OFF),
}


def priced_words(knobs: KnobSet) -> dict[str, str]:
    """Words of the table of knobs for a run with this set, knob to word."""
    rows = ((*_WORDS.get(knob, (knob.value, ON, KEEP)), knob in knobs) for knob in PricedKnob)
    return {name: inside if there else outside for name, inside, outside, there in rows}
