"""Read what `torch.save` writes without torch: zip archives, and the older legacy format.

These do not count, because they are in no leaf: device, strides, sharing of storages, `Parameter`
or `Tensor`, attributes of parameters, order of keys, file name and times.

A legacy file has five pickles: a magic number, a protocol version, facts about the machine, the
object, and the list of storage keys. Then each storage follows with its number of elements (8
bytes) and the elements. Source: `_legacy_save` and `_legacy_load` in `torch/serialization.py` of
torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gate.checkpoint.formats.tensor_sources import tensor_source
from gate.checkpoint.formats.zip_archives import ZipRecord
from gate.checkpoint.leaves import ELEMENT_BYTES, Leaf, StateContent, TensorSource
from gate.checkpoint.pickle.calls import MapNode, StateError, StorageNode, TensorNode, fault
from gate.checkpoint.pickle.pickle_machine import Machine
from gate.checkpoint.pickle.reader import (
    MAX_PICKLE_BYTES,
    interpret,
    read_pickle_at,
    whole_pickle,
)
from gate.checkpoint.state_tree import node_leaves
from gate.checkpoint.untrusted_files import SAVE_HINT, UntrustedFile
from gate.text.untrusted_text import short_text

PICKLE_NAME = "/data.pkl"
ARCHIVE_FORMAT = "torch.save archive"
# the records beside storages that `torch.save` writes, from torch 1.6 to 2.13
RECORDS: Final = frozenset((
    "data.pkl", "version", "byteorder", ".format_version", ".storage_alignment",
    ".data/serialization_id",
))  # fmt: skip
STORAGES: Final = "data/"


def is_torch_archive(records: dict[str, ZipRecord]) -> bool:
    """Return whether a zip archive has the pickle that `torch.save` writes."""
    return any(name.endswith(PICKLE_NAME) and name.count("/") == 1 for name in records)


def is_script(records: dict[str, ZipRecord]) -> bool:
    """Return whether a torch archive contains a program (TorchScript) instead of a state."""
    return any(name.endswith("/constants.pkl") and name.count("/") == 1 for name in records)


def read_torch_archive(opened: UntrustedFile, records: dict[str, ZipRecord]) -> StateContent:
    """Return every leaf of the saved object.

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
        # with two pickles the file contains two states, and readers differ in which one they load
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
        self._check_names(prefix)
        self._check_byte_order(self._records.get(f"{prefix}/byteorder"))
        return prefix

    def _check_names(self, prefix: str) -> None:
        """Refuse entries that torch does not write: torch looks records up in a way of its own."""
        for name in self._records:
            own = name.removeprefix(f"{prefix}/")
            key = own.removeprefix(STORAGES)
            # Torch ignores capitals, reads a name only up to the first zero byte, and takes the
            # folder of the first record for the only one.
            if own == name or (own not in RECORDS and (own == key or not _is_key(key))):
                raise self._opened.fault(
                    f"zip entry {short_text(name)} is nothing that torch.save writes",
                    hint=SAVE_HINT,
                )

    def _check_byte_order(self, record: ZipRecord | None) -> None:
        """Refuse archives of big-endian machines; archives without the record are little-endian."""
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
        """Interpret the pickle, and find the bytes of each tensor."""
        record = self._records[f"{self._prefix}{PICKLE_NAME}"]
        pickle = whole_pickle(self._bytes_of(record, MAX_PICKLE_BYTES))
        self._check_storages(_by_key(pickle.storages))
        return node_leaves(pickle.stack[0], self._source)

    def _check_storages(self, storages: dict[str, StorageNode]) -> None:
        """Check that every storage in the pickle has a record, and that there are no other records.

        This includes storages that the pickle refers to and then drops.
        """
        if any(storage.view for storage in storages.values()):
            raise fault("refers to a part of a storage, which only legacy files have")
        before = f"{self._prefix}/{STORAGES}"
        for key, storage in storages.items():
            self._record(storage)
            if not _is_key(key):
                raise fault(f"storage {short_text(key)} is not numbered, as torch does")
        for name in self._records:
            if name.startswith(before) and name.removeprefix(before) not in storages:
                raise fault(f"zip entry {short_text(name)} is no part of the state", hint=SAVE_HINT)

    def _record(self, storage: StorageNode) -> ZipRecord:
        record = self._records.get(f"{self._prefix}/{STORAGES}{storage.key}")
        if record is None:
            raise self._opened.fault(f"storage {short_text(storage.key)} is missing")
        # a larger record would have bytes that are in the file and in no digest
        if record.size_bytes != storage.elements * ELEMENT_BYTES[storage.dtype]:
            raise self._opened.fault(
                f"storage {short_text(storage.key)} has {record.size_bytes:,} bytes, not the "
                f"{storage.elements:,} elements that the state says"
            )
        return record

    def _source(self, tensor: TensorNode) -> TensorSource:
        record = self._record(tensor.storage)
        return tensor_source(self._opened, tensor, record.start, record.size_bytes)


