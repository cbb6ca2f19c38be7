"""Sets the knobs of this process, reads them back, says what did not take effect."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import torch

from .. import harness_cuda
from ..output import Problems
from ..settings import ON, VARIABLES, HarnessSettings
from ..this_process import is_worker
from .knobs import KEEP, SWITCHES, wanted

Readings = dict[str, str]

_backends: Final[Any] = torch.backends


def apply(settings: HarnessSettings, problems: Problems) -> None:
    """Seed torch, set its threads, and every switch that has a word of its own."""
    knobs = wanted(settings)
    if knobs["seed_workers"] == ON or not is_worker():
        with problems.noting("seeding torch"):
            _seed(settings.seed, torch_too=knobs["seed_torch"] == ON, cuda_too=_on(knobs))
    with problems.noting("setting torch's threads"):
        torch.set_num_threads(settings.threads)
    for name, switch in SWITCHES.items():
        if knobs[name] != KEEP:
            with problems.noting(f"setting {name}"):
                switch.set(knobs[name])


def _on(knobs: Readings) -> bool:
    return knobs["seed_cuda"] == ON


def _seed(seed: int, *, torch_too: bool, cuda_too: bool) -> None:
    if torch_too and cuda_too:
        torch.manual_seed(seed)
    elif torch_too:
        torch.default_generator.manual_seed(seed)
    elif cuda_too:
        torch.cuda.manual_seed_all(seed)


def read_back(problems: Problems) -> Readings:
    """Every setting as torch reports it now, including those that the harness never sets.

    Torch refuses some readings after old and new names of a setting were mixed: told as such.
    """
    readings: Readings = {}
    readers = {name: switch.read for name, switch in SWITCHES.items()} | _READERS
    with problems.noting("reading torch's settings"):
        for name, read in readers.items():
            try:
                readings[name] = read()[:200]
            except RuntimeError as error:
                readings[name] = f"unreadable: {error}"[:200]
    return readings


def variables() -> Readings:
    """The knobs' variables as this process has them."""
    return {name: os.environ[name][:200] for name in VARIABLES.values() if name in os.environ}


def not_as_asked(settings: HarnessSettings, readings: Readings) -> list[str]:
    """One sentence for each reading that is not what was asked for."""
    knobs = wanted(settings)
    asked = {name: knobs[name] for name in SWITCHES if knobs[name] != KEEP}
    asked["threads"] = str(settings.threads)
    seeded = knobs["seed_workers"] == ON or not is_worker()
    if seeded and knobs["seed_torch"] == ON:
        asked["seed_torch"] = str(settings.seed)
    return [
        f"{name} is {readings.get(name, 'unknown')}, asked for was {value}"
        for name, value in asked.items()
        if readings.get(name) != value
    ]


def seed_of_cuda() -> str:
    """A seed given before CUDA starts waits for its start."""
    return str(torch.cuda.initial_seed()) if harness_cuda.in_use() else "CUDA not started"


_READERS: Final[dict[str, Callable[[], str]]] = {
    "seed_torch": lambda: str(torch.initial_seed()),
    "seed_cuda": seed_of_cuda,
    "threads": lambda: str(torch.get_num_threads()),
    "interop_threads": lambda: str(torch.get_num_interop_threads()),
    "fp32_conv": lambda: str(_backends.cudnn.conv.fp32_precision),
    "fp32_rnn": lambda: str(_backends.cudnn.rnn.fp32_precision),
    "fp32_global": lambda: str(_backends.fp32_precision),
    "fp32_mkldnn_matmul": lambda: str(_backends.mkldnn.matmul.fp32_precision),
    "mkldnn": lambda: ON if _backends.mkldnn.enabled else "off",
    "attention_math": lambda: ON if _backends.cuda.math_sdp_enabled() else "off",
    "blas_library": lambda: str(_backends.cuda.preferred_blas_library()),
    "cpu_capability": lambda: str(_backends.cpu.get_cpu_capability()),
    "default_dtype": lambda: str(torch.get_default_dtype()),
}
