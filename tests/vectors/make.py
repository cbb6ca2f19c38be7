"""Writes the test vectors of docs/digest.md: small files, and the digests that they must have.

The digests in `vectors.json` do not come from the program: they are computed from the states
themselves by `tests/support/specified_digest.py`. Run it with `make vectors`.
"""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness_folder import safetensors_bytes
from plain_states import DTYPES, plain, specified_leaves, specified_roots
from specified_digest import ALGORITHM, Plain

HERE = Path(__file__).resolve().parent
SAFETENSORS = ".safetensors"


class Vector(NamedTuple):
    """A file; how it is saved follows from its name and `options` of `torch.save`."""

    file: str
    state: object
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


def values() -> dict[object, object]:
    """Every kind of value, of container and of key."""
    return {
        "none": None, "true": True, "false": False, "zero": 0, "minus": -1, "byte": 255,
        "edge": -128, "large": 2**80, "half": 0.5, "minus zero": -0.0, "infinite": float("inf"),
        "nan": float("nan"), "text": "\u00e4\U0001f600", "empty text": "", "bytes": b"\0\xff",
        "list": [1, [2.5, ("x",)]], "map": {"a/b": 1, "c~d": 2, "[0]": 3, "{1}": 4, "<2>": 5},
        "set": {3, 1, "b", "a", (2, "x")}, "sets": {frozenset({1, 2}), frozenset({0})},
        "no list": [], "no map": {}, "no set": set(), 7: "int", -7: "negative", True: "bool",
        None: "none", 2.5: "float", b"k}": "bytes", "": "empty key",
    }  # fmt: skip


def tensors_of_all_types() -> dict[str, torch.Tensor]:
    """Three elements of each dtype."""
    return {name: torch.tensor([0, 1, 3]).to(dtype) for dtype, name in DTYPES.items()}


def layouts() -> dict[str, torch.Tensor]:
    """The same numbers, lying in memory in many ways."""
    base = torch.arange(24, dtype=torch.float32)
    image = base.reshape(1, 2, 3, 4)
    return {
        "plain": base.reshape(4, 6),
        "transposed": base.reshape(6, 4).t(),
        "sliced": base.reshape(4, 6)[1:3, ::2],
        "expanded": base[:1].expand(2, 3),
        "channels_last": image.to(memory_format=torch.channels_last),
        "scalar": base[5],
        "empty": base.reshape(4, 6)[:0],
        "tied": base.reshape(4, 6),
        "parameter": torch.nn.Parameter(base[:2].clone()),
        "zeros of two signs": torch.tensor([0.0, -0.0]),
        "kinds of nan": torch.tensor([0x7FC00000, 0x7FC00001, -1], dtype=torch.int32).view(
            torch.float32
        ),
    }


def training() -> dict[str, object]:
    """What a training script saves."""
    torch.manual_seed(0)
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3) / 8
    moments = {"step": torch.tensor(3.0), "exp_avg": weight / 2, "exp_avg_sq": weight * weight}
    group = {"lr": 0.001, "betas": (0.9, 0.999), "amsgrad": False, "foreach": None, "params": [0]}
    return {
        "model": OrderedDict({"layer.weight": weight, "layer.steps": torch.tensor(3)}),
        "optimizer": {"state": {0: moments}, "param_groups": [group]},
        "lr_scheduler": {"last_epoch": 3, "_last_lr": [0.001]},
        "rng_state": torch.arange(16, dtype=torch.uint8),
        "epoch": 3,
        "best_acc1": torch.tensor(0.75),
        "args": {"lr": 0.001, "optimizer": "adamw", "seed": 0},
    }


def reversed_keys(state: dict[str, object]) -> dict[str, object]:
    """The same state with its keys in a different order."""
    return dict(reversed(state.items()))


VECTORS = (
    Vector("values.pt", values()),
    Vector("values-protocol-4.pt", values(), {"pickle_protocol": 4}),
    Vector("dtypes.pt", tensors_of_all_types()),
    Vector("dtypes.safetensors", tensors_of_all_types()),
    Vector("layouts.pt", layouts()),
    Vector("layouts.safetensors", layouts()),
    # a tensor above the size of a chunk, in a small file
    Vector("chunks.pt", {"w": torch.arange(4096).to(torch.uint8).expand(1030, 4096)}),
    Vector("training.pt", training()),
    Vector("training-reversed.pt", reversed_keys(training()), {"pickle_protocol": 5}),
    Vector("scalar.pt", 7),
)


def main(folder: Path) -> None:
    """Write the files and `vectors.json` into `folder`."""
    for vector in VECTORS:
        _save(folder / vector.file, vector)
    document = {
        "algorithm": ALGORITHM.decode(),
        "hash": "sha256",
        "vectors": [_described(vector) for vector in VECTORS],
    }
    text = json.dumps(document, indent=1, ensure_ascii=True)
    (folder / "vectors.json").write_text(f"{text}\n", "ascii")


def _save(path: Path, vector: Vector) -> None:
    if path.suffix == SAFETENSORS:
        rows = dict(_rows(vector.state))
        path.write_bytes(safetensors_bytes(rows))
    else:
        torch.save(vector.state, path, **vector.options)


def _rows(state: object) -> Iterator[tuple[str, tuple[str, list[int], bytes]]]:
    assert isinstance(state, dict)
    for name, tensor in state.items():
        found = plain(tensor)
        assert isinstance(found, Plain)
        yield name, (found.dtype, list(found.shape), found.data)


def _described(vector: Vector) -> dict[str, object]:
    leaves = {
        path: {"part": part, "leaf": digest.hex()}
        for path, (part, _, digest) in sorted(specified_leaves(vector.state).items())
    }
    return {"file": vector.file, "roots": specified_roots(vector.state), "leaves": leaves}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else HERE)
