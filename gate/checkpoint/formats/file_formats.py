"""Read one saved file of any known format, which is detected by content and never by name."""

from __future__ import annotations

from enum import Enum

from gate.checkpoint.formats.npy_reader import MAGIC, is_npz, read_npy, read_npz
from gate.checkpoint.formats.safetensors_reader import read_safetensors
from gate.checkpoint.formats.torch_files import (
    is_legacy_file,
    is_script,
    is_torch_archive,
    read_legacy_file,
    read_torch_archive,
)
from gate.checkpoint.formats.zip_archives import check_unpacked, read_zip_records
from gate.checkpoint.leaves import RAW_DTYPE, FileSpan, StateContent, TensorLeaf
from gate.checkpoint.pickle.calls import MapNode, StateError
from gate.checkpoint.pickle.reader import HEADS, MAX_PICKLE_BYTES, read_pickle
from gate.checkpoint.state_tree import no_storages, node_leaves
from gate.checkpoint.untrusted_files import SAVE_HINT, UntrustedFile
from gate.errors import DocumentError, EvidenceError
from gate.text.strict_json import parse_json

FORMAT = "JSON"
MAX_JSON_BYTES = 64 * 1024 * 1024
# A language model's vocabulary has more values than this. Such a file is better compared by its
# bytes.
MAX_VALUES = 300_000
BEGINNINGS = (b"{", b"[")
BLANKS = b" \t\r\n"


def is_json(head: bytes) -> bool:
    """Return whether a file with this beginning looks like a JSON object or list."""
    return head.lstrip(BLANKS).startswith(BEGINNINGS)


def read_json(opened: UntrustedFile) -> StateContent:
    """Return every value as a leaf, including NaN and infinities, which trainers write.

    Raises `EvidenceError` naming the file and what is wrong with it, or `DocumentError`, which
    `open_untrusted` turns into one.
    """
    if opened.size_bytes > MAX_JSON_BYTES:
        raise opened.fault(f"JSON larger than {MAX_JSON_BYTES:,} bytes")
    data = opened.read_at(0, opened.size_bytes)
    # Count before parsing: an empty list takes two bytes in the file and 56 in memory.
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_VALUES:
        raise opened.fault(f"JSON with more than {MAX_VALUES:,} values")
    # trainers write the word NaN, which JSON lacks; refusing it would hide a diverged loss
    value = parse_json(data, opened.shown, max_bytes=MAX_JSON_BYTES, non_finite=True)
    try:
        leaves = tuple(node_leaves(_node(value), no_storages))
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error
    return StateContent(shown=opened.shown, format=FORMAT, leaves=leaves)


def _node(value: object) -> object:
    """Return JSON objects as maps; the parser has limited their nesting."""
    if isinstance(value, dict):
        return MapNode([(key, _node(item)) for key, item in value.items()])
    return [_node(item) for item in value] if isinstance(value, list) else value


HEAD_BYTES = 64
ZIP_HEADS = (b"PK\x03\x04", b"PK\x05\x06")
PICKLE_FORMAT = "pickle"
RAW_FORMAT = "unknown content"
RAW_NOTE = "its format is unknown, so its bytes were compared as they are"


class UnknownContent(Enum):
    """What to do with a file whose content is not understood: refuse it, or compare its bytes."""

    REFUSE = "refuse"
    BYTES = "bytes"


def read_file(opened: UntrustedFile, unknown: UnknownContent) -> StateContent:
    """Return the leaves of a file.

    Raises `EvidenceError` (or `DocumentError` for JSON) for a file of a known format that is
    broken. Under `REFUSE`, a file of unknown content is an error too.
    """
    # detect by content, because the script chooses the names
    head = opened.read_at(0, min(HEAD_BYTES, opened.size_bytes))
    if head[:2] in HEADS:
        return read_legacy_file(opened) if is_legacy_file(head) else _read_pickle(opened)
    if head.startswith(ZIP_HEADS):
        return _read_zip(opened, unknown)
    if head.startswith(MAGIC):
        return read_npy(opened)
    # the first eight bytes of safetensors are a length, which never looks like text
    if head[8:9] == b"{" and not _is_text(head[:8]):
        return read_safetensors(opened)
    if is_json(head):
        return _read_json(opened, unknown)
    return _read_unknown(opened, unknown, "has an unknown format" if head else "is empty")


def read_raw(opened: UntrustedFile, why: str) -> StateContent:
    """Return the bytes of a file as the only leaf; the note says `why`."""
    span = FileSpan(opened, 0, opened.size_bytes)
    leaf = TensorLeaf("", RAW_DTYPE, (opened.size_bytes,), span)
    return StateContent(shown=opened.shown, format=RAW_FORMAT, leaves=(leaf,), notes=(why,))


def _read_pickle(opened: UntrustedFile) -> StateContent:
    """Return every leaf of the pickled value.

    Raises `EvidenceError` naming the file and what is wrong with it.
    """
    if opened.size_bytes > MAX_PICKLE_BYTES:
        raise opened.fault(
            f"is a pickle larger than {MAX_PICKLE_BYTES:,} bytes",
            hint="Save large arrays with torch.save, numpy.save or as safetensors.",
        )
    try:
        root = read_pickle(opened.read_at(0, opened.size_bytes))
        leaves = tuple(node_leaves(root, no_storages))
    except StateError as error:
        raise opened.fault(error.message, hint=error.hint) from error
    return StateContent(shown=opened.shown, format=PICKLE_FORMAT, leaves=leaves)


def _is_text(data: bytes) -> bool:
    return all(byte in b"\t\r\n" or byte >= ord(" ") for byte in data)


def _read_zip(opened: UntrustedFile, unknown: UnknownContent) -> StateContent:
    records = read_zip_records(opened)
    if not is_torch_archive(records):
        if is_npz(opened, records):
            return read_npz(opened, records)
        check_unpacked(opened, records.values())
        return _read_unknown(opened, unknown, "is a zip archive of neither torch nor NumPy")
    if is_script(records) and unknown is UnknownContent.BYTES:
        return read_raw(opened, f"is a TorchScript archive, not a state; {RAW_NOTE}")
    return read_torch_archive(opened, records)


def _read_json(opened: UntrustedFile, unknown: UnknownContent) -> StateContent:
    """Return a JSON file's leaves; under `BYTES`, invalid JSON is unknown content.

    That includes text that only begins like JSON, and keys that cannot be names.
    """
    try:
        return read_json(opened)
    except (DocumentError, EvidenceError) as error:
        if unknown is UnknownContent.REFUSE:
            raise
        return read_raw(opened, f"{RAW_NOTE} ({error.message.removeprefix(f'{opened.shown}: ')})")


def _read_unknown(opened: UntrustedFile, unknown: UnknownContent, problem: str) -> StateContent:
    if unknown is UnknownContent.REFUSE:
        raise opened.fault(problem, hint=SAVE_HINT)
    return read_raw(opened, RAW_NOTE)
