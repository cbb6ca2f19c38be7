"""Writes the safetensors layout, tensor by tensor, so that no second copy of the state is held.

The layout: 8 bytes little-endian header length; a JSON header that gives each name its `dtype`,
`shape` and `data_offsets` from the header's end; then the raw little-endian bytes without gaps.
Here names are sorted and the header is padded with spaces to a multiple of 8; its `__metadata__`
says that a name is a path with slashes, where other files have one key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import torch

from .plain_bytes import SAFETENSORS_TYPES, UnsupportedTensorError, byte_size, use_bytes
from .plain_tensors import plain_parts

Tensors = Mapping[str, torch.Tensor]


def write_safetensors(path: Path, tensors: Tensors, on_left_out: Callable[[str], None]) -> None:
    """Write the file, whole or not at all.

    A tensor that others make up is written as those, each under its path below the name. What
    cannot be read is left out and told to `on_left_out`. Raises `OSError` when the file cannot be
    written.
    """
    kept = _readable(tensors, on_left_out)
    temporary = path.with_name(f"{path.name}.part")
    try:
        with temporary.open("wb") as file:
            _write(file, kept)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # half a file would keep a full disk full


def _readable(tensors: Tensors, on_left_out: Callable[[str], None]) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = {}
    for name in sorted(tensors):
        try:
            parts = plain_parts(tensors[name])
        except UnsupportedTensorError as error:
            on_left_out(f"{name} is left out of the state: {error}")
            continue
        for below, part in parts:
            if kept.setdefault(f"{name}{below}", part) is not part:
                on_left_out(f"{name}{below} is the name of two values, the second is left out")
    return dict(sorted(kept.items()))


def _write(file: BinaryIO, tensors: Tensors) -> None:
    header = _header(tensors)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for tensor in tensors.values():
        use_bytes(tensor, file.write)


def _header(tensors: Tensors) -> bytes:
    entries: dict[str, dict[str, object]] = {"__metadata__": {"repro_gate_names": "paths"}}
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
