"""Reads a folder of `torch.distributed.checkpoint` into the leaves that one file would have.

Each range that `.metadata` names is a `torch.save` archive of its own: of a chunk of a tensor, or
of an object. Source: `torch/distributed/checkpoint/filesystem.py` of torch 2.13.
"""

from __future__ import annotations

from itertools import pairwise

from gate.checkpoint.dtypes import ELEMENT_BYTES
from gate.checkpoint.file_part import FilePart, file_part
from gate.checkpoint.formats.distributed import (
    Chunk,
    ChunkedTensor,
    Entry,
    FileRange,
    SavedObject,
    read_metadata,
)
from gate.checkpoint.formats.tensor_sources import Box, assembled
from gate.checkpoint.formats.torch_archive import read_torch_archive
from gate.checkpoint.formats.zip_archives import read_zip_records
from gate.checkpoint.leaves import FileSpan, Leaf, StateContent, TensorLeaf, TensorSource
from gate.checkpoint.node_leaves import below
from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.state_tree import MAX_VISITS
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.checkpoint.untrusted_folder import UntrustedFolder
from gate.text.untrusted_text import short_text

METADATA = ".metadata"
SHARD_SUFFIX = ".distcp"
FORMAT = "distributed checkpoint"
MAX_METADATA_BYTES = 64 * 1024 * 1024
HINT = "Save the whole checkpoint again, into an empty folder, and let all ranks finish."


def read_distributed(folder: UntrustedFolder) -> tuple[StateContent, set[str]]:
    """All entries of the checkpoint, and the names of the files that it consists of.

    Raises `EvidenceError` for shards that are missing or too many, and for chunks that are not
    what the metadata says.
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
        if len(leaves) > MAX_VISITS:
            raise folder.fault(f"holds more than {MAX_VISITS:,} values")
    content = StateContent(shown=folder.shown, format=FORMAT, leaves=tuple(leaves))
    return content, {METADATA, *shards}


def _entry_places(entry: Entry) -> list[FileRange]:
    if isinstance(entry, SavedObject):
        return [entry.place]
    return [chunk.place for chunk in entry.chunks]


def _refuse_overlaps(opened: UntrustedFile, places: list[FileRange]) -> None:
    """Each byte belongs to one entry, so that reading all of them is reading the files once."""
    for one, other in pairwise(sorted(places)):
        if one.file == other.file and other.offset < one.offset + one.length:
            raise opened.fault(f"has overlapping entries in {short_text(one.file)}", hint=HINT)


def _open_shards(folder: UntrustedFolder, wanted: set[str]) -> dict[str, UntrustedFile]:
    present = folder.names()
    missing = wanted.difference(present)
    if missing:
        raise folder.fault(
            f"shard {short_text(min(missing))} is missing, which {METADATA} names", hint=HINT
        )
    # left by an earlier save with more ranks; the metadata of the last save hides that it is there
    extra = {name for name in present if name.endswith(SHARD_SUFFIX)} - wanted
    if extra:
        raise folder.fault(
            f"holds the shard {short_text(min(extra))}, which {METADATA} does not name", hint=HINT
        )
    return {name: folder.open(name) for name in sorted(wanted)}


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
        # dotted names in a pattern are compared, plain ones bound: dtype and sizes have to be these
        case (TensorLeaf("", tensor.dtype, chunk.sizes, source),):
            return _in_whole_file(source)
    raise shards[chunk.place.file].fault(
        f"does not hold the {tensor.dtype} chunk of {short_text(tensor.path)} that {METADATA} "
            f"names", hint=HINT,
    )  # fmt: skip


def _in_whole_file(source: TensorSource) -> TensorSource:
    """The place in the shard itself, so that neighbours can be read together."""
    if isinstance(source, FileSpan) and isinstance(source.opened, FilePart):
        part = source.opened
        return FileSpan(part.whole, part.start + source.start, source.size_bytes)
    return source
