"""The determinism switches of torch: set them, read them back, say what did not take effect.

Precision (TF32 and its like) is the user's choice and no matter of determinism: never touched.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from . import cuda
from .output import Problems
from .settings import FILL, GuestSettings

Readings = dict[str, str]

# A module with a property, which no type checker sees.
_new_memory: Final[Any] = torch.utils.deterministic


def apply(settings: GuestSettings, problems: Problems) -> None:
    """Seed torch (every device) and set its threads; in strict mode set the switches too."""
    if cuda.in_use():
        problems.note("CUDA was initialised before the guest: cuBLAS may have chosen its workspace")
    with problems.noting("seeding torch"):
        torch.manual_seed(settings.seed)
    with problems.noting("setting torch's threads"):
        torch.set_num_threads(settings.threads)
    if settings.strict or settings.census:
        with problems.noting("setting torch's determinism switches"):
            _turn_on(settings)


def _turn_on(settings: GuestSettings) -> None:
    if settings.has("deterministic_algorithms"):
        # The public call imports the compiler first, which takes seconds; this one does not.
        torch._C._set_deterministic_algorithms(True, warn_only=settings.warn_only)  # noqa: SLF001
    _new_memory.fill_uninitialized_memory = settings.has(FILL)
    if settings.has("cudnn_deterministic"):
        torch.backends.cudnn.deterministic = True
    if settings.has("cudnn_benchmark_off"):
        torch.backends.cudnn.benchmark = False


def read_back(problems: Problems) -> Readings:
    """Every setting as torch itself tells it now."""
    readings: Readings = {}
    with problems.noting("reading torch's settings"):
        readings["seed"] = str(torch.initial_seed())
        readings["threads"] = str(torch.get_num_threads())
        readings["deterministic_algorithms"] = _word(torch.are_deterministic_algorithms_enabled())
        readings["warn_only"] = _word(torch.is_deterministic_algorithms_warn_only_enabled())
        fill = _new_memory.fill_uninitialized_memory
        readings["fill_uninitialized_memory"] = _word(fill)
        readings["cudnn_deterministic"] = _word(torch.backends.cudnn.deterministic)
        readings["cudnn_benchmark"] = _word(torch.backends.cudnn.benchmark)
    return readings


def not_as_asked(settings: GuestSettings, readings: Readings) -> list[str]:
    """One sentence for each reading that is not what the mode asks for."""
    return [
        f"{name} is {readings.get(name, 'unknown')}, asked for was {value}"
        for name, value in _asked(settings).items()
        if readings.get(name) != value
    ]


def turned_back(settings: GuestSettings, readings: Readings) -> list[str]:
    """Strict switches that no longer stand at the end: the run was not all strict.

    Seeding again and another number of threads are the script's own right.
    """
    return [
        f"the script turned {name} to {readings.get(name, 'unknown')}, strict mode needs {value}"
        for name, value in _strict(settings).items()
        if readings.get(name) != value
    ]


def _asked(settings: GuestSettings) -> Readings:
    both = {"seed": str(settings.seed), "threads": str(settings.threads)}
    return both | _strict(settings)


def _strict(settings: GuestSettings) -> Readings:
    if not settings.strict:
        return {}
    asked = {FILL: _word(settings.has(FILL))}
    if settings.has("deterministic_algorithms"):
        asked |= {"deterministic_algorithms": "true", "warn_only": _word(settings.warn_only)}
    if settings.has("cudnn_deterministic"):
        asked["cudnn_deterministic"] = "true"
    if settings.has("cudnn_benchmark_off"):
        asked["cudnn_benchmark"] = "false"
    return asked


def _word(value: object) -> str:
    return "true" if value else "false"
