"""The records of a TensorBoard event file, read as untrusted bytes.

A record is its length (8 bytes, little-endian), a checksum of these, the data, a checksum of the
data. Checksums are CRC-32C (RFC 3720, appendix B.4), rotated and shifted by a constant; TensorFlow
documents both in its guide to TFRecord.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from gate.checkpoint.untrusted_files import UntrustedFile

MAX_RECORDS = 1_000_000
# A scalar takes about a hundred bytes; what is longer (images, graphs, histograms) is passed over.
MAX_SCALAR_BYTES = 8192
HEADER: Final = struct.Struct("<QI")
FOOTER: Final = struct.Struct("<I")
POLYNOMIAL: Final = 0x82F63B78
MASK_DELTA: Final = 0xA282EAD8
HINT: Final = "Close or flush the writer; a process that is killed leaves half a record."


def small_records(opened: UntrustedFile) -> Iterator[tuple[int, bytes]]:
    """Offset and data of each record that is short enough for a scalar.

    Raises `EvidenceError` for a wrong checksum, a record that ends behind the file, or more than a
    million records.
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
        # before the length is used: it decides where everything behind it is looked for
        if masked_crc(head[:8]) != checksum:
            raise opened.fault(f"{place} has a wrong length checksum", hint=HINT)
        end = offset + HEADER.size + length + FOOTER.size
        if end > opened.size_bytes:
            raise opened.fault(f"{place} is truncated", hint=HINT)
        if length <= MAX_SCALAR_BYTES:
            data = opened.read_at(offset + HEADER.size, length + FOOTER.size)
            if masked_crc(data[:length]) != FOOTER.unpack(data[length:])[0]:
                raise opened.fault(f"{place} has a wrong checksum", hint=HINT)
            yield offset, data[:length]
        offset = end


def masked_crc(data: bytes) -> int:
    """The checksum that stands in the file."""
    value = crc32c(data)
    # rotated and shifted, since a checksum over data that holds
    # checksums is a weak one (LevelDB, where the form comes from)
    return ((value >> 15 | value << 17) + MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C of the bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ value >> 8
    return value ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        # reflected: the polynomial with its bits reversed, the lowest bit first
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE: Final = tuple(_table_entry(byte) for byte in range(256))
