"""Reads a `torch.save` archive into leaves, without torch.

Device, strides, sharing of storages, `Parameter` or `Tensor`, attributes of parameters, order of
keys, file name and times do not count: they are no part of any leaf.
"""

from __future__ import annotations

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.formats.formats_tensor_sources import tensor_source
from gate.checkpoint.formats.zip_headers import ZipRecord
from gate.checkpoint.leaves import Leaf, StateContent, TensorSource
from gate.checkpoint.node_leaves import node_leaves
from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.nodes import TensorNode
from gate.checkpoint.pickle.pickle_reader import MAX_PICKLE_BYTES, read_pickle
from gate.checkpoint.untrusted_files import SAVE_HINT, UntrustedFile
from gate.text.untrusted_text import short_text

PICKLE_NAME = "/data.pkl"
ARCHIVE_FORMAT = "torch.save archive"


def is_torch_archive(records: dict[str, ZipRecord]) -> bool:
    """Whether a zip archive has what `torch.save` writes."""
    return any(name.endswith(PICKLE_NAME) and name.count("/") == 1 for name in records)


def is_script(records: dict[str, ZipRecord]) -> bool:
    """Whether an archive of torch holds a program (TorchScript) instead of a state."""
    return any(name.endswith("/constants.pkl") and name.count("/") == 1 for name in records)


def read_torch_archive(opened: UntrustedFile, records: dict[str, ZipRecord]) -> StateContent:
    """Every leaf of the saved object.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    archive = _TorchArchive(opened, records)
    try:
        leaves = tuple(archive.leaves())
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error
    return StateContent(shown=opened.shown, format=ARCHIVE_FORMAT, leaves=leaves)


class _TorchArchive:
    """One archive while it is being read."""

    def __init__(self, opened: UntrustedFile, records: dict[str, ZipRecord]) -> None:
        self._opened = opened
        self._records = records
        self._prefix = self._find_prefix()

    def _find_prefix(self) -> str:
        names = [name for name in self._records if name.count("/") == 1]
        pickles = [name for name in names if name.endswith(PICKLE_NAME)]
        # with two of them a file holds two states, and each reader chooses for itself
        if len(pickles) != 1:
            raise self._opened.fault(
                "is a zip archive that torch.save did not write", hint=SAVE_HINT
            )
        prefix = pickles[0].removesuffix(PICKLE_NAME)
        packed = next((name for name, record in self._records.items() if record.deflated), None)
        if packed is not None:
            raise self._opened.fault(
                f"zip entry {short_text(packed)} is compressed",
                hint="torch.save stores records without compression; save the file with it.",
            )
        if f"{prefix}/constants.pkl" in self._records:
            raise self._opened.fault("is a TorchScript archive, not a state", hint=SAVE_HINT)
        self._check_byte_order(self._records.get(f"{prefix}/byteorder"))
        return prefix

    def _check_byte_order(self, record: ZipRecord | None) -> None:
        """Old archives have no such record, and are little-endian."""
        order = b"little" if record is None else self._bytes_of(record, 16)
        if order == b"big":
            raise self._opened.fault("was written on a big-endian machine")
        if order != b"little":
            raise self._opened.fault(
                f"its record byteorder holds {ascii(order)[1:]}, neither 'little' nor 'big'",
                hint="The archive is damaged, or its directory has a wrong size for the record. "
                f"{SAVE_HINT}",
            )

    def _bytes_of(self, record: ZipRecord, max_bytes: int) -> bytes:
        if record.size_bytes > max_bytes:
            raise self._opened.fault(f"zip entry {short_text(record.name)} is too large")
        return self._opened.read_at(record.start, record.size_bytes)

    def leaves(self) -> list[Leaf]:
        """Interpret the pickle and look up where each tensor lies."""
        record = self._records[f"{self._prefix}{PICKLE_NAME}"]
        root = read_pickle(self._bytes_of(record, MAX_PICKLE_BYTES))
        return node_leaves(root, self._source)

    def _source(self, tensor: TensorNode) -> TensorSource:
        storage = tensor.storage
        record = self._records.get(f"{self._prefix}/data/{storage.key}")
        if record is None:
            raise self._opened.fault(f"storage {short_text(storage.key)} is missing")
        # a larger record would hold bytes that are in the file but in no digest
        if record.size_bytes != storage.elements * ELEMENT_BYTES[storage.dtype]:
            raise self._opened.fault(
                f"storage {short_text(storage.key)} has {record.size_bytes:,} bytes, not the "
                f"{storage.elements:,} elements that the state says"
            )
        return tensor_source(self._opened, tensor, record.start, record.size_bytes)
