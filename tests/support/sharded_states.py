"""Weights in shards with an index, and the same in one file."""

from __future__ import annotations

import json
from pathlib import Path

from harness_folder import safetensors_bytes

TENSORS = {"a.w": ("F32", [2], b"12345678"), "b": ("U8", [3], b"abc"), "c": ("I8", [], b"x")}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def whole(folder: Path) -> Path:
    path = folder / "whole.safetensors"
    path.write_bytes(safetensors_bytes(TENSORS))
    return path


def sharded(folder: Path, name: str = "shards") -> Path:
    path = folder / name
    path.mkdir()
    (path / FIRST).write_bytes(safetensors_bytes({"a.w": TENSORS["a.w"]}))
    (path / SECOND).write_bytes(safetensors_bytes({"b": TENSORS["b"], "c": TENSORS["c"]}))
    index(path, {"a.w": FIRST, "b": SECOND, "c": SECOND})
    return path


def index(folder: Path, places: object) -> None:
    told = {"metadata": {"total_size": 12}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(told, indent=2))
