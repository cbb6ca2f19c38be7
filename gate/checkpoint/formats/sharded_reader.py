"""Reads weights that are spread over several files, with an index that says where each one is.

Layout: a JSON object with `weight_map`, from the name of each tensor to that of the file in the
same folder. Source: the documentation of Hugging Face's sharded checkpoints. What else the index
holds (`metadata`, the total size) is left out: one file with the same weights has none of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gate.checkpoint.formats.file_formats import UnknownContent, read_file
from gate.checkpoint.formats.json_reader import MAX_JSON_BYTES, is_json
from gate.checkpoint.leaves import Leaf, StateContent, TensorLeaf
from gate.checkpoint.state_tree import text_part
from gate.checkpoint.untrusted_files import UntrustedFile
from gate.checkpoint.untrusted_folder import UntrustedFolder, is_plain_name
from gate.errors import EvidenceError
from gate.text.strict_json import parse_json
from gate.text.untrusted_text import short_text

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
    found: dict[str, str] = {}
    for name, file in places.items():
        if not isinstance(name, str) or not isinstance(file, str):
            raise opened.fault("its weight_map has a value that is not a name")
        # the index was written by the run: a path in it could lead anywhere (CWE-22)
        if not is_plain_name(file):
            raise opened.fault(
                f"its weight_map points to {short_text(file)}, which is not a file in its folder"
            )
        found[name] = file
    if not found:
        raise opened.fault("its weight_map is empty", hint=SHARD_HINT)
    return found


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
    found = {leaf.path for leaf in leaves if isinstance(leaf, TensorLeaf)}
    missing = expected - found
    if missing:
        problem = f"{short_text(min(missing))} is missing, although the index names it"
        raise EvidenceError(f"{shown}: {problem}", hint=SHARD_HINT)
    extra = {leaf.path for leaf in leaves} - expected
    if extra:
        problem = f"{short_text(min(extra))} is in this shard, but not according to the index"
        raise EvidenceError(f"{shown}: {problem}", hint=SHARD_HINT)
