"""Checkpoints for tests of `diff`: safetensors files written by hand, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gate.checkpoint.formats.formats import open_state
from gate.checkpoint.leaves import ELEMENT_BYTES
from gate.comparison.state_difference import LeafDifference, NumberDifference, StateDifference
from gate.comparison.states import compare_states
from gate.system.files.files import LocalFiles

MAX_BYTES = 1024**3


class Stored(NamedTuple):
    """A tensor as it is stored in a file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def floats(*values: float, dtype: str = "F32") -> Stored:
    stored = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[dtype]
    return Stored(dtype, (len(values),), np.array(values, dtype=stored).tobytes())


def array(values: NDArray[np.float32]) -> Stored:
    return Stored("F32", values.shape, values.tobytes())


def raw(dtype: str, *elements: int) -> Stored:
    """Return a tensor whose elements are given as integers with the same bytes."""
    width = ELEMENT_BYTES[dtype]
    data = b"".join(element.to_bytes(width, "little") for element in elements)
    return Stored(dtype, (len(elements),), data)


def write_state(path: Path, **tensors: Stored) -> Path:
    header: dict[str, object] = {}
    position = 0
    for name, tensor in tensors.items():
        assert len(tensor.data) == math.prod(tensor.shape) * ELEMENT_BYTES[tensor.dtype]
        end = position + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    data = b"".join(tensor.data for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def difference_of(left: Path, right: Path, *, threads: int = 2) -> StateDifference:
    files = LocalFiles()
    with (
        open_state(files, left, left.name, max_bytes=MAX_BYTES) as ours,
        open_state(files, right, right.name, max_bytes=MAX_BYTES) as theirs,
    ):
        return compare_states(ours, theirs, threads=threads, max_bytes=MAX_BYTES)


def only(found: StateDifference) -> LeafDifference:
    assert len(found.differences) == 1
    return found.differences[0]


def numbers_of(folder: Path, left: Stored, right: Stored) -> NumberDifference:
    """Return the figures of the difference between two tensors."""
    one = write_state(folder / "left.safetensors", tensor=left)
    other = write_state(folder / "right.safetensors", tensor=right)
    numbers = only(difference_of(one, other)).numbers
    assert numbers is not None
    return numbers
