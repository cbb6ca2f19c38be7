"""Helpers for tests of `torch.save` files."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

WEIGHT = torch.arange(12, dtype=torch.float32).reshape(3, 4)


class Save(Protocol):
    """Saves a state with torch, as a training script would."""

    def __call__(self, state: object, name: str = "state.pt", protocol: int = 2) -> Path: ...


def saver(folder: Path) -> Save:
    def save(state: object, name: str = "state.pt", protocol: int = 2) -> Path:
        torch.save(state, folder / name, pickle_protocol=protocol)
        return folder / name

    return save


def row_major(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    # a clone, because `contiguous()` does not change the stride of a single element
    dense = tensor.detach().resolve_conj().clone(memory_format=torch.contiguous_format)
    flat = dense.reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
