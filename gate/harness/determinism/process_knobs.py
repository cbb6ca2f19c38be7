"""The knobs of this process: what each mode asks for, how to set it and read it back.

The gate has the same table with sources and checks (gate/settings/knobs.py). That module cannot be
imported here, so a test compares the two.
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

# Parts of torch without type annotations, under untyped names.
_C: Final[Any] = torch._C  # noqa: SLF001 - the public setters import the compiler, which takes seconds
_cudnn: Final[Any] = torch.backends.cudnn
_matmul: Final[Any] = torch.backends.cuda.matmul
_new_memory: Final[Any] = torch.utils.deterministic

SEEDS = ("seed_python", "seed_numpy", "seed_torch", "seed_cuda", "seed_workers")


class Switch(NamedTuple):
    """A switch of torch: its value in strict mode, and how to read and set it, all as words."""

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
    """Return the switch for TF32, set by `owner`'s old flag and read by the new names of `parts`.

    Setting the old flag sets the new names too. After setting a new name, torch raises whenever the
    old flag is read, which `torch.backends.cudnn.flags` and inductor do.
    """

    def put(word: str) -> None:
        # some versions of torch warn once here, recommending the new names
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            owner.allow_tf32 = word == TF32

    def read() -> str:
        words = dict.fromkeys(_precision_word(part.fp32_precision) for part in parts)
        return "+".join(words)

    return Switch(KEEP, read, put)


def _precision_word(precision: str) -> str:
    """Return `ieee` for a setting that is unset at every level: then torch uses full float32."""
    return IEEE if precision == UNSET else precision


def _read_algorithms() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return OFF
    return WARN if torch.is_deterministic_algorithms_warn_only_enabled() else ON


_set_algorithms: Final[Callable[..., None]] = _C._set_deterministic_algorithms  # noqa: SLF001 - see above


def _put_algorithms(word: str) -> None:
    _set_algorithms(word != OFF, warn_only=word == WARN)


# The C functions are taken before they are hooked, so that the harness's own setting is not
# reported as the script's.
SWITCHES: Final = {
    "deterministic_algorithms": Switch(ON, _read_algorithms, _put_algorithms),
    # With deterministic algorithms torch fills new memory. That would hide a read of uninitialised
    # memory, which is a fault that the gate should find (torch.utils.deterministic).
    "memory_fill": _flag(
        OFF,
        lambda: _new_memory.fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,  # noqa: SLF001 - see above
    ),
    # only algorithms that cuDNN itself calls deterministic (PyTorch, Reproducibility)
    "cudnn_deterministic": _flag(ON, _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),  # noqa: SLF001 - see above
    # benchmarking times the algorithms and takes the fastest, so the clock decides
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
    # Precision changes a result but not whether it repeats: recorded, and left to the user.
    "reduced_fp16": _attribute(KEEP, _matmul, "allow_fp16_reduced_precision_reduction"),
    "reduced_bf16": _attribute(KEEP, _matmul, "allow_bf16_reduced_precision_reduction"),
}


def requested(settings: HarnessSettings) -> dict[str, str]:
    """Return the value of each seed, switch and given variable, by knob."""
    table = dict.fromkeys(SEEDS, ON)
    strict = settings.strict or settings.operator_audit
    table |= {name: row.strict if strict else KEEP for name, row in SWITCHES.items()}
    table |= settings.knobs
    if settings.warn_only and table["deterministic_algorithms"] == ON:
        # the harness counts or refuses operators itself, so torch must warn and not raise
        table["deterministic_algorithms"] = WARN
    return table


Readings = dict[str, str]

_backends: Final[Any] = torch.backends


def apply(settings: HarnessSettings, problems: Problems) -> None:
    """Seed torch, set its threads and every switch with a value of its own."""
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
    # `torch.manual_seed` seeds every device too; before CUDA has started, it does so at the start
    if torch_too and cuda_too:
        torch.manual_seed(seed)
    elif torch_too:
        torch.default_generator.manual_seed(seed)
    elif cuda_too:
        torch.cuda.manual_seed_all(seed)


def read_back(problems: Problems) -> Readings:
    """Return every setting as torch reports it now, including those that the harness never sets.

    After old and new names of a setting were mixed, torch refuses some readings. The text then says
    so.
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
    """Return the knobs' variables as they are in this process."""
    return {name: os.environ[name][:200] for name in VARIABLES.values() if name in os.environ}


def not_as_asked(settings: HarnessSettings, readings: Readings) -> list[str]:
    """Return one sentence for each setting that differs from what was asked for."""
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
    """Return CUDA's seed; a seed given before CUDA starts takes effect only at its start."""
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
