"""Open a saved state of any known format, a file or a folder, which is detected by its content.

An index is a JSON object with `weight_map`, which maps the name of each tensor to the name of a
file in the same folder. Source: the documentation of Hugging Face's sharded checkpoints. Everything
else in the index (`metadata`, the total size) is left out, because a single file with the same
weights has none of it.

A folder is a map from the stem of each file's name to the content of the file. Weights in `model.*`
or `pytorch_model.*`, in one file or in shards, are `/model`. A distributed checkpoint gives what a
single file would give. If two files have the same stem, their full names are used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from gate.checkpoint.formats.distributed import METADATA, read_distributed
from gate.checkpoint.formats.file_formats import MAX_JSON_BYTES, UnknownContent, is_json, read_file
from gate.checkpoint.leaves import Leaf, StateContent, TensorLeaf
from gate.checkpoint.parts import calls_told
from gate.checkpoint.state_tree import MAX_PATH, MAX_VISITS, below, text_part
from gate.checkpoint.tensor_hashing import gc_paused
from gate.checkpoint.untrusted_files import (
    HINT,
    ReadableFiles,
    UntrustedFile,
    UntrustedFolder,
    file_part,
    is_plain_name,
    open_untrusted_folder,
)
from gate.errors import DocumentError, EvidenceError
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import plain_text, short_text


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchivedFolder(UntrustedFolder):
    """A folder in an archive: the files of `whole` below `prefix`.

    `prefix` ends with a slash or is empty. `places` maps the name of each file in the archive to
    its start and size in bytes. The names are plain and relative.
    """

    whole: UntrustedFile
    places: Mapping[str, tuple[int, int]]
    prefix: str

    def names(self) -> tuple[str, ...]:
        """As in `UntrustedFolder`."""
        below = (name.removeprefix(self.prefix) for name in self._below(self.prefix))
        return tuple(sorted({name.partition("/")[0] for name in below}))

    def is_folder(self, name: str) -> bool:
        """As in `UntrustedFolder`."""
        return any(self._below(f"{self.prefix}{name}/"))

    def folder(self, name: str) -> UntrustedFolder:
        """As in `UntrustedFolder`."""
        return replace(self, prefix=f"{self.prefix}{name}/", shown=f"{self.shown}/{name}")

    def open(self, name: str, *, shown: str = "") -> UntrustedFile:
        """As in `UntrustedFolder`; no file is opened, so their number has no limit."""
        place = self.places.get(f"{self.prefix}{name}")
        if place is None or "/" in name:
            raise self.fault(f"{short_text(name)} is named, but no such file exists")
        return file_part(self.whole, *place, shown or f"{self.shown}/{name}")

    def _below(self, prefix: str) -> tuple[str, ...]:
        return tuple(name for name in self.places if name.startswith(prefix))


MAP_KEY = "weight_map"
HEAD_BYTES = 64
NUMBERED: Final = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-[0-9]{5}(?P<suffix>\.[^.]+)", re.DOTALL)
SHARD_HINT = "Save the whole checkpoint again, into an empty folder."


def read_index(opened: UntrustedFile) -> dict[str, str] | None:
    """Return the file of each tensor if a file is an index, or None for any other file.

    Raises `EvidenceError` for an index that points outside its folder, and `DocumentError` for
    invalid JSON.
    """
    if opened.size_bytes > MAX_JSON_BYTES or not is_json(
        opened.read_at(0, min(HEAD_BYTES, opened.size_bytes))
    ):
        return None
    data = opened.read_at(0, opened.size_bytes)
    # avoids parsing other JSON files twice
    if f'"{MAP_KEY}"'.encode() not in data:
        return None
    index = parse_json(data, opened.shown, max_bytes=MAX_JSON_BYTES, non_finite=True)
    places = index.get(MAP_KEY) if isinstance(index, dict) else None
    return _checked(opened, places) if isinstance(places, dict) else None


def _checked(opened: UntrustedFile, places: dict[object, object]) -> dict[str, str]:
    excluded: dict[str, str] = {}
    for name, file in places.items():
        if not isinstance(name, str) or not isinstance(file, str):
            raise opened.fault("its weight_map has a value that is not a name")
        # The run wrote the index, so a path in it could lead anywhere (CWE-22).
        if not is_plain_name(file):
            raise opened.fault(
                f"its weight_map points to {short_text(file)}, which is not a file in its folder"
            )
        excluded[name] = file
    if not excluded:
        raise opened.fault("its weight_map is empty", hint=SHARD_HINT)
    return excluded


def read_shards(folder: UntrustedFolder, places: dict[str, str], index_name: str) -> StateContent:
    """Return the tensors of all shards together, as a single file would have them.

    Raises `EvidenceError` for a shard or tensor that is missing, or that is there and not in the
    index.
    """
    present = set(folder.names())
    expected: dict[str, set[str]] = {}
    for name, shard in places.items():
        expected.setdefault(shard, set()).add(text_part(name))
    shards = sorted(expected)
    _refuse_left_overs(folder, present, shards)
    leaves: list[Leaf] = []
    formats: set[str] = set()
    for shard in shards:
        if shard not in present:
            raise folder.fault(
                f"shard {short_text(shard)} is missing, which {short_text(index_name)} names",
                hint=SHARD_HINT,
            )
        # a shard of unknown content cannot prove that it has the tensors in the index
        content = read_file(folder.open(shard), UnknownContent.REFUSE)
        _compare(content.shown, expected[shard], content.leaves)
        leaves += content.leaves
        formats.add(content.format)
    return StateContent(
        shown=folder.shown, format=f"{' and '.join(sorted(formats))} in shards",
        leaves=tuple(leaves),
    )  # fmt: skip


def _refuse_left_overs(folder: UntrustedFolder, present: Iterable[str], shards: list[str]) -> None:
    """Refuse a file that is numbered like the shards and not in the index.

    It belongs to another checkpoint.
    """
    matches = [match for match in map(NUMBERED.fullmatch, shards) if match]
    series = {(match["stem"], match["suffix"]) for match in matches}
    for name in sorted(set(present).difference(shards)):
        match = NUMBERED.fullmatch(name)
        if match and (match["stem"], match["suffix"]) in series:
            raise folder.fault(
                f"holds the shard {short_text(name)}, which no index names", hint=SHARD_HINT
            )


def _compare(shown: str, expected: set[str], leaves: tuple[Leaf, ...]) -> None:
    tensor_paths = {leaf.path for leaf in leaves if isinstance(leaf, TensorLeaf)}
    missing = expected - tensor_paths
    if missing:
        problem = f"{short_text(min(missing))} is missing, although the index names it"
        raise EvidenceError(f"{shown}: {problem}", hint=SHARD_HINT)
    extra = {leaf.path for leaf in leaves} - expected
    if extra:
        problem = f"{short_text(min(extra))} is in this shard, but not according to the index"
        raise EvidenceError(f"{shown}: {problem}", hint=SHARD_HINT)


MAX_DEPTH = 8
FORMAT, TRAINER_FORMAT = "folder", "Hugging Face trainer folder"
INDEX_SUFFIX = ".index.json"
MODEL = "model"
# one framework's name for the model's weights
OLD_MODEL = "pytorch_model"
TRAINER_STATE = "trainer_state"


@contextmanager
def open_state(
    files: ReadableFiles,
    path: Path,
    shown: str,
    *,
    max_bytes: int,
    unknown: UnknownContent = UnknownContent.REFUSE,
) -> Iterator[StateContent]:
    """Yield the leaves of a saved state; their bytes can be read while the body runs.

    `shown` is its name in errors. `max_bytes` limits all of its files together. `unknown` says what
    happens to files whose content is not understood. Raises `EvidenceError` saying what is wrong.
    """
    is_folder = files.is_folder(path)
    # A single file's folder is opened too, because the file may be an index of shards beside it.
    where = path if is_folder else path.parent
    with open_untrusted_folder(files, where, shown, max_bytes=max_bytes) as folder:
        yield read_state(folder, None if is_folder else path.name, unknown)


def read_state(folder: UntrustedFolder, name: str | None, unknown: UnknownContent) -> StateContent:
    """Return the leaves of one file in a folder, or of the whole folder if `name` is None.

    Raises the errors of `open_state`.
    """
    try:
        with gc_paused():
            content = (
                _read_folder(folder, unknown) if name is None else _read(folder, name, unknown)
            )
            return replace(content, notes=(*content.notes, *calls_told(content.leaves)))
    except DocumentError as error:
        details = tuple(map(plain_text, error.details))
        raise EvidenceError(plain_text(error.message), hint=HINT, details=details) from error


def _read(beside: UntrustedFolder, name: str, unknown: UnknownContent) -> StateContent:
    """Return the leaves of a file, or of the shards beside it if the file is an index."""
    opened = beside.open(name, shown=beside.shown)
    places = read_index(opened)
    if places is not None:
        return read_shards(beside, places, name)
    return read_file(opened, unknown)


def _read_folder(folder: UntrustedFolder, unknown: UnknownContent, depth: int = 0) -> StateContent:
    """Return the leaves of all files in a folder and in its subfolders.

    A folder with only the model's weights gives the same leaves as a single file with them. Raises
    `EvidenceError` for an empty folder and for any file that cannot be read; no file is left out.
    """
    names = folder.names()
    if not names:
        raise folder.fault("is an empty folder", hint="Let the script save before it ends.")
    # this function recurses, and the run chooses the depth of its folders
    if depth > MAX_DEPTH:
        raise folder.fault(f"is nested deeper than {MAX_DEPTH} folders")
    leaves: list[Leaf] = []
    if METADATA in names:
        entries, used = read_distributed(folder)
        # files beside a distributed checkpoint are part of the state too
        names = tuple(name for name in names if name not in used)
        if not names:
            return _bounded(folder, entries)
        leaves += entries.leaves
    contents = list(_counted(folder, _contents(folder, names, unknown, depth)))
    keys = _keys(folder, [name for name, _ in contents])
    if keys == [MODEL] and not leaves:
        return contents[0][1]
    for key, (_, content) in zip(keys, contents, strict=True):
        leaves += below(text_part(key), content.leaves)
    content = StateContent(
        shown=folder.shown,
        format=TRAINER_FORMAT if {MODEL, TRAINER_STATE} <= set(keys) else FORMAT,
        leaves=tuple(leaves),
        notes=tuple(f"{name}: {note}" for name, content in contents for note in content.notes),
    )
    return _bounded(folder, content)


def _bounded(folder: UntrustedFolder, content: StateContent) -> StateContent:
    """Return the content; refuse paths longer than those of a single file may be.

    Names of folders, files and keys together form the path.
    """
    for leaf in content.leaves:
        if len(leaf.path) > MAX_PATH or not leaf.path.isprintable():
            raise folder.fault(
                f"{short_text(leaf.path)} is above {MAX_PATH} characters or not printable",
                hint="Save the state under short plain names.",
            )
    return content


def _counted(
    folder: UntrustedFolder, contents: Iterable[tuple[str, StateContent]]
) -> Iterator[tuple[str, StateContent]]:
    """Yield the same contents; raise `EvidenceError` as soon as they are too many together."""
    total = 0
    for name, content in contents:
        total += len(content.leaves)
        if total > MAX_VISITS:
            raise folder.fault(f"holds more than {MAX_VISITS:,} values")
        yield name, content


def _contents(
    folder: UntrustedFolder, names: tuple[str, ...], unknown: UnknownContent, depth: int
) -> Iterator[tuple[str, StateContent]]:
    """Yield the content for each name; an index gives all of its shards, under one name."""
    files = {name: folder.open(name) for name in names if not folder.is_folder(name)}
    indices = {name: read_index(opened) for name, opened in files.items()}
    shards = {shard for places in indices.values() if places for shard in places.values()}
    # indices first, because a shard that is left over has an error of its own
    for name in sorted(names, key=lambda name: not indices.get(name)):
        places = indices.get(name)
        if places:
            yield name.removesuffix(INDEX_SUFFIX), read_shards(folder, places, name)
        elif name not in files:
            yield name, _read_folder(folder.folder(name), unknown, depth + 1)
        elif name not in shards:
            yield name, read_file(files[name], unknown)


def _keys(folder: UntrustedFolder, names: list[str]) -> list[str]:
    """Return the stem of each file's name, or its full name if another file has the same stem."""
    stems = [name if folder.is_folder(name) else PurePosixPath(name).stem for name in names]
    # a folder may contain `model.*` and `pytorch_model.*`, which must not become one
    if MODEL not in stems:
        stems = [MODEL if stem == OLD_MODEL else stem for stem in stems]
    counts = Counter(stems)
    keys = [stem if counts[stem] == 1 else name for name, stem in zip(names, stems, strict=True)]
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise folder.fault(
            f"two of its files would both be {short_text(twice[0])}", hint="Rename one of them."
        )
    return keys
