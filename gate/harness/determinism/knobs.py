"""The knobs that are set inside the process: what each mode asks for, how to set and read them.

The gate has the same table with sources and checks (gate/settings/knobs.py); it cannot
be imported here, and a test ties the two together.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from ..settings import ON, HarnessSettings

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
    "memory_fill": _flag(
        OFF,
        lambda: _new_memory.fill_uninitialized_memory,
        _C._set_deterministic_fill_uninitialized_memory,  # noqa: SLF001 - see above
    ),
    "cudnn_deterministic": _flag(ON, _C._get_cudnn_deterministic, _C._set_cudnn_deterministic),  # noqa: SLF001 - see above
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
    "reduced_fp16": _attribute(KEEP, _matmul, "allow_fp16_reduced_precision_reduction"),
    "reduced_bf16": _attribute(KEEP, _matmul, "allow_bf16_reduced_precision_reduction"),
}


def wanted(settings: HarnessSettings) -> dict[str, str]:
    """Knob to word for every seed and switch, and knob to text for the variables given."""
    table = dict.fromkeys(SEEDS, ON)
    strict = settings.strict or settings.operator_audit
    table |= {name: row.strict if strict else KEEP for name, row in SWITCHES.items()}
    table |= settings.knobs
    if settings.warn_only and table["deterministic_algorithms"] == ON:
        # where the harness itself counts or refuses, torch is to tell and not to raise
        table["deterministic_algorithms"] = WARN
    return table
