"""Opens a saved state of any known format, a file or a folder, detected by its content.

Layout: a JSON object with `weight_map`, from the name of each tensor to that of the file in the
same folder. Source: the documentation of Hugging Face's sharded checkpoints. What else the index
holds (`metadata`, the total size) is left out: one file with the same weights has none of it.

A folder is a map from the stem of each file's name to what the file holds. Weights in `model.*` or
`pytorch_model.*`, in one file or in shards, are `/model`; a distributed checkpoint is what it would
be in one file. Two files with one stem are told apart by their names.
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
    """The files of `whole` below `prefix`, which ends with a slash or is empty.

    `places` has start and size in bytes of each file by its name in the archive; the names are
    plain and relative.
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
        """As in `UntrustedFolder`; the archive stays open, so there is no limit to their number."""
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
    """The file of each tensor when a file is an index, None when it is something else.

    Raises `EvidenceError` for an index that points outside its folder, and `DocumentError` for one
    that is no strict JSON.
    """
    if opened.size_bytes > MAX_JSON_BYTES or not is_json(
        opened.read_at(0, min(HEAD_BYTES, opened.size_bytes))
    ):
        return None
    data = opened.read_at(0, opened.size_bytes)
    # so that other JSON is not parsed twice
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
        # the index was written by the run: a path in it could lead anywhere (CWE-22)
        if not is_plain_name(file):
            raise opened.fault(
                f"its weight_map points to {short_text(file)}, which is not a file in its folder"
            )
        excluded[name] = file
    if not excluded:
        raise opened.fault("its weight_map is empty", hint=SHARD_HINT)
    return excluded


def read_shards(folder: UntrustedFolder, places: dict[str, str], index_name: str) -> StateContent:
    """The tensors of all shards together, as one file would hold them.

    Raises `EvidenceError` for a shard or tensor that is missing, or there without being named.
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
        # a shard of unknown content cannot be shown to hold the tensors that the index promises
        content = read_file(folder.open(shard), UnknownContent.REFUSE)
        _compare(content.shown, expected[shard], content.leaves)
        leaves += content.leaves
        formats.add(content.format)
    return StateContent(
        shown=folder.shown, format=f"{' and '.join(sorted(formats))} in shards",
        leaves=tuple(leaves),
    )  # fmt: skip


def _refuse_left_overs(folder: UntrustedFolder, present: Iterable[str], shards: list[str]) -> None:
    """A file numbered like the shards but not named by the index is one of another checkpoint."""
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
# Another name of the model's weights in one framework.
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
    """The leaves of a saved state; their bytes can be read while the body runs.

    `shown` names it in every error, `max_bytes` is for all of its files together, and `unknown`
    says what happens to files whose content is not understood. Raises `EvidenceError` saying what
    is wrong with it.
    """
    is_folder = files.is_folder(path)
    # the folder around a single file too: it may be an index of shards that lie beside it
    where = path if is_folder else path.parent
    with open_untrusted_folder(files, where, shown, max_bytes=max_bytes) as folder:
        yield read_state(folder, None if is_folder else path.name, unknown)


def read_state(folder: UntrustedFolder, name: str | None, unknown: UnknownContent) -> StateContent:
    """The leaves of a file of a folder, or of all that is in it where `name` is None.

    Raises what `open_state` raises.
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
    """A file on its own, or the index of the shards beside it."""
    opened = beside.open(name, shown=beside.shown)
    places = read_index(opened)
    if places is not None:
        return read_shards(beside, places, name)
    return read_file(opened, unknown)


def _read_folder(folder: UntrustedFolder, unknown: UnknownContent, depth: int = 0) -> StateContent:
    """The leaves of all files in a folder and below it.

    A folder with nothing but the model's weights is the same as one file with them. Raises
    `EvidenceError` for an empty folder, and for what is wrong with any file; nothing is left out.
    """
    names = folder.names()
    if not names:
        raise folder.fault("is an empty folder", hint="Let the script save before it ends.")
    # each level is a call of this function, and the depth is the run's to choose
    if depth > MAX_DEPTH:
        raise folder.fault(f"is nested deeper than {MAX_DEPTH} folders")
    leaves: list[Leaf] = []
    if METADATA in names:
        entries, used = read_distributed(folder)
        # what lies beside a distributed checkpoint is part of the state as well
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
    """Names of folders, files and keys together are no longer than those of one file."""
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
    """The same contents; it ends in an error as soon as they hold too much together."""
    total = 0
    for name, content in contents:
        total += len(content.leaves)
        if total > MAX_VISITS:
            raise folder.fault(f"holds more than {MAX_VISITS:,} values")
        yield name, content


def _contents(
    folder: UntrustedFolder, names: tuple[str, ...], unknown: UnknownContent, depth: int
) -> Iterator[tuple[str, StateContent]]:
    """What each name holds; an index stands for its shards, under the name that one file has."""
    files = {name: folder.open(name) for name in names if not folder.is_folder(name)}
    indices = {name: read_index(opened) for name, opened in files.items()}
    shards = {shard for places in indices.values() if places for shard in places.values()}
    # shards first: what is left over of them has its own error
    for name in sorted(names, key=lambda name: not indices.get(name)):
        places = indices.get(name)
        if places:
            yield name.removesuffix(INDEX_SUFFIX), read_shards(folder, places, name)
        elif name not in files:
            yield name, _read_folder(folder.folder(name), unknown, depth + 1)
        elif name not in shards:
            yield name, read_file(files[name], unknown)


def _keys(folder: UntrustedFolder, names: list[str]) -> list[str]:
    """The stem of each file's name, or the name where a stem is not the only one."""
    stems = [name if folder.is_folder(name) else PurePosixPath(name).stem for name in names]
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
