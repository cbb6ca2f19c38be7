"""What `torch.save` writes, as a zip archive and as before it wrote those, read without torch.

Device, strides, sharing of storages, `Parameter` or `Tensor`, attributes of parameters, order of
keys, file name and times do not count: they are no part of any leaf.

Layout: the pickles of a magic number, a protocol version, facts on the machine, the object and the
list of storage keys; then for each key the number of elements (8 bytes) and the elements. Source:
`_legacy_save` and `_legacy_load` in `torch/serialization.py` of torch 2.13.
"""

from __future__ import annotations

from gate.checkpoint.formats.tensor_sources import tensor_source
from gate.checkpoint.formats.zip_archives import ZipRecord
from gate.checkpoint.leaves import ELEMENT_BYTES, Leaf, StateContent, TensorSource
from gate.checkpoint.pickle.calls import MapNode, StateError, StorageNode, TensorNode, fault
from gate.checkpoint.pickle.reader import (
    MAX_PICKLE_BYTES,
    Machine,
    interpret,
    read_pickle,
    read_pickle_at,
)
from gate.checkpoint.state_tree import node_leaves
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


MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001
LEGACY_FORMAT = "legacy torch.save file"
FIRST_READ_BYTES = 1024 * 1024
GROWTH = 8
COUNT_BYTES = 8
PICKLES = 5
MAX_STORAGES = 1_000_000


def is_legacy_file(head: bytes) -> bool:
    """Whether a file that begins with these bytes begins with the magic number."""
    try:
        return read_pickle_at(head, 0)[0] == MAGIC_NUMBER
    except StateError:
        return False


def read_legacy_file(opened: UntrustedFile) -> StateContent:
    """Every leaf of the saved object.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    try:
        return StateContent(shown=opened.shown, format=LEGACY_FORMAT, leaves=tuple(_leaves(opened)))
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error


def _leaves(opened: UntrustedFile) -> list[Leaf]:
    pickles = _pickles(opened)
    version, facts, root, keys = (machine.stack[0] for machine in pickles[1:])
    if version != PROTOCOL_VERSION or not isinstance(facts, MapNode):
        raise fault("is a legacy torch file of another version", hint=SAVE_HINT)
    orders = [value for key, value in facts.pairs if key == "little_endian"]
    if orders == [False]:
        raise fault("was written on a big-endian machine", hint=SAVE_HINT)
    if orders != [True]:
        raise fault("does not say in which byte order it was written", hint=SAVE_HINT)
    if not isinstance(keys, list) or len(keys) > MAX_STORAGES:
        raise fault("its list of storages is invalid")
    places = _places(opened, keys, pickles[-2].storages, pickles[-1].end)

    def source_of(tensor: TensorNode) -> TensorSource:
        key = tensor.storage.key
        if key not in places:
            raise fault(f"storage {short_text(key)} is missing")
        return tensor_source(opened, tensor, *places[key])

    return node_leaves(root, source_of)


def _pickles(opened: UntrustedFile) -> list[Machine]:
    """The five pickles; how long they are nobody says, so more is read until they end."""
    length = FIRST_READ_BYTES
    while True:
        length = min(length, opened.size_bytes, MAX_PICKLE_BYTES)
        try:
            return _read_pickles(opened.read_at(0, length))
        except StateError as error:
            if length == opened.size_bytes:
                raise
            if length == MAX_PICKLE_BYTES:
                problem = f"its pickles are damaged or larger than {MAX_PICKLE_BYTES:,} bytes"
                raise fault(problem, hint=error.hint) from error
        # by a factor, so that all attempts together cost little more than the last
        length *= GROWTH


def _read_pickles(data: bytes) -> list[Machine]:
    found: list[Machine] = []
    for _ in range(PICKLES):
        found.append(interpret(data, found[-1].end if found else 0))
    return found


def _places(
    opened: UntrustedFile, keys: list[object], storages: list[StorageNode], position: int
) -> dict[str, tuple[int, int]]:
    """Where each storage starts and how many bytes it has; together they fill the file."""
    known = {storage.key: storage for storage in storages}
    # how many bytes a storage has follows from its type, and with it where the next one begins
    if any(known[storage.key].dtype != storage.dtype for storage in storages):
        raise fault("uses one storage under two types")
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = known.get(key) if isinstance(key, str) else None
        if storage is None or storage.key in places:
            raise fault(f"storage {short_text(str(key))} is listed twice or never used")
        elements = int.from_bytes(opened.read_at(position, COUNT_BYTES), "little")
        if elements != storage.elements:
            raise fault(
                f"storage {short_text(storage.key)} has {elements:,} elements, not the "
                f"{storage.elements:,} that the state says"
            )
        size_bytes = elements * ELEMENT_BYTES[storage.dtype]
        opened.check_range(position + COUNT_BYTES, size_bytes)
        places[storage.key] = position + COUNT_BYTES, size_bytes
        position += COUNT_BYTES + size_bytes
    # bytes that belong to no storage would be in no digest
    if position != opened.size_bytes:
        raise fault("has bytes after its last storage")
    return places
