"""What the `.metadata` of a distributed checkpoint says, checked and without torch.

It is a pickle of `Metadata`: `state_dict_metadata` (each name's chunks, or that it is bytes),
`storage_data` (where each chunk lies) and `planner_data` (the nested keys that each name stands
for). Ids and paths in it are left out. Source: `torch/distributed/checkpoint/metadata.py` and
`filesystem.py` of torch 2.13.
"""

from __future__ import annotations

from typing import NamedTuple

from gate.checkpoint.dtypes import TORCH_DTYPES
from gate.checkpoint.pickle.calls import MAX_DIMENSIONS, MAX_INTEGER, fault
from gate.checkpoint.pickle.nodes import GlobalNode, MapNode, OpaqueNode
from gate.checkpoint.pickle.pickle_reader import read_pickle
from gate.checkpoint.state_tree import text_part
from gate.checkpoint.untrusted_folder import is_plain_name
from gate.text.untrusted_text import short_text

PACKAGE = "torch.distributed.checkpoint."
MAX_ENTRIES = 1_000_000
Sizes = tuple[int, ...]


class FileRange(NamedTuple):
    """Where a chunk lies: a range of a file of the folder."""

    file: str
    offset: int
    length: int


class Chunk(NamedTuple):
    """A box of a tensor, and where it lies."""

    offsets: Sizes
    sizes: Sizes
    place: FileRange


class ChunkedTensor(NamedTuple):
    """A tensor in pieces."""

    path: str
    dtype: str
    shape: Sizes
    chunks: tuple[Chunk, ...]


class SavedObject(NamedTuple):
    """Anything else: an object that was saved on its own."""

    path: str
    place: FileRange


Entry = ChunkedTensor | SavedObject
Places = dict[tuple[str, Sizes | None], FileRange]


def read_metadata(data: bytes) -> list[Entry]:
    """Every entry under the path that it has in one file.

    Raises `StateError` for invalid metadata.
    """
    told = _fields(read_pickle(data), "metadata.Metadata")
    places = _places(_map(told.get("storage_data"), "storage_data"))
    paths = _paths(told.get("planner_data"))
    entries: list[Entry] = []
    for name, node in _named(_map(told.get("state_dict_metadata"), "state_dict_metadata")):
        path = paths.get(name, text_part(name))
        if _is_a(node, "metadata.BytesStorageMetadata"):
            entries.append(SavedObject(path, _taken(places, name, None)))
        else:
            entries.append(_tensor(name, path, node, places))
    # each entry has taken its places out; what is left was placed for nothing and would not be
    # hashed
    if places:
        name = min(name for name, _ in places)
        raise fault(f"places {short_text(name)}, which is not part of the state")
    return entries


def _tensor(name: str, path: str, node: object, places: Places) -> ChunkedTensor:
    told = _fields(node, "metadata.TensorStorageMetadata")
    chunks = told.get("chunks")
    if not isinstance(chunks, list) or not chunks or len(chunks) > MAX_ENTRIES:
        raise fault(f"tensor {short_text(name)} has no list of chunks")
    shape = _sizes(told.get("size"), name)
    found: list[Chunk] = []
    for chunk in chunks:
        fields = _fields(chunk, "metadata.ChunkStorageMetadata")
        offsets, sizes = _sizes(fields.get("offsets"), name), _sizes(fields.get("sizes"), name)
        inside = len(offsets) == len(sizes) == len(shape) and all(
            start + size <= whole for start, size, whole in zip(offsets, sizes, shape, strict=True)
        )
        if not inside:
            raise fault(f"a chunk of {short_text(name)} reaches outside its tensor")
        found.append(Chunk(offsets, sizes, _taken(places, name, offsets)))
    return ChunkedTensor(path, _dtype(name, told.get("properties")), shape, tuple(found))


def _dtype(name: str, node: object) -> str:
    """Of the properties only this one counts; they come as a tuple or by their names."""
    match node:
        case OpaqueNode(states=[(GlobalNode(module="torch", name=dtype), *_)]):
            pass
        case OpaqueNode(states=[MapNode() as told]):
            dtype = next(
                (value.name for key, value in told.pairs
                 if key == "dtype" and isinstance(value, GlobalNode)), ""
            )  # fmt: skip
        case _:
            dtype = ""
    if dtype not in TORCH_DTYPES:
        raise fault(f"tensor {short_text(name)} has an unknown dtype")
    return TORCH_DTYPES[dtype]


