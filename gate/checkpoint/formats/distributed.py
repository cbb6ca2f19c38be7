"""Read a folder of `torch.distributed.checkpoint` without torch.

The file `.metadata` is a pickle of `Metadata`: `state_dict_metadata` (each name's chunks, or that
it is an object), `storage_data` (the place of each chunk) and `planner_data` (the nested keys that
each name stands for). Ids and paths in it are left out.

Each range that `.metadata` names is a `torch.save` archive of its own. It contains one chunk of a
tensor, or an object.

Source: `torch/distributed/checkpoint/metadata.py` and `filesystem.py` of torch 2.13.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from gate.checkpoint.formats.tensor_sources import Box, assembled
from gate.checkpoint.formats.torch_files import read_torch_archive
from gate.checkpoint.formats.zip_archives import read_zip_records
from gate.checkpoint.leaves import (
    ELEMENT_BYTES,
    TORCH_DTYPES,
    FileSpan,
    Leaf,
    StateContent,
    TensorLeaf,
    TensorSource,
)
from gate.checkpoint.parts import PATHS
from gate.checkpoint.pickle.calls import (
    MAX_DIMENSIONS,
    MAX_INTEGER,
    GlobalNode,
    MapNode,
    OpaqueNode,
    StateError,
    fault,
)
from gate.checkpoint.pickle.pickle_machine import Machine
from gate.checkpoint.pickle.reached import PLAIN_MODULES
from gate.checkpoint.pickle.reader import whole_pickle
from gate.checkpoint.state_tree import MAX_VISITS, below, text_part
from gate.checkpoint.untrusted_files import (
    FilePart,
    UntrustedFile,
    UntrustedFolder,
    file_part,
    is_plain_name,
)
from gate.text.untrusted_text import short_text

PACKAGE = "torch.distributed.checkpoint."
# the classes of the objects in `.metadata`; sizes and dtypes are plain values
KNOWN_MAKERS: Final = PATHS | {
    *(f"{PACKAGE}metadata:{name}" for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    f"{PACKAGE}filesystem:_StorageInfo",
}  # fmt: skip
MAX_ENTRIES = 1_000_000
Sizes = tuple[int, ...]


class FileRange(NamedTuple):
    """The place of a chunk: a range of a file in the folder."""

    file: str
    offset: int
    length: int


class Chunk(NamedTuple):
    """A box of a tensor, and its place."""

    offsets: Sizes
    sizes: Sizes
    place: FileRange


class ChunkedTensor(NamedTuple):
    """A tensor that is saved in chunks."""

    path: str
    dtype: str
    shape: Sizes
    chunks: tuple[Chunk, ...]


class SavedObject(NamedTuple):
    """Any other value: an object that is saved alone."""

    path: str
    place: FileRange


Entry = ChunkedTensor | SavedObject
Places = dict[tuple[str, Sizes | None], FileRange]


def read_metadata(data: bytes) -> list[Entry]:
    """Return every entry, at the path that it would have in a single file.

    Raises `StateError` for invalid metadata.
    """
    pickle = whole_pickle(data)
    _check_makers(pickle)
    fields = _fields(pickle.stack[0], "metadata.Metadata")
    places = _places(_map(fields.get("storage_data"), "storage_data"))
    paths = _paths(fields.get("planner_data"))
    entries: list[Entry] = []
    for name, node in _named(_map(fields.get("state_dict_metadata"), "state_dict_metadata")):
        path = paths.get(name, text_part(name))
        if _is_a(node, "metadata.BytesStorageMetadata"):
            entries.append(SavedObject(path, _taken(places, name, None)))
        else:
            entries.append(_tensor(name, path, node, places))
    # Every entry has removed its places. A place that is left belongs to no entry, and its bytes
    # would not be hashed.
    if places:
        name = min(name for name, _ in places)
        raise fault(f"places {short_text(name)}, which is not part of the state")
    return entries


def _check_makers(pickle: Machine) -> None:
    """Refuse metadata with objects of unknown classes.

    Torch loads this file without checking what it calls, and most of its content is in no leaf.
    """
    makers = {node.made_by for node in pickle.objects} - KNOWN_MAKERS
    names = {node.shown for node in pickle.names if node.module not in PLAIN_MODULES}
    unknown = sorted(makers | (names - KNOWN_MAKERS))
    if unknown:
        raise fault(
            f"uses {short_text(unknown[0].replace(':', '.'))} when it is loaded",
            hint="Save the checkpoint with the planner and the writer of torch.",
        )


def _tensor(name: str, path: str, node: object, places: Places) -> ChunkedTensor:
    properties = _fields(node, "metadata.TensorStorageMetadata")
    chunks = properties.get("chunks")
    if not isinstance(chunks, list) or not chunks or len(chunks) > MAX_ENTRIES:
        raise fault(f"tensor {short_text(name)} has no list of chunks")
    shape = _sizes(properties.get("size"), name)
    listed: list[Chunk] = []
    for chunk in chunks:
        fields = _fields(chunk, "metadata.ChunkStorageMetadata")
        offsets, sizes = _sizes(fields.get("offsets"), name), _sizes(fields.get("sizes"), name)
        inside = len(offsets) == len(sizes) == len(shape) and all(
            start + size <= whole for start, size, whole in zip(offsets, sizes, shape, strict=True)
        )
        if not inside:
            raise fault(f"a chunk of {short_text(name)} reaches outside its tensor")
        listed.append(Chunk(offsets, sizes, _taken(places, name, offsets)))
    return ChunkedTensor(path, _dtype(name, properties.get("properties")), shape, tuple(listed))


def _dtype(name: str, node: object) -> str:
    """Return the dtype from the properties, a tuple or a map; nothing else in them counts."""
    match node:
        case OpaqueNode(states=[(GlobalNode(module="torch", name=dtype), *_)]):
            pass
        case OpaqueNode(states=[MapNode() as state]):
            dtype = next(
                (value.name for key, value in state.pairs
                 if key == "dtype" and isinstance(value, GlobalNode)), ""
            )  # fmt: skip
        case _:
            dtype = ""
    if dtype not in TORCH_DTYPES:
        raise fault(f"tensor {short_text(name)} has an unknown dtype")
    return TORCH_DTYPES[dtype]


def _places(node: MapNode) -> Places:
    places: Places = {}
    for key, value in node.pairs:
        index = _fields(key, "metadata.MetadataIndex")
        info = _fields(value, "filesystem._StorageInfo")
        name, offset = index.get("fqn"), index.get("offset")
        if not isinstance(name, str):
            raise fault("places an entry without a name")
        where = name, None if offset is None else _sizes(offset, name)
        if where in places:
            raise fault(f"places a chunk of {short_text(name)} twice")
        places[where] = _place(name, info)
    return places


def _place(name: str, info: dict[str, object]) -> FileRange:
    # Undoing a transform would run a decoder that the run has named.
    if info.get("transform_descriptors"):
        raise fault(
            f"{short_text(name)} was transformed when it was written (compressed or encrypted)",
            hint="Save the checkpoint without transforms.",
        )
    match info.get("relative_path"), info.get("offset"), info.get("length"):
        case (str() as file, int() as offset, int() as length):
            # The run wrote this path, so it could lead anywhere (CWE-22).
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
    """Return the path of each name.

    A name is the nested keys joined by dots. The planner's data has the keys themselves.
    """
    if not isinstance(node, MapNode):
        return {}
    paths: dict[str, str] = {}
    for name, keys in _named(node):
        if not isinstance(keys, tuple) or not keys:
            raise fault(f"{short_text(name)} has invalid keys")
        paths[name] = "".join(_key_part(name, key) for key in keys)
        # Torch loads tensors by this name. Different keys would give the path of another tensor.
        if ".".join(map(str, keys)) != name:
            raise fault(f"{short_text(name)} has the keys of another name")
    return paths


def _key_part(name: str, key: object) -> str:
    if isinstance(key, str):
        return text_part(key)
    # `isinstance` would accept True, which would become the name `[True]`
    if type(key) is int and 0 <= key < MAX_INTEGER:
        return f"[{key}]"
    raise fault(f"{short_text(name)} has a key that is neither text nor a position")


def _is_a(node: object, name: str) -> bool:
    return isinstance(node, OpaqueNode) and node.made_by.replace(":", ".") == PACKAGE + name


def _fields(node: object, name: str) -> dict[str, object]:
    """Return the attributes of an object of a torch class.

    Raises `StateError` if it is not of that class, or has anything besides attributes.
    """
    if _is_a(node, name):
        match node:
            case OpaqueNode(
                arguments=(), keywords=[], items=[], pairs=[], states=[MapNode() as state]
            ):
                return dict(_named(state))
    raise fault(f"lacks a {name.rpartition('.')[2]} where one is expected")


def _map(node: object, name: str) -> MapNode:
    if not isinstance(node, MapNode) or len(node.pairs) > MAX_ENTRIES:
        raise fault(f"its {name} is not a map")
    return node


def _named(node: MapNode) -> list[tuple[str, object]]:
    """Return the pairs of a map whose keys are distinct texts."""
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


METADATA = ".metadata"
SHARD_SUFFIX = ".distcp"
FORMAT = "distributed checkpoint"
MAX_METADATA_BYTES = 64 * 1024 * 1024
HINT = "Save the whole checkpoint again, into an empty folder, and let all ranks finish."


def read_distributed(folder: UntrustedFolder) -> tuple[StateContent, set[str]]:
    """Return all entries of the checkpoint, and the names of its files.

    Raises `EvidenceError` for missing or unexpected shards, and for chunks that differ from the
    metadata.
    """
    opened = folder.open(METADATA)
    if opened.size_bytes > MAX_METADATA_BYTES:
        raise opened.fault(f"is above {MAX_METADATA_BYTES:,} bytes")
    try:
        entries = read_metadata(opened.read_at(0, opened.size_bytes))
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error
    places = [place for entry in entries for place in _entry_places(entry)]
    _refuse_overlaps(opened, places)
    shards = _open_shards(folder, {place.file for place in places})
    leaves: list[Leaf] = []
    for entry in entries:
        if isinstance(entry, SavedObject):
            leaves += below(entry.path, _saved(shards, entry.place, entry.path).leaves)
        else:
            leaves.append(_tensor_leaf(opened, shards, entry))
        # checked after every entry, so that memory stays bounded while the shards are read
        if len(leaves) > MAX_VISITS:
            raise folder.fault(f"holds more than {MAX_VISITS:,} values")
    content = StateContent(shown=folder.shown, format=FORMAT, leaves=tuple(leaves))
    return content, {METADATA, *shards}


def _entry_places(entry: Entry) -> list[FileRange]:
    if isinstance(entry, SavedObject):
        return [entry.place]
    return [chunk.place for chunk in entry.chunks]


def _refuse_overlaps(opened: UntrustedFile, places: list[FileRange]) -> None:
    """Refuse entries that share bytes, so that reading all entries reads each file only once."""
    for left, right in pairwise(sorted(places)):
        if left.file == right.file and right.offset < left.offset + left.length:
            raise opened.fault(f"has overlapping entries in {short_text(left.file)}", hint=HINT)


def _open_shards(folder: UntrustedFolder, names: set[str]) -> dict[str, UntrustedFile]:
    present = folder.names()
    missing = names.difference(present)
    if missing:
        raise folder.fault(
            f"shard {short_text(min(missing))} is missing, which {METADATA} names", hint=HINT
        )
    # An earlier save with more ranks leaves such a shard. The metadata of the last save does not
    # show it.
    extra = {name for name in present if name.endswith(SHARD_SUFFIX)} - names
    if extra:
        raise folder.fault(
            f"holds the shard {short_text(min(extra))}, which {METADATA} does not name", hint=HINT
        )
    return {name: folder.open(name) for name in sorted(names)}


def _saved(shards: dict[str, UntrustedFile], place: FileRange, path: str) -> StateContent:
    shard = shards[place.file]
    part = file_part(shard, place.offset, place.length, f"{shard.shown}: {short_text(path)}")
    return read_torch_archive(part, read_zip_records(part))


def _tensor_leaf(
    opened: UntrustedFile, shards: dict[str, UntrustedFile], tensor: ChunkedTensor
) -> TensorLeaf:
    boxes = [
        Box(chunk.offsets, chunk.sizes, _chunk_source(shards, tensor, chunk))
        for chunk in tensor.chunks
    ]
    try:
        source = assembled(tensor.shape, ELEMENT_BYTES[tensor.dtype], boxes)
    except StateError as error:
        raise opened.fault(f"{short_text(tensor.path)}: {error.message}", hint=HINT) from error
    return TensorLeaf(tensor.path, tensor.dtype, tensor.shape, source)


def _chunk_source(
    shards: dict[str, UntrustedFile], tensor: ChunkedTensor, chunk: Chunk
) -> TensorSource:
    content = _saved(shards, chunk.place, tensor.path)
    match content.leaves:
        # In a `case` pattern, dotted names are compared and plain ones bound. So dtype and sizes
        # have to be equal.
        case (TensorLeaf("", tensor.dtype, chunk.sizes, source),):
            return _in_whole_file(source)
    raise shards[chunk.place.file].fault(
        f"does not hold the {tensor.dtype} chunk of {short_text(tensor.path)} that {METADATA} "
            f"names", hint=HINT,
    )  # fmt: skip


def _in_whole_file(source: TensorSource) -> TensorSource:
    """Return a source that refers to the shard itself, so that neighbours can be read together."""
    if isinstance(source, FileSpan) and isinstance(source.opened, FilePart):
        part = source.opened
        return FileSpan(part.whole, part.start + source.start, source.size_bytes)
    return source
