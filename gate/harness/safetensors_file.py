"""Writes the safetensors layout, tensor by tensor, so that no second copy of the state is held.

The layout: 8 bytes little-endian header length; a JSON header that gives each name its `dtype`,
`shape` and `data_offsets` from the header's end; then the raw little-endian bytes without gaps.
Here names are sorted and the header is padded with spaces to a multiple of 8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from .tensor_bytes import SAFETENSORS_TYPES, UnsupportedTensorError, byte_size, local, use_bytes

Tensors = Mapping[str, torch.Tensor]


def write_safetensors(path: Path, tensors: Tensors, on_problem: Callable[[str], None]) -> None:
    """Write the file, whole or not at all; a tensor that the layout cannot hold is left out.

    What is left out is told to `on_problem`. Raises `OSError` when the file cannot be written.
    """
    kept = _supported(tensors, on_problem)
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            _write(file, kept)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # half a file would keep a full disk full


def _supported(tensors: Tensors, on_problem: Callable[[str], None]) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    for name in sorted(tensors):
        try:
            kept[name] = _with_named_type(local(tensors[name]))
        except UnsupportedTensorError as error:
            on_problem(f"{name} is left out of the state: {error}")
    return kept


def _with_named_type(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in SAFETENSORS_TYPES:
        raise UnsupportedTensorError(f"{tensor.dtype} has no name in this layout")
    return tensor


def _write(file: BinaryIO, tensors: Tensors) -> None:
    header = _header(tensors)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for tensor in tensors.values():
        use_bytes(tensor, file.write)


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, dict[str, object]] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + byte_size(tensor)
        entries[name] = {
            "dtype": SAFETENSORS_TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    return text + b" " * (-len(text) % 8)
