"""Digests every leaf of a `torch.save` archive, without torch.

Every tensor, number and byte string becomes a `TensorDigest`: floats `F64`, integers `I64` (beyond
64 bits `TEXT`, hexadecimal), booleans `BOOL`, bytes `U8`. Device, strides, sharing of storages,
`Parameter` or `Tensor`, attributes of parameters, order of keys, file name and times do not count.

Left out, but counted in the notes: text, None, names of types, and objects of unknown classes; the
tensors and numbers inside such objects are kept, under `~arguments`, `~items` and `~states`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gate.codec.digests import tensor_digest
from gate.evidence.dtypes import ELEMENT_BYTES, TEXT_DTYPE
from gate.evidence.hostile_file import HostileFile, short_text
from gate.evidence.pickle_calls import StateError
from gate.evidence.pickle_nodes import OpaqueNode, StorageNode, TensorNode
from gate.evidence.pickle_reader import read_pickle
from gate.evidence.state_tree import leaves
from gate.evidence.tensor_bytes import MAX_TENSOR_BYTES, TensorPlace, check_place, logical_pieces
from gate.evidence.zip_reader import ZipRecord, read_zip_records
from gate.records.evidence import TensorDigest

MAX_LEAVES = 200_000
MAX_PICKLE_BYTES = 64 * 1024 * 1024
MAX_NOTED_CLASSES = 20
PICKLE_NAME = "/data.pkl"
MAX_WORD = 2**63
SAVE_HINT = "Save it with torch.save(state, path) or as safetensors, and let the script finish."


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointContent:
    """The leaves of a checkpoint, and what was left out in words."""

    tensors: tuple[TensorDigest, ...]
    notes: tuple[str, ...] = ()


def read_torch_archive(opened: HostileFile) -> CheckpointContent:
    """Digest every leaf; names start with `checkpoint`.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    return _TorchArchive(opened).content()


class _TorchArchive:
    """One `torch.save` archive while it is being digested."""

    def __init__(self, opened: HostileFile) -> None:
        self._opened = opened
        self._records = read_zip_records(opened)
        self._prefix = self._find_prefix()
        self._digests: dict[tuple[object, ...], TensorDigest] = {}
        self._hashed_bytes = 0
        self._texts = 0
        self._opaque: dict[str, int] = {}

    def _find_prefix(self) -> str:
        names = [name for name in self._records if name.count("/") == 1]
        pickles = [name for name in names if name.endswith(PICKLE_NAME)]
        if len(pickles) != 1:
            raise self._opened.fault("is a zip archive but not one of torch.save", hint=SAVE_HINT)
        prefix = pickles[0].removesuffix(PICKLE_NAME)
        if f"{prefix}/constants.pkl" in self._records:
            raise self._opened.fault("is a TorchScript archive, not a state", hint=SAVE_HINT)
        order = self._records.get(f"{prefix}/byteorder")
        if order is not None and self._bytes_of(order, 16) != b"little":
            raise self._opened.fault("was written on a big-endian machine")
        return prefix

    def _bytes_of(self, record: ZipRecord, max_bytes: int) -> bytes:
        if record.size_bytes > max_bytes:
            raise self._opened.fault(f"zip entry {short_text(record.name)} is too large")
        return self._opened.read_at(record.start, record.size_bytes)

    def content(self) -> CheckpointContent:
        """Interpret the pickle, then digest each leaf once."""
        name = f"{self._prefix}{PICKLE_NAME}"
        data = self._bytes_of(self._records[name], MAX_PICKLE_BYTES)
        found: dict[str, TensorDigest] = {}
        try:
            for path, leaf in leaves(read_pickle(data)):
                self._take(found, f"checkpoint{path}", leaf)
        except StateError as error:
            raise self._opened.fault(error.message, hint=error.hint) from error
        return CheckpointContent(tensors=tuple(found.values()), notes=self._notes())

    def _take(self, found: dict[str, TensorDigest], name: str, leaf: object) -> None:
        tensor = self._digest(name, leaf)
        if tensor is None:
            return
        if name in found:
            raise self._opened.fault(f"{short_text(name)} is there twice")
        if len(found) >= MAX_LEAVES:
            raise self._opened.fault(f"more than {MAX_LEAVES:,} tensors and numbers")
        found[name] = tensor

    def _digest(self, name: str, leaf: object) -> TensorDigest | None:
        """The digest of a leaf, or None for one that is only counted."""
        if isinstance(leaf, StorageNode):
            leaf = TensorNode(leaf, leaf.dtype, 0, (leaf.elements,), (1,))
        if isinstance(leaf, TensorNode):
            return self._tensor(name, leaf)
        if isinstance(leaf, bool | int | float | bytes):
            return plain_digest(name, leaf)
        if isinstance(leaf, OpaqueNode):
            self._opaque[leaf.made_by] = self._opaque.get(leaf.made_by, 0) + 1
        else:
            self._texts += 1
        return None

    def _tensor(self, name: str, tensor: TensorNode) -> TensorDigest:
        """Each different view is hashed once, so sharing cannot multiply the work."""
        source = tensor.storage
        key = (source.key, source.dtype, tensor.dtype, tensor.offset, tensor.shape, tensor.strides)
        known = self._digests.get(key)
        if known is not None:
            return known.model_copy(update={"name": name})
        place = self._place(tensor)
        check_place(self._opened, place)
        self._hashed_bytes += place.elements * place.element_bytes
        if self._hashed_bytes > MAX_TENSOR_BYTES:
            raise self._opened.fault(f"all tensors together exceed {MAX_TENSOR_BYTES:,} bytes")
        pieces = logical_pieces(self._opened, place)
        digest = tensor_digest(name, tensor.dtype, tensor.shape, pieces)
        self._digests[key] = digest
        return digest

    def _place(self, tensor: TensorNode) -> TensorPlace:
        storage = tensor.storage
        record = self._records.get(f"{self._prefix}/data/{storage.key}")
        if record is None:
            raise self._opened.fault(f"storage {short_text(storage.key)} is missing")
        if record.size_bytes != storage.elements * ELEMENT_BYTES[storage.dtype]:
            raise self._opened.fault(
                f"storage {short_text(storage.key)} has {record.size_bytes:,} bytes, not the "
                f"{storage.elements:,} elements that the state says"
            )
        return TensorPlace(
            tensor=tensor, storage_start=record.start, storage_bytes=record.size_bytes
        )

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self._texts:
            notes.append(
                f"{self._opened.shown}: {self._texts} text(s) or empty value(s) not compared"
            )
        for made_by, count in sorted(self._opaque.items())[:MAX_NOTED_CLASSES]:
            notes.append(
                f"{self._opened.shown}: {count} object(s) of {short_text(made_by)} compared only "
                "by what is inside"
            )
        return tuple(notes)


def plain_digest(name: str, value: float | bytes) -> TensorDigest:
    """A number as a 0-d tensor, bytes as a 1-d one."""
    if isinstance(value, bytes):
        return tensor_digest(name, "U8", (len(value),), (value,))
    if isinstance(value, bool):
        return tensor_digest(name, "BOOL", (), (bytes((value,)),))
    if isinstance(value, float):
        return tensor_digest(name, "F64", (), (struct.pack("<d", value),))
    if -MAX_WORD <= value < MAX_WORD:
        return tensor_digest(name, "I64", (), (struct.pack("<q", value),))
    return tensor_digest(name, TEXT_DTYPE, (), (f"{value:x}".encode("ascii"),))
