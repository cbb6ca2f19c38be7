"""Metrics from TensorBoard event files, without TensorBoard.

A record is its length (8 bytes, little-endian), a checksum of these, the data, a checksum of the
data. Checksums are CRC-32C (RFC 3720, appendix B.4), rotated and shifted by a constant; TensorFlow
documents both in its guide to TFRecord.

Fields by number, from TensorFlow's `event.proto`, `summary.proto` and `tensor.proto`: an event has
its step (2) and a summary (5), which has values (1); a value has a tag (1) and either a plain
float (2) or a tensor (8); a tensor has a type (1), a shape (2), and its numbers as raw bytes (4),
as floats (5) or as doubles (6).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile, open_untrusted
from gate.errors import EvidenceError, MissingOutputError
from gate.evidence.client_logs import logged_names, refuse_link_out
from gate.evidence.metric_series import SeriesCollector
from gate.evidence.run_evidence import FloatType, MetricSeries, MetricSource
from gate.system.files.port import Files
from gate.text.untrusted_text import plain_text

MAX_RECORDS = 1_000_000
# A scalar takes about a hundred bytes. Longer records (images, histograms) may contain scalars too,
# if a script merges its summaries. Their checksum is not verified, because a checksum in pure
# Python would take seconds for them.
MAX_CHECKED_BYTES = 8192
MAX_EVENT_BYTES = 16 * 1024 * 1024
HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
POLYNOMIAL: Final = 0x82F63B78
MASK_DELTA: Final = 0xA282EAD8
HINT: Final = "Close or flush the writer; a process that is killed leaves half a record."


def records(opened: UntrustedFile) -> Iterator[tuple[int, bytes]]:
    """Yield offset and data of each record that may contain scalars.

    The checksum of the data is verified for records up to `MAX_CHECKED_BYTES`. Records above
    `MAX_EVENT_BYTES` are skipped.

    Raises `EvidenceError` for a wrong checksum, a record that ends after the end of the file, or
    more than a million records.
    """
    offset = 0
    for number in range(MAX_RECORDS + 1):
        if offset == opened.size_bytes:
            return
        if number == MAX_RECORDS:
            raise opened.fault(f"more than {MAX_RECORDS:,} records", hint="Log less often.")
        place = f"the record at byte {offset}"
        if opened.size_bytes - offset < HEADER.size + FOOTER.size:
            raise opened.fault(f"{place} is truncated", hint=HINT)
        head = opened.read_at(offset, HEADER.size)
        length, checksum = HEADER.unpack(head)
        # Verify the length before it is used: all later records are found through it.
        if masked_crc(head[:8]) != checksum:
            raise opened.fault(f"{place} has a wrong length checksum", hint=HINT)
        end = offset + HEADER.size + length + FOOTER.size
        if end > opened.size_bytes:
            raise opened.fault(f"{place} is truncated", hint=HINT)
        if length <= MAX_EVENT_BYTES:
            data = opened.read_at(offset + HEADER.size, length + FOOTER.size)
            checked = length <= MAX_CHECKED_BYTES
            if checked and masked_crc(data[:length]) != FOOTER.unpack(data[length:])[0]:
                raise opened.fault(f"{place} has a wrong checksum", hint=HINT)
            yield offset, data[:length]
        offset = end


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of the bytes, as it is written in the file."""
    value = crc32c(data)
    # The CRC is rotated and shifted because the checksum of data that itself contains checksums is
    # weak. The format comes from LevelDB.
    return ((value >> 15 | value << 17) + MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        # reflected form: the bits of the polynomial are reversed, the lowest bit comes first
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_table_entry(byte) for byte in range(256))


VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
# 64 bits need ten groups of seven bits.
MAX_VARINT_BYTES = 10
# DT_FLOAT and DT_DOUBLE, each with our name, the `struct` code, and the field of the numbers
TENSOR_TYPES: Final[dict[int, tuple[FloatType, str, int]]] = {
    1: ("float32", "<f", 5),
    2: ("float64", "<d", 6),
}
SHAPE_FIELD = 2
DIMENSION_FIELD = 2
RAW_FIELD = 4
CONTINUES = 0x80
ProtobufField = tuple[int, int, int, bytes]


class MalformedEventError(EvidenceError):
    """Bytes that are not a TensorBoard event; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scalar:
    """One number of one tag at one step."""

    tag: str
    step: int
    value: float
    dtype: FloatType


def scalars(event: bytes) -> tuple[Scalar, ...]:
    """Return the scalars of an event; images, histograms, graphs and text are skipped.

    Raises `MalformedEventError` if the bytes are not an event.
    """
    step, summaries = 0, []
    for number, wire, varint, data in protobuf_fields(event):
        if (number, wire) == (2, VARINT):
            # int64 is written as 64 bits of two's complement (Protocol Buffers, Encoding)
            step = varint - (1 << 64) if varint >> 63 else varint
        elif (number, wire) == (5, BYTES):
            summaries.append(data)
    values = [
        data
        for summary in summaries
        for number, wire, _, data in protobuf_fields(summary)
        if (number, wire) == (1, BYTES)
    ]
    event_scalars = [_scalar(value, step) for value in values]
    return tuple(scalar for scalar in event_scalars if scalar is not None)


def _scalar(value: bytes, step: int) -> Scalar | None:
    tag = ""
    number_found: tuple[float, FloatType] | None = None
    for number, wire, _, data in protobuf_fields(value):
        if (number, wire) == (1, BYTES):
            tag = _text(data)
        elif (number, wire) == (2, FIXED32):
            number_found = (struct.unpack("<f", data)[0], "float32")
        elif (number, wire) == (8, BYTES):
            number_found = _tensor_scalar(data)
    if number_found is None:
        return None
    return Scalar(tag=tag, step=step, value=number_found[0], dtype=number_found[1])


def _tensor_scalar(tensor: bytes) -> tuple[float, FloatType] | None:
    """Return the only element of a float tensor without dimensions, or None for another tensor."""
    fields = list(protobuf_fields(tensor))
    kinds = [varint for number, wire, varint, _ in fields if (number, wire) == (1, VARINT)]
    # if a field occurs twice, the last one is valid (Protocol Buffers, Encoding)
    known = TENSOR_TYPES.get(kinds[-1]) if kinds else None
    has_dimensions = any(
        number == SHAPE_FIELD
        and any(inner == DIMENSION_FIELD for inner, *_ in protobuf_fields(data))
        for number, wire, _, data in fields
        if wire == BYTES
    )
    if known is None or has_dimensions:
        return None
    dtype, code, own_field = known
    numbers = b"".join(data for number, _, _, data in fields if number in {RAW_FIELD, own_field})
    if len(numbers) != struct.calcsize(code):
        return None
    return struct.unpack(code, numbers)[0], dtype


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedEventError("a tag is not UTF-8") from error


def protobuf_fields(message: bytes, *, cut: bool = False) -> Iterator[ProtobufField]:
    """Yield number, wire type and value of each field.

    The value is an integer for a varint, and bytes for any other wire type. In a message that is
    `cut`, the last field may be shorter than its length says.
    """
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _varint(message, position)
            yield number, wire, value, b""
            continue
        if wire == BYTES:
            length, position = _varint(message, position)
        elif wire in {FIXED32, FIXED64}:
            length = 4 if wire == FIXED32 else 8
        else:
            raise MalformedEventError(f"wire type {wire} is not in use")
        # The length is only a claim of the file. Python would silently return a shorter slice.
        if length > len(message) - position and not cut:
            raise MalformedEventError("a field ends beyond its message")
        yield number, wire, 0, message[position : position + length]
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the integer at a position, modulo 2**64, and the position after it."""
    value = 0
    for index, byte in enumerate(message[position : position + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if not byte & CONTINUES:
            return value & (1 << 64) - 1, position + index + 1
    raise MalformedEventError("an integer is not terminated")


EVENT_FILE = "tfevents"
MAX_FOLDERS = 500
MAX_FILES = 200
MAX_FILE_BYTES = 256 * 1024 * 1024


def tensorboard_series(
    files: Files, folder: Path, shown: str, tags: tuple[str, ...], *, required: bool = True
) -> tuple[MetricSeries, ...]:
    """Return each scalar whose tag matches one of the patterns, as `tensorboard.<folder>/<tag>`.

    The names begin below the deepest folder that contains all event files. Writers often name that
    folder by the date, which would give each run other names.

    Raises `EvidenceError` for damaged files and for a repeated step. If metrics are `required`,
    raises `MissingOutputError` if there is no event file or no matching scalar.
    """
    event_files = _event_files(files, folder, shown)
    if not event_files and not required:
        return ()
    if not event_files:
        raise MissingOutputError(
            f"{shown}: the script wrote no TensorBoard event file there",
            hint="Check train.metrics.tensorboard; the path is relative to train.workdir.",
        )
    common = _common_folder([path.parent for path in event_files])
    collector = SeriesCollector(MetricSource.TENSORBOARD, shown)
    for path in event_files:
        below = path.parent.relative_to(common).as_posix()
        prefix = "" if below == "." else f"{below}/"
        name = plain_text(f"{shown}/{path}")
        with open_untrusted(files, folder / path, name, max_bytes=MAX_FILE_BYTES) as opened:
            for scalar, where in _scalars(opened):
                tag = f"{prefix}{scalar.tag}"
                # `fnmatch` ignores case on some operating systems; `fnmatchcase` never does
                if any(fnmatchcase(tag, pattern) for pattern in tags):
                    dtype = scalar.dtype
                    collector.add(
                        f"tensorboard.{tag}", scalar.step, scalar.value, dtype=dtype, where=where
                    )
    series = collector.series()
    if required and not series:
        raise MissingOutputError(
            f"{shown}: no scalar there matches train.metrics.tensorboard_tags",
            hint="Compare the patterns with the tags that the script logs, and flush its writer.",
        )
    return series


def _scalars(opened: UntrustedFile) -> Iterator[tuple[Scalar, str]]:
    for offset, data in records(opened):
        where = f"the record at byte {offset}"
        try:
            for scalar in scalars(data):
                yield scalar, where
        except MalformedEventError as error:
            raise opened.fault(f"{where} is not an event: {error.message}") from error


def _event_files(files: Files, folder: Path, shown: str) -> list[PurePosixPath]:
    """Return the paths of the event files below the folder, sorted.

    The first part of a name that differs is the time, so files of one folder are in the order of
    writing.
    """
    paths: list[PurePosixPath] = []
    waiting = [PurePosixPath()]
    visited = 0
    while waiting:
        visited += 1
        here = waiting.pop()
        for name in logged_names(files, folder / here, str(PurePosixPath(shown) / here)):
            path = here / name
            # writers name the files `events.out.tfevents.TIME.HOST...`, some with a suffix
            if EVENT_FILE in name:
                paths.append(path)
            elif files.is_folder(folder / path):
                waiting.append(path)
            else:
                refuse_link_out(files, folder / path, folder, shown)
        if len(paths) > MAX_FILES or visited > MAX_FOLDERS:
            raise EvidenceError(
                f"{shown}: more than {MAX_FILES} event files or {MAX_FOLDERS} folders",
                hint="Name the folder of one run in train.metrics.tensorboard.",
            )
    return sorted(paths)


def _common_folder(folders: list[PurePosixPath]) -> PurePosixPath:
    common = folders[0]
    for folder in folders[1:]:
        while not folder.is_relative_to(common):
            common = common.parent
    return common