def _is_key(key: str) -> bool:
    """Return whether torch would number a storage like this."""
    return key.isascii() and key.isdecimal()


def _by_key(storages: Iterable[StorageNode]) -> dict[str, StorageNode]:
    """Return each storage once.

    Torch creates a storage from the first reference to it and ignores what the others say. So all
    references have to agree.
    """
    known: dict[str, StorageNode] = {}
    for storage in storages:
        first = known.setdefault(storage.key, storage)
        if first is storage:
            continue
        # torch creates an empty storage again for each reference
        if not first.elements and not storage.elements:
            continue
        if (first.dtype, first.quantized) != (storage.dtype, storage.quantized):
            raise fault("uses one storage under two types")
        if first.elements != storage.elements:
            raise fault(f"gives storage {short_text(storage.key)} two sizes")
    return known


MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
PROTOCOL_VERSION = 1001
LEGACY_FORMAT = "legacy torch.save file"
FACTS: Final = frozenset(("protocol_version", "little_endian", "type_sizes"))
FIRST_READ_BYTES = 1024 * 1024
GROWTH = 8
COUNT_BYTES = 8
PICKLES = 5
MAX_STORAGES = 1_000_000


def is_legacy_file(head: bytes) -> bool:
    """Return whether a file with this beginning is a legacy file."""
    try:
        return read_pickle_at(head, 0)[0] == MAGIC_NUMBER
    except StateError:
        return False


def read_legacy_file(opened: UntrustedFile) -> StateContent:
    """Return every leaf of the saved object.

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
    _check_facts(facts)
    _check_no_tar(opened)
    if not isinstance(keys, list) or len(keys) > MAX_STORAGES:
        raise fault("its list of storages is invalid")
    places = _places(opened, keys, pickles[-2].storages, pickles[-1].end)

    def source_of(tensor: TensorNode) -> TensorSource:
        key = tensor.storage.key
        if key not in places:
            raise fault(f"storage {short_text(key)} is missing")
        return tensor_source(opened, tensor, *places[key])

    return node_leaves(root, source_of)


def _check_facts(facts: MapNode) -> None:
    """Check the facts about the machine; anything that torch does not write is refused."""
    values = {key: value for key, value in facts.pairs if isinstance(key, str)}
    order = values.get("little_endian")
    if order is False:
        raise fault("was written on a big-endian machine", hint=SAVE_HINT)
    if order is not True:
        raise fault("does not say in which byte order it was written", hint=SAVE_HINT)
    sizes = values.get("type_sizes", MapNode())
    plain = (
        len(values) == len(facts.pairs)
        and values.keys() <= FACTS
        and isinstance(values.get("protocol_version", PROTOCOL_VERSION), int)
        and isinstance(sizes, MapNode)
        and all(
            isinstance(key, str) and isinstance(value, int)
            for key, value in (*sizes.pairs, *((note, note) for note in sizes.attributes))
        )
    )
    if not plain or facts.attributes:
        raise fault("notes more of the machine that wrote it than torch does", hint=SAVE_HINT)


def _check_no_tar(opened: UntrustedFile) -> None:
    """Refuse a file that is also a tar archive: torch tries that first, and would load it."""
    import tarfile  # noqa: PLC0415 - slow to import, and few files are legacy ones

    head = opened.read_at(0, min(tarfile.BLOCKSIZE, opened.size_bytes))
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return
    raise fault("is a tar archive as well as a legacy torch file", hint=SAVE_HINT)


def _pickles(opened: UntrustedFile) -> list[Machine]:
    """Return the five pickles.

    Nothing says how long they are, so more is read until they end.
    """
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
        # grow by a factor, so that all attempts together cost little more than the last one
        length *= GROWTH


def _read_pickles(data: bytes) -> list[Machine]:
    machines: list[Machine] = []
    for _ in range(PICKLES):
        machines.append(interpret(data, machines[-1].end if machines else 0))
    return machines


def _check_views(storages: list[StorageNode], known: dict[str, StorageNode]) -> None:
    """Check that each key of a part means one part; torch creates it from the first reference."""
    parts: dict[str, tuple[str, int, int]] = {}
    for storage in storages:
        part = storage.key, storage.first, storage.length
        if storage.view and (storage.view in known or parts.setdefault(storage.view, part) != part):
            raise fault(f"uses the key {short_text(storage.view)} for two storages")


def _places(
    opened: UntrustedFile, keys: list[object], storages: list[StorageNode], position: int
) -> dict[str, tuple[int, int]]:
    """Return start and size in bytes of each storage; together they have to fill the file."""
    # the size of a storage follows from its type, and gives the start of the next one
    known = _by_key(storages)
    _check_views(storages, known)
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = known.get(key) if isinstance(key, str) else None
        if storage is None or storage.key in places:
            raise fault(f"storage {short_text(str(key))} is listed twice or never used")
        # The number of elements is here and in the pickle, and decides where the next storage
        # begins.
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
