"""A fast digest of a CPU tensor's bytes: sums over the rows and the columns of a grid.

The bytes are read as 64-bit words in rows of `COLUMNS`; of each block of `ROWS` rows the sums over
rows and over columns (mod 2**64) are taken, and SHA-256 over all sums and the rest of less than a
row. Small tensors are hashed as they are. torch adds 64-bit integers at the speed of memory: 3.5 ms
for 40 MB on one core, against 25 ms for SHA-256 and 11 ms for CRC-32 (one core of an AMD EPYC with
SHA extensions, torch 2.13; `make bench-harness` measures each fingerprint).

What it sees: any change of one word (its row's sum moves), any swap of two (they lie in another
row or in another column), any permutation of whole rows or of columns. What it misses: changes that
cancel in every row and in every column at once, which takes four words at the corners of a
rectangle with equal and opposite differences. Rounding does not do that; somebody who wants to can.
So a diagnosis may rest on it, and a verdict does not: parameters keep SHA-256.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch

from .plain_bytes import byte_size, row_major, use_bytes

COLUMNS: Final = 1024
ROWS: Final = 1024
WORD_BYTES: Final = 8
SMALL_BYTES: Final = 64 * 1024


def grid_body(tensor: torch.Tensor) -> bytes:
    """32 bytes over the elements of a CPU tensor; type and shape are no part of it."""
    dense = row_major(tensor).reshape(-1)
    hasher = hashlib.sha256()
    if byte_size(dense) >= SMALL_BYTES:
        # words can be viewed only where they lie on a boundary of their own, and a slice may
        # begin between two
        if dense.data_ptr() % WORD_BYTES or dense.storage_offset() % WORD_BYTES:
            dense = dense.clone()
        elements = COLUMNS * WORD_BYTES // dense.element_size()
        rows = dense.numel() // elements
        words = dense[: rows * elements].view(torch.int64).view(rows, COLUMNS)
        for start in range(0, rows, ROWS):
            block = words[start : start + ROWS]
            # over rows, then over columns: a swap inside a row moves only the first of them
            use_bytes(block.sum(0), hasher.update)
            use_bytes(block.sum(1), hasher.update)
        dense = dense[rows * elements :]
    use_bytes(dense, hasher.update)
    return hasher.digest()
