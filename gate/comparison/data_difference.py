"""Find where two files of one name first differ: a tensor and its element, a row, or a byte."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Final

from gate.checkpoint.formats.formats import open_state
from gate.comparison.state_difference import LeafChange, LeafDifference
from gate.comparison.states import compare_states
from gate.errors import EvidenceError, StorageError
from gate.system.files.port import Files
from gate.text.untrusted_text import safe_line

STATES: Final = (".npy", ".npz", ".pt", ".pth", ".ckpt", ".bin", ".safetensors")
ROWS: Final = (".csv", ".tsv", ".jsonl", ".ndjson", ".txt", ".json")
MAX_BYTES: Final = 2**40
CHUNK_BYTES: Final = 1024 * 1024
# The longest line read at once. A file with a longer line is not text.
MAX_LINE: Final = 16 * 1024 * 1024


def first_difference(files: Files, expected: Path, observed: Path) -> str:
    """Return in a few words where the second file first differs; "" if the files are equal.

    The name's suffix decides how the file is read. If it cannot be read that way, bytes are
    compared.
    """
    ending = expected.suffix.lower()
    if ending in STATES:
        try:
            return _in_state(files, expected, observed)
        except (EvidenceError, StorageError):
            # A file that cannot be read as a state still has bytes to compare.
            return _byte(files, expected, observed)
    return _row(files, expected, observed) if ending in ROWS else _byte(files, expected, observed)


def _in_state(files: Files, first: Path, second: Path) -> str:
    with (
        open_state(files, first, first.name, max_bytes=MAX_BYTES) as left,
        open_state(files, second, second.name, max_bytes=MAX_BYTES) as right,
    ):
        differences = compare_states(left, right, exclusions=(), max_bytes=MAX_BYTES).differences
    # Choose by name: choosing the worst would name a different tensor each time.
    return _named(min(differences, key=lambda leaf: leaf.path)) if differences else ""


def _named(leaf: LeafDifference) -> str:
    name = f"tensor {safe_line(leaf.path)}" if leaf.path else "the array"
    if leaf.change is not LeafChange.CHANGED:
        return f"{name}: {leaf.left or 'absent'} → {leaf.right or 'absent'}"
    if leaf.numbers is None:
        return name
    index = ", ".join(map(str, leaf.numbers.first_index))
    share = f"{leaf.numbers.differing:,} of {leaf.numbers.elements:,} elements"
    return f"{name} at [{index}] ({share})"


def _row(files: Files, first: Path, second: Path) -> str:
    with (
        files.open_binary(first, max_bytes=MAX_BYTES) as left,
        files.open_binary(second, max_bytes=MAX_BYTES) as right,
    ):
        for number, (before, after) in enumerate(zip_longest(_lines(left), _lines(right)), 1):
            if before != after:
                return f"line {number:,}"
    return ""


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: stream.readline(MAX_LINE), b"")


def _byte(files: Files, first: Path, second: Path) -> str:
    at = 0
    with (
        files.open_binary(first, max_bytes=MAX_BYTES) as left,
        files.open_binary(second, max_bytes=MAX_BYTES) as right,
    ):
        while True:
            before, after = left.read(CHUNK_BYTES), right.read(CHUNK_BYTES)
            if before != after:
                pairs = enumerate(zip_longest(before, after))
                return f"byte {at + next(n for n, (x, y) in pairs if x != y):,}"
            if not before:
                return ""
            at += len(before)
