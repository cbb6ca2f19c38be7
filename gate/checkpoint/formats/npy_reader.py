"""Read NumPy's `.npy` files, and `.npz` archives of them, without trusting a byte.

Layout: a magic text, a version, the length of the header, the header (the text of a dictionary with
`descr`, `fortran_order` and `shape`), then the elements. Source: `numpy.lib.format` of NumPy 2.4.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from gate.checkpoint.byte_sources import Inflated, column_major, gathered, little_endian
from gate.checkpoint.formats.zip_archives import MAX_UNPACKED_BYTES, ZipRecord
from gate.checkpoint.leaves import (
    ELEMENT_BYTES,
    FileSpan,
    Leaf,
    StateContent,
    TensorLeaf,
    TensorSource,
)
from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.reader import read_pickle
from gate.checkpoint.pickle.tensor_nodes import NUMPY_DTYPES
from gate.checkpoint.state_tree import below, no_storages, node_leaves, text_part
from gate.checkpoint.untrusted_files import UntrustedFile, file_part
from gate.text.untrusted_text import short_text

MAGIC: Final = b"\x93NUMPY"
NPY_FORMAT, NPZ_FORMAT = "NumPy array", "NumPy archive"
# number of bytes of the header's length, by version
LENGTH_BYTES: Final = {1: 2, 2: 4, 3: 4}
FIXED_BYTES = len(MAGIC) + 2
MAX_HEADER_BYTES = 64 * 1024
MAX_OBJECT_BYTES = 64 * 1024 * 1024
# the number of dimensions that every supported NumPy allows
MAX_DIMENSIONS = 32
MAX_NAME = 450
# The only form that NumPy and compatible writers use; its keys are sorted.
HEADER: Final = re.compile(
    r"\{'descr': (?P<descr>.+), 'fortran_order': (?P<order>True|False), "
    r"'shape': \((?P<shape>[0-9, ]*)\),? ?\} *\n?",
    re.DOTALL,
)
DESCR: Final = re.compile(r"'(?P<order>[<>|=]?)(?P<code>[a-zA-Z?][0-9]*)'")
SIZES: Final = re.compile(r"(?:[0-9]{1,18}(?:, ?[0-9]{1,18})*,?)?")
OBJECTS = ("O", "O8", "O4")
HINT = "Save the array with numpy.save, with elements that are numbers."


class _Header(NamedTuple):
    code: str
    order: str
    by_column: bool
    shape: tuple[int, ...]
    size_bytes: int


class StoredBody(NamedTuple):
    """A `.npy` file that is stored as it is."""

    opened: UntrustedFile

    @property
    def size_bytes(self) -> int:
        """The size of header and elements."""
        return self.opened.size_bytes

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most `length`."""
        return self.opened.read_at(0, min(length, self.size_bytes))

    def source(self, start: int) -> TensorSource:
        """Return a source of all bytes from `start`."""
        return FileSpan(self.opened, start, self.size_bytes - start)


class DeflatedBody(NamedTuple):
    """A `.npy` file that is unpacked while it is read; `opened` has its deflated bytes."""

    opened: UntrustedFile
    size_bytes: int
    crc: int | None

    def head(self, length: int) -> bytes:
        """Return the first bytes, at most `length`."""
        data = b""
        for piece in self._unpacked(0).pieces(length):
            data += bytes(piece)
            if len(data) >= length:
                break
        return data[:length]

    def source(self, start: int) -> TensorSource:
        """Return a source of all bytes from `start`."""
        return self._unpacked(start)

    def _unpacked(self, skipped: int) -> Inflated:
        stored = self.opened.size_bytes
        return Inflated(self.opened, 0, stored, self.size_bytes, skipped, self.crc)


Body = StoredBody | DeflatedBody


