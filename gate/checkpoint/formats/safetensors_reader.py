"""Read safetensors files without trusting a byte.

Layout: the length of the header (8 bytes, little-endian); the header, which is JSON that maps each
name to `dtype`, `shape` and `data_offsets`; then the data. Source: the format section of the
safetensors README. This reader is as strict as the README: the tensors cover the data to the last
byte, without holes or overlaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

from gate.checkpoint.leaves import ELEMENT_BYTES, FileSpan, StateContent, TensorLeaf, ValueLeaf
from gate.checkpoint.state_tree import text_part
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import short_text

LENGTH_BYTES = 8
# Below the 100,000,000 bytes of the reference reader, because the header becomes Python objects
# here.
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_TENSORS = 200_000
MAX_NAME = 450
METADATA_KEY = "__metadata__"
# what the harness writes to the metadata, see docs/digest.md
NAMES_KEY, PATHS = "repro_gate_names", "paths"
MAX_DIMENSIONS = 64
MAX_SIZE = 2**63
HALF_BYTES = "F4"

FORMAT = "safetensors"
EMPTY_MAP = ValueLeaf("", "empty map", b"")
FIELD_NAMES = ("dtype", "shape", "data_offsets")
_FIELDS = itemgetter(*FIELD_NAMES)


class TensorEntry(NamedTuple):
    """What the header says about one tensor; offsets count from the start of the data."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class Layout(NamedTuple):
    """The start of the data, and the checked entries in the order of their data.

    `names_are_paths` is true if the header says that the names are paths of this library, as in the
    states that the gate captures. In every other file a name is a single key.
    """

    data_start: int
    entries: list[tuple[str, TensorEntry]]
    names_are_paths: bool


def read_safetensors(
    opened: UntrustedFile, path_of: Callable[[str], str] | None = None
) -> StateContent:
    """Return every tensor as a leaf of a flat map; `path_of` turns a name into a path.

    Without `path_of` the header decides whether a name is a path or a key.

    Raises `EvidenceError` naming the file and what is wrong with it. Raises `DocumentError` for a
    header that is not JSON, which `open_untrusted` turns into an `EvidenceError`.
    """
    data_start, entries, names_are_paths = read_layout(opened)
    path = path_of or (as_path if names_are_paths else text_part)
    tensors = tuple(
        TensorLeaf(
            path(name),
            entry.dtype,
            entry.shape,
            FileSpan(
                opened,
                data_start + entry.data_offsets[0],
                entry.data_offsets[1] - entry.data_offsets[0],
            ),
        )
        for name, entry in entries
    )
    return StateContent(shown=opened.shown, format=FORMAT, leaves=tensors or (EMPTY_MAP,))


def as_path(name: str) -> str:
    """Return the path for a name that is a path without its first slash."""
    return f"/{name}"


def read_layout(opened: UntrustedFile) -> Layout:
    """Return the checked header; raises the errors of `read_safetensors`."""
    header_bytes = int.from_bytes(opened.read_at(0, LENGTH_BYTES), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise opened.fault(f"header of {header_bytes:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    shown = f"{opened.shown}: header"
    header = opened.read_at(LENGTH_BYTES, header_bytes)
    value = parse_json(header, shown, max_bytes=MAX_HEADER_BYTES)
    if not isinstance(value, dict):
        raise opened.fault("header is not a JSON object")
    # free text about the tensors; only the meaning of names counts
    about = value.pop(METADATA_KEY, {})
    if not isinstance(about, dict) or not all(isinstance(text, str) for text in about.values()):
        # the format's own readers refuse it too
        raise opened.fault(f"{METADATA_KEY} of the header is not a map of texts")
    entries = _read_entries(opened, value)
    data_start = LENGTH_BYTES + header_bytes
    _check_cover(opened, entries, opened.size_bytes - data_start)
    named = about.get(NAMES_KEY) == PATHS
    if named:
        _check_paths(opened, entries)
    return Layout(data_start, entries, named)


def _check_paths(opened: UntrustedFile, entries: list[tuple[str, TensorEntry]]) -> None:
    """Refuse a name without a slash if names are paths.

    A loader does not know about paths: for it, `a~1b` is a different tensor than `a/b`. A name that
    is a single key could therefore stand for the name in another file.
    """
    for name, _ in entries:
        if "/" not in name:
            raise opened.fault(
                f"tensor {short_text(name)}: is no path of a state that the gate captured, and "
                f"the header says {NAMES_KEY}: {PATHS}"
            )


def _read_entries(opened: UntrustedFile, value: dict[str, object]) -> list[tuple[str, TensorEntry]]:
    """Return the entries sorted by their place in the file."""
    if len(value) > MAX_TENSORS:
        raise opened.fault(f"more than {MAX_TENSORS:,} tensors")
    entries = [(name, _read_entry(opened, name, entry)) for name, entry in value.items()]
    return sorted(entries, key=_offsets)


def _read_entry(opened: UntrustedFile, name: str, entry: object) -> TensorEntry:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        problem = f"name is empty, not printable or above {MAX_NAME} characters"
        raise opened.fault(f"tensor {short_text(name)}: {problem}")
    # unpacked by hand: a `match` statement would take as long as the rest of a small tensor
    fields = entry if isinstance(entry, dict) else {}
    try:
        dtype, shape, (start, end) = _FIELDS(fields)
    except (KeyError, TypeError, ValueError):
        dtype = shape = start = end = None
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise opened.fault(f"tensor {short_text(name)}: needs dtype, shape and data_offsets")
    if dtype == HALF_BYTES and shape and _sizes((shape[-1],)) and shape[-1] % 2 == 0:
        # a byte has two 4-bit numbers; count bytes, as torch does
        dtype, shape = "F4_X2", [*shape[:-1], shape[-1] // 2]
    problem = ""
    if len(fields) != len(FIELD_NAMES):
        problem = "has more than dtype, shape and data_offsets"
    elif not _sizes((*shape, start, end)) or len(shape) > MAX_DIMENSIONS:
        problem = "shape and data_offsets must be sizes from 0"
    elif dtype not in ELEMENT_BYTES:
        problem = f"unknown dtype {short_text(dtype)}"
    # Python's product cannot overflow. Readers with 64-bit integers need a check here.
    elif math.prod(shape) * ELEMENT_BYTES[dtype] != end - start:
        problem = f"{end - start:,} bytes do not fit its dtype and shape"
    if problem:
        raise opened.fault(f"tensor {short_text(name)}: {problem}")
    return TensorEntry(dtype, tuple(shape), (start, end))


def _offsets(item: tuple[str, TensorEntry]) -> tuple[int, int]:
    return item[1][2]


def _sizes(values: tuple[Any, ...]) -> bool:
    # `bool` is a subclass of `int`, and not a size
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < MAX_SIZE


def _check_cover(
    opened: UntrustedFile, entries: list[tuple[str, TensorEntry]], data_bytes: int
) -> None:
    position = 0
    for name, entry in entries:
        # The format forbids holes so that a file cannot be a file of another format too (README,
        # Format).
        if entry.data_offsets[0] != position:
            raise opened.fault(f"tensor {short_text(name)}: hole or overlap before its data")
        position = entry.data_offsets[1]
    if position != data_bytes:
        raise opened.fault(f"tensors cover {position:,} bytes, the file holds {data_bytes:,}")
