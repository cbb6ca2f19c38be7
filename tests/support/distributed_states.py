"""Folders of `torch.distributed.checkpoint` for tests: real ones, and ones with broken metadata."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save

Offsets = tuple[int, ...]


def saved(folder: Path, state: dict[str, object], name: str = "dcp") -> Path:
    """Save a state with `torch.distributed.checkpoint` from one process; return the folder."""
    with warnings.catch_warnings():
        # torch warns that no other ranks take part
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=folder / name)
    return folder / name


def in_chunks(
    folder: Path, tensor: torch.Tensor, boxes: list[tuple[Offsets, Offsets]], name: str = "dcp"
) -> Path:
    """Save one tensor as many ranks would: each box (offsets, sizes) in a separate file."""
    path = folder / name
    path.mkdir()
    chunks, places = [], {}
    for number, (offsets, sizes) in enumerate(boxes):
        part = tensor[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))]
        data = io.BytesIO()
        torch.save(part.clone(), data)
        shard = f"__{number}_0.distcp"
        (path / shard).write_bytes(b"before" + data.getvalue() + b"after")
        chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
        info = _StorageInfo(shard, len(b"before"), len(data.getvalue()))
        places[MetadataIndex("w", torch.Size(offsets))] = info
    properties = TensorProperties(dtype=tensor.dtype)
    told = Metadata(
        {"w": TensorStorageMetadata(properties, tensor.size(), chunks)}, storage_data=places
    )
    (path / ".metadata").write_bytes(pickle.dumps(told))
    return path


def altered(folder: Path, change: Callable[[Metadata], None]) -> Path:
    """Apply `change` to the folder's metadata, and return the folder."""
    told = pickle.loads((folder / ".metadata").read_bytes())  # noqa: S301 - written above
    change(told)
    (folder / ".metadata").write_bytes(pickle.dumps(told))
    return folder
