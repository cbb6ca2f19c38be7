"""Variables beside the knobs under which a library computes or chooses in another way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ..settings import VARIABLES

NAMES: Final = frozenset(
    (
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "PYTORCH_ALLOC_CONF",
        "PYTORCH_CUDA_ALLOC_CONF",
        "DISABLE_ADDMM_CUDA_LT",
        "CUDA_FORCE_PTX_JIT",
    )
)
PREFIXES: Final = (
    *("NCCL_", "CUBLAS", "CUDNN_", "TORCH_CUDNN_", "TORCH_BLAS_", "TORCH_LINALG_"),
    *("ONEDNN_", "DNNL_", "MKL_", "ATEN_CPU_"),
)
# what only says how much is printed
TALK: Final = ("DEBUG", "LOG", "VERBOSE", "_INFO")
# which card a number means: told, but no other environment, since the device's own name is one
PLACES: Final = (
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
)
MAX_TEXT: Final = 200
AT_START: Final = Path("/proc/self/environ")


def chosen(environ: Mapping[str, str]) -> dict[str, str]:
    """Those of these variables that may move a result, by name; knobs are told as knobs."""
    knobs = set(VARIABLES.values())
    return {
        name: text
        for name, text in sorted(environ.items())
        if (name in NAMES or name.startswith(PREFIXES))
        and name not in knobs
        and not any(word in name for word in TALK)
    }


def attested() -> dict[str, str]:
    """All of them as this process has them now, and which devices it was let see."""
    places = {name: os.environ[name] for name in PLACES if name in os.environ}
    return {name: text[:MAX_TEXT] for name, text in {**chosen(os.environ), **places}.items()}


def at_start(source: Path = AT_START) -> dict[str, str]:
    """Every variable that the process was started with; as they are now where none can tell."""
    try:
        pairs = source.read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return dict(os.environ)
    return {name: text for name, _, text in (pair.partition("=") for pair in pairs) if name}


def started_with(source: Path = AT_START) -> str:
    """`NAME=value` of those that the process was started with, or a digest of what is too long.

    Not as they are now: what the script sets is its code, and no other machine.
    """
    found = chosen(at_start(source))
    text = "; ".join(f"{name}={value}" for name, value in found.items())
    if len(text) <= MAX_TEXT:
        return text
    return f"{len(found)} variables, SHA-256 {hashlib.sha256(text.encode()).hexdigest()}"
