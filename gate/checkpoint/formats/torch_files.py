"""Reads what `torch.save` wrote before it wrote zip archives, into the same leaves.

Layout: the pickles of a magic number, a protocol version, facts on the machine, the object and the
list of storage keys; then for each key the number of elements (8 bytes) and the elements. Source:
`_legacy_save` and `_legacy_load` in `torch/serialization.py` of torch 2.13.
"""

from __future__ import annotations

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.formats.formats_tensor_sources import tensor_source
from gate.checkpoint.leaves import Leaf, StateContent, TensorSource
from gate.checkpoint.node_leaves import node_leaves
from gate.checkpoint.pickle.calls import StateError, fault
from gate.checkpoint.pickle.machine import Machine
from gate.checkpoint.pickle.nodes import MapNode, StorageNode, TensorNode
from gate.checkpoint.pickle.pickle_reader import MAX_PICKLE_BYTES, interpret, read_pickle_at
from gate.checkpoint.untrusted_files import SAVE_HINT, UntrustedFile
from gate.text.untrusted_text import short_text

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
