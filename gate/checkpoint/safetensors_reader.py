"""Reads the safetensors layout without trusting a byte of it.

Layout: 8 bytes header length (little-endian), that many bytes of JSON mapping each name to `dtype`,
`shape` and `data_offsets`, then the data. Source: the format section of the safetensors README. We
are as strict as it is: the tensors cover the data without holes or overlaps, up to the last byte.
"""

from __future__ import annotations

import json
import math
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gate.codec.digests import tensor_digest
from gate.codec.documents import fault_lines
from gate.codec.strict_json import parse_json
from gate.evidence.dtypes import ELEMENT_BYTES
from gate.evidence.hostile_file import HostileFile, short_text
from gate.records.document import Document
from gate.records.evidence import TensorDigest

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_TENSORS = 200_000
MAX_NAME = 450
METADATA_KEY = "__metadata__"

Size = Annotated[int, Field(ge=0, le=2**63)]


class TensorEntry(Document):
    """What the header says of one tensor; offsets count from the start of the data."""

    dtype: str = Field(max_length=40)
    shape: Annotated[tuple[Size, ...], Field(max_length=64)]
    data_offsets: tuple[Size, Size]


ENTRIES: TypeAdapter[dict[str, TensorEntry]] = TypeAdapter(dict[str, TensorEntry])


def read_safetensors(opened: HostileFile) -> tuple[TensorDigest, ...]:
    """The digest of every tensor, in the order of its data; the file is never held whole.

    Raises `EvidenceError` (or `DocumentError` for a header that is no JSON, which
    `open_hostile` turns into one) naming the file and what is wrong with it.
    """
    data_start, entries = read_layout(opened)
    return tuple(
        tensor_digest(
            name,
            entry.dtype,
            entry.shape,
            opened.pieces(
                data_start + entry.data_offsets[0], entry.data_offsets[1] - entry.data_offsets[0]
            ),
        )
        for name, entry in entries
    )


def read_layout(opened: HostileFile) -> tuple[int, list[tuple[str, TensorEntry]]]:
    """Where the data starts, and the checked entries in the order of their data.

    Raises as `read_safetensors` does.
    """
    header_bytes = int.from_bytes(opened.read_at(0, LENGTH_BYTES), "little")
    if header_bytes > MAX_HEADER_BYTES:
        raise opened.fault(f"header of {header_bytes:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    entries = _read_entries(opened, opened.read_at(LENGTH_BYTES, header_bytes))
    data_start = LENGTH_BYTES + header_bytes
    _check_cover(opened, entries, opened.size_bytes - data_start)
    return data_start, entries


def _read_entries(opened: HostileFile, header: bytes) -> list[tuple[str, TensorEntry]]:
    """The entries sorted by place in the file; `__metadata__` is text about them and left out."""
    shown = f"{opened.shown}: header"
    value = parse_json(header, shown, max_bytes=MAX_HEADER_BYTES)
    if not isinstance(value, dict):
        raise opened.fault("header is not a JSON object")
    value.pop(METADATA_KEY, None)
    if len(value) > MAX_TENSORS:
        raise opened.fault(f"more than {MAX_TENSORS:,} tensors")
    try:
        entries = ENTRIES.validate_json(json.dumps(value))
    except ValidationError as error:
        lines = fault_lines(error, lambda _path: "")
        raise opened.fault(f"header: {short_text(lines[0])}") from error
    for name, entry in entries.items():
        _check_entry(opened, name, entry)
    return sorted(entries.items(), key=lambda item: item[1].data_offsets)


def _check_entry(opened: HostileFile, name: str, entry: TensorEntry) -> None:
    shown = f"tensor {short_text(name)}"
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise opened.fault(f"{shown}: name is empty, not printable or above {MAX_NAME} characters")
    if entry.dtype not in ELEMENT_BYTES:
        raise opened.fault(f"{shown}: unknown dtype {short_text(entry.dtype)}")
    start, end = entry.data_offsets
    if math.prod(entry.shape) * ELEMENT_BYTES[entry.dtype] != end - start:
        raise opened.fault(f"{shown}: {end - start:,} bytes do not fit its dtype and shape")


def _check_cover(
    opened: HostileFile, entries: list[tuple[str, TensorEntry]], data_bytes: int
) -> None:
    position = 0
    for name, entry in entries:
        if entry.data_offsets[0] != position:
            raise opened.fault(f"tensor {short_text(name)}: hole or overlap before its data")
        position = entry.data_offsets[1]
    if position != data_bytes:
        raise opened.fault(f"tensors cover {position:,} bytes, the file holds {data_bytes:,}")