def _places(node: MapNode) -> Places:
    found: Places = {}
    for key, value in node.pairs:
        index = _fields(key, "metadata.MetadataIndex")
        info = _fields(value, "filesystem._StorageInfo")
        name, offset = index.get("fqn"), index.get("offset")
        if not isinstance(name, str):
            raise fault("places an entry without a name")
        where = name, None if offset is None else _sizes(offset, name)
        if where in found:
            raise fault(f"places a chunk of {short_text(name)} twice")
        found[where] = _place(name, info)
    return found


def _place(name: str, info: dict[str, object]) -> FileRange:
    # undoing a transform means running its decoder, whose name the run has written
    if info.get("transform_descriptors"):
        raise fault(
            f"{short_text(name)} was transformed when it was written (compressed or encrypted)",
            hint="Save the checkpoint without transforms.",
        )
    match info.get("relative_path"), info.get("offset"), info.get("length"):
        case (str() as file, int() as offset, int() as length):
            # the metadata was written by the run: a path in it could lead anywhere (CWE-22)
            if not is_plain_name(file):
                raise fault(f"points to {short_text(file)}, which is not a file in its folder")
            if not 0 <= offset < MAX_INTEGER or not 0 <= length < MAX_INTEGER:
                raise fault(f"places {short_text(name)} at an invalid range")
            return FileRange(file, offset, length)
    raise fault(f"does not place {short_text(name)}")


def _taken(places: Places, name: str, offsets: Sizes | None) -> FileRange:
    place = places.pop((name, offsets), None)
    if place is None:
        raise fault(f"a chunk of {short_text(name)} is not placed")
    return place


def _paths(node: object) -> dict[str, str]:
    """Names are flattened nested keys; the planner remembers which."""
    if not isinstance(node, MapNode):
        return {}
    found: dict[str, str] = {}
    for name, keys in _named(node):
        if not isinstance(keys, tuple) or not keys:
            raise fault(f"{short_text(name)} has invalid keys")
        found[name] = "".join(_key_part(name, key) for key in keys)
    return found


def _key_part(name: str, key: object) -> str:
    if isinstance(key, str):
        return text_part(key)
    # not `isinstance`: True is an integer to that, and would be the name `[True]`
    if type(key) is int and 0 <= key < MAX_INTEGER:
        return f"[{key}]"
    raise fault(f"{short_text(name)} has a key that is neither text nor a position")


def _is_a(node: object, name: str) -> bool:
    return isinstance(node, OpaqueNode) and node.made_by.replace(":", ".") == PACKAGE + name


def _fields(node: object, name: str) -> dict[str, object]:
    """The attributes of an object of a class of torch's."""
    if _is_a(node, name):
        match node:
            case OpaqueNode(states=[MapNode() as told]):
                return dict(_named(told))
    raise fault(f"lacks a {name.rpartition('.')[2]} where one is expected")


def _map(node: object, name: str) -> MapNode:
    if not isinstance(node, MapNode) or len(node.pairs) > MAX_ENTRIES:
        raise fault(f"its {name} is not a map")
    return node


def _named(node: MapNode) -> list[tuple[str, object]]:
    """The pairs of a map whose keys are distinct texts of a bounded length."""
    pairs = [(key, value) for key, value in node.pairs if isinstance(key, str)]
    if len(pairs) != len(node.pairs) or len({key for key, _ in pairs}) != len(pairs):
        raise fault("has a map with a key that is not text or occurs twice")
    return pairs


def _sizes(value: object, name: str) -> Sizes:
    if isinstance(value, tuple) and len(value) <= MAX_DIMENSIONS:
        sizes = tuple(size for size in value if type(size) is int and 0 <= size < MAX_INTEGER)
        if len(sizes) == len(value):
            return sizes
    raise fault(f"tensor {short_text(name)} has invalid offsets or sizes")
