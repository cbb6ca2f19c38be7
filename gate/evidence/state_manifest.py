"""The manifest of a state by itself: its bound, the names in it, and whether its roots fit.

Apart from `saved_state.py`, which parses files, so that the process that holds the key can ask
without a parser in reach.
"""

from __future__ import annotations

import re

from gate.checkpoint.digest import LeafDigest, roots_of
from gate.checkpoint.dtypes import RAW_DTYPE
from gate.checkpoint.hashing.canonical import ALGORITHM
from gate.checkpoint.parts import part_of
from gate.records.observed.evidence import CheckpointManifest

MAX_STATE_BYTES = 64 * 1024**3
# what stands before a leaf's own path, by which its part is told
PREFIX = re.compile(r"^(?:state(?:\.rank\d+)?|checkpoint)(?=[^A-Za-z0-9_.-]|\Z)")
CAPTURED = "state"


def roots_fit(claimed: CheckpointManifest) -> bool:
    """Whether a manifest from elsewhere has the roots of its own leaves."""
    leaves = [
        LeafDigest(
            path=tensor.name,
            part=part_of(
                PREFIX.sub("", tensor.name),
                tensor.dtype,
                tensor=tensor.dtype[:1].isupper() and tensor.dtype != RAW_DTYPE,
            ),
            kind=tensor.dtype,
            shape=tensor.shape,
            size_bytes=0,
            digest=bytes.fromhex(tensor.sha256),
        )
        for tensor in claimed.tensors
    ]
    roots = roots_of(leaves)
    return (claimed.algorithm, claimed.root, claimed.parts) == (ALGORITHM, roots.whole, roots.parts)
