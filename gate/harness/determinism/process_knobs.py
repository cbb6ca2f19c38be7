"""The knobs of this process: what each mode asks for, set and read back.

The gate has the same table with sources and checks (gate/settings/knobs.py); it cannot
be imported here, and a test ties the two together.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from .. import cuda
from ..output import Problems
from ..settings import ON, VARIABLES, HarnessSettings, is_worker

OFF: Final = "off"
KEEP: Final = "keep"
WARN: Final = "warn"
IEEE: Final = "ieee"
TF32: Final = "tf32"
UNSET: Final = "none"

# Untyped parts of torch, seen through untyped names.
_C: Final[Any] = torch._C  # noqa: SLF001 - the public setters import the compiler, which takes seconds
_cudnn: Final[Any] = torch.backends.cudnn
_matmul: Final[Any] = torch.backends.cuda.matmul
_new_memory: Final[Any] = torch.utils.deterministic

SEEDS = ("seed_python", "seed_numpy", "seed_torch", "seed_cuda", "seed_workers")


class Switch(NamedTuple):
    """A switch of torch: its word in strict mode, how it is read and set, both in words."""

    strict: str
    read: Callable[[], str]
    set: Callable[[str], None]


def _word(value: object) -> str:
    return ON if value else OFF


def _flag(strict: str, read: Callable[[], object], set_: Callable[[bool], object]) -> Switch:
    def put(word: str) -> None:
        set_(word == ON)

    return Switch(strict, lambda: _word(read()), put)


def _attribute(strict: str, owner: Any, name: str) -> Switch:
    return _flag(strict, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _precision(owner: Any, *parts: Any) -> Switch:
    """TF32 or not, set by the old flag of `owner` and read from the new names of its `parts`.

    The old flag sets the new names too. The other way round torch raises from then on whenever the
    old one is read, which `torch.backends.cudnn.flags` and inductor do.
    """

    def put(word: str) -> None:
        # some versions of torch ask for the new names here, once
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            owner.allow_tf32 = word == TF32

    def read() -> str:
        words = dict.fromkeys(_precision_word(part.fp32_precision) for part in parts)
        return "+".join(words)

    return Switch(KEEP, read, put)


def _precision_word(precision: str) -> str:
    """Where nothing is set, at no level, torch computes in full float32."""
    return IEEE if precision == UNSET else precision


def _read_algorithms() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return OFF
    return WARN if torch.is_deterministic_algorithms_warn_only_enabled() else ON


_set_algorithms: Final[Callable[..., None]] = _C._set_deterministic_algorithms  # noqa: SLF001 - see above


def _put_algorithms(word: str) -> None:
    _set_algorithms(word != OFF, warn_only=word == WARN)


# Bound before they are hooked, so that the harness's own setting is never taken for the user's.
SWITCHES: Final = {
    "deterministic_algorithms": Switch(ON, _read_algorithms, _put_algorithms),
    # torch fills new memory as soon as deterministic algorithms are on; that hides a read of memory
    # that nobody wrote, which is a fault to be found (torch.utils.deterministic)
    "memory_fill": _flag(
        OFF,
        lambda: _new_memory.fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,  # noqa: SLF001 - see above
    ),
    # only algorithms that cuDNN itself calls deterministic (PyTorch, Reproducibility)
    "cudnn_deterministic": _flag(ON, _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),  # noqa: SLF001 - see above
    # it times the algorithms and takes the fastest: a choice by the clock
    "cudnn_benchmark": _flag(OFF, _C._get_cudnn_benchmark, _C._set_cudnn_benchmark),  # noqa: SLF001 - see above
    "attention_cudnn": _flag(OFF, torch.backends.cuda.cudnn_sdp_enabled, _C._set_sdp_use_cudnn),  # noqa: SLF001 - see above
    "attention_flash": _flag(KEEP, torch.backends.cuda.flash_sdp_enabled, _C._set_sdp_use_flash),  # noqa: SLF001 - see above
    "attention_mem_efficient": _flag(
        KEEP,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        _C._set_sdp_use_mem_efficient,  # noqa: SLF001 - see above
    ),
    "fp32_matmul": _precision(_matmul, _matmul),
    "fp32_cudnn": _precision(_cudnn, _cudnn.conv, _cudnn.rnn),
    # precision changes a result and not whether it repeats: told, and left to the user
    "reduced_fp16": _attribute(KEEP, _matmul, "allow_fp16_reduced_precision_reduction"),
    "reduced_bf16": _attribute(KEEP, _matmul, "allow_bf16_reduced_precision_reduction"),
}


def requested(settings: HarnessSettings) -> dict[str, str]:
    """Knob to word for every seed and switch, and knob to text for the variables given."""
    table = dict.fromkeys(SEEDS, ON)
    strict = settings.strict or settings.operator_audit
    table |= {name: row.strict if strict else KEEP for name, row in SWITCHES.items()}
    table |= settings.knobs
    if settings.warn_only and table["deterministic_algorithms"] == ON:
        # where the harness itself counts or refuses, torch is to tell and not to raise
        table["deterministic_algorithms"] = WARN
    return table


Readings = dict[str, str]

_backends: Final[Any] = torch.backends


def apply(settings: HarnessSettings, problems: Problems) -> None:
    """Seed torch, set its threads, and every switch that has a word of its own."""
    knobs = requested(settings)
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
    # it seeds every device as well; before CUDA has started, that waits for the start
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
    knobs = requested(settings)
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
    return str(torch.cuda.initial_seed()) if cuda.in_use() else "CUDA not started"


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