def read_npy(opened: UntrustedFile) -> StateContent:
    """Return the array of a `.npy` file as the only leaf, or the leaves of its objects.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    leaves = tuple(_array_leaves(StoredBody(opened), ""))
    return StateContent(shown=opened.shown, format=NPY_FORMAT, leaves=leaves)


def is_npz(opened: UntrustedFile, records: dict[str, ZipRecord]) -> bool:
    """Return whether every entry of a zip archive is an array."""
    return bool(records) and all(
        record.size_bytes >= FIXED_BYTES and _body(opened, record).head(len(MAGIC)) == MAGIC
        for record in records.values()
    )


def read_npz(opened: UntrustedFile, records: dict[str, ZipRecord]) -> StateContent:
    """Return each array under its name.

    Raises `EvidenceError` naming the file, the array and what is wrong with it.
    """
    unpacked = sum(record.size_bytes for record in records.values() if record.deflated)
    # this is the sum of the claims; `Inflated` stops an entry that unpacks to more than it claims
    if unpacked > MAX_UNPACKED_BYTES:
        raise opened.fault(
            f"its compressed entries unpack to more than {MAX_UNPACKED_BYTES:,} bytes",
            hint="Save it with numpy.savez, which does not compress.",
        )
    leaves: list[Leaf] = []
    for name, record in records.items():
        if not name.isprintable() or len(name) > MAX_NAME:
            raise opened.fault(f"the name {short_text(name)} is too long or not printable")
        leaves += _array_leaves(_body(opened, record), text_part(name.removesuffix(".npy")))
    return StateContent(shown=opened.shown, format=NPZ_FORMAT, leaves=tuple(leaves))


def _body(opened: UntrustedFile, record: ZipRecord) -> Body:
    shown = f"{opened.shown}: {short_text(record.name)}"
    part = file_part(opened, record.start, record.stored_bytes, shown)
    return (
        DeflatedBody(part, record.size_bytes, record.crc) if record.deflated else StoredBody(part)
    )


def _array_leaves(body: Body, path: str) -> list[Leaf]:
    header = _read_header(body)
    if header.code in OBJECTS:
        return _object_leaves(body, header, path)
    dtype = NUMPY_DTYPES.get(header.code)
    if dtype is None:
        problem = f"holds elements of the type {short_text(header.code)}, which is not supported"
        raise body.opened.fault(problem, hint=HINT)
    width = ELEMENT_BYTES[dtype]
    data_bytes = body.size_bytes - header.size_bytes
    if math.prod(header.shape) * width != data_bytes:
        raise body.opened.fault(
            f"its header declares {short_text(str(header.shape))} elements of {width} bytes, "
            f"but {data_bytes:,} bytes follow"
        )
    source = little_endian(body.source(header.size_bytes), dtype, header.order)
    if header.by_column:
        source = column_major(body.opened, source, header.shape, width)
    return [TensorLeaf(path, dtype, header.shape, source)]


def _object_leaves(body: Body, header: _Header, path: str) -> list[Leaf]:
    """Return the leaves of an array of objects: a pickle, which is interpreted and never run."""
    if body.size_bytes - header.size_bytes > MAX_OBJECT_BYTES:
        raise body.opened.fault(f"its objects take more than {MAX_OBJECT_BYTES:,} bytes", hint=HINT)
    try:
        # `numpy.load` with `allow_pickle` would run the pickle (CVE-2019-6446)
        root = read_pickle(bytes(gathered(body.source(header.size_bytes))))
        return below(path, node_leaves(root, no_storages))
    except StateError as error:
        raise body.opened.fault(error.message, hint=error.hint) from error


def _read_header(body: Body) -> _Header:
    # the length of the header takes up to four more bytes, depending on the version
    fixed = body.head(FIXED_BYTES + 4)
    length_bytes = LENGTH_BYTES.get(fixed[len(MAGIC)], 0) if len(fixed) > FIXED_BYTES else 0
    start = FIXED_BYTES + length_bytes
    length = int.from_bytes(fixed[FIXED_BYTES:start], "little")
    if not fixed.startswith(MAGIC) or not length_bytes:
        raise body.opened.fault("is truncated or a NumPy array of an unknown version", hint=HINT)
    if length > MAX_HEADER_BYTES or start + length > body.size_bytes:
        raise body.opened.fault(f"its header of {length:,} bytes is too large", hint=HINT)
    return _parse_header(body, body.head(start + length)[start:], start + length)


def _parse_header(body: Body, data: bytes, size_bytes: int) -> _Header:
    text = data.decode("utf-8", "replace")
    # NumPy evaluates this text as a Python literal. A regular expression cannot be made to nest or
    # recurse.
    header = HEADER.fullmatch(text)
    if header is None:
        raise body.opened.fault("its header is not what NumPy writes", hint=HINT)
    descr = DESCR.fullmatch(header["descr"])
    if descr is None:
        problem = (
            f"holds elements of the type {short_text(header['descr'])}, which is not supported"
        )
        raise body.opened.fault(problem, hint=HINT)
    sizes = [size for size in header["shape"].split(",") if size.strip()]
    if SIZES.fullmatch(header["shape"]) is None or len(sizes) > MAX_DIMENSIONS:
        raise body.opened.fault("its shape is not a short list of sizes", hint=HINT)
    return _Header(
        code=descr["code"],
        order=descr["order"],
        by_column=header["order"] == "True",
        shape=tuple(map(int, sizes)),
        size_bytes=size_bytes,
    )
