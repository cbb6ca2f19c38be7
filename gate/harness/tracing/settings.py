"""Settings of torch's that decide what an operator computes of equal inputs, and what it draws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch


def settings_now() -> dict[str, str]:
    """By the name that a report shows; what this torch cannot tell is left out."""
    return {name: word for name, asked in _ASKED.items() if (word := _word(asked))}


def generator_state(args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """A digest of the state that a call will draw from; empty where that cannot be told."""
    try:
        given = (*args, *named.values())
        own = next((one for one in given if isinstance(one, torch.Generator)), None)
        state = (own or _common(given, named)).get_state()
        return hashlib.sha256(bytes(state.untyped_storage())).hexdigest()[:16]
    except Exception:
        return ""


def _common(given: tuple[Any, ...], named: Mapping[str, Any]) -> torch.Generator:
    """The generator of the device that the call works on."""
    tensor = next((one for one in given if isinstance(one, torch.Tensor)), None)
    device: Any = torch.device(
        named.get("device") or (tensor.device if tensor is not None else "cpu")
    )
    if device.type == "cpu":
        return torch.default_generator
    generators = torch.get_device_module(device).default_generators
    index = torch.get_device_module(device).current_device()
    found: torch.Generator = generators[index if device.index is None else device.index]
    return found


def _word(asked: Any) -> str:
    try:
        value = asked()
    except Exception:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)[:100]


_TINY = 5e-324


def _flushes_denormals() -> bool:
    """Whether numbers below the normal range become zero in this thread."""
    return _TINY * 1.0 == 0.0


# what is asked for at every call: each is a look at a variable of torch's
_ASKED: dict[str, Any] = {
    "threads": torch.get_num_threads,
    "cpu_capability": torch.backends.cpu.get_cpu_capability,
    "mkldnn": torch._C._get_mkldnn_enabled,  # noqa: SLF001 - its public name is a property of a module
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "fp32_matmul_precision": torch.get_float32_matmul_precision,
    "cudnn": torch._C._get_cudnn_enabled,  # noqa: SLF001 - as above
    "cudnn_benchmark": torch._C._get_cudnn_benchmark,  # noqa: SLF001 - as above
    "cudnn_deterministic": torch._C._get_cudnn_deterministic,  # noqa: SLF001 - as above
    "flush_denormal": _flushes_denormals,
    "torch": lambda: torch.__version__,
}
