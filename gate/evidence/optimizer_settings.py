"""The settings of optimizers at the end, such as the learning rate, as short decimal numbers.

A manifest holds digests, and two digests side by side say only that something differs. These are
numbers that an optimizer was given; a value of the script's own checkpoint may be a secret of
whoever saved it and is never shown.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable

import numpy as np

from gate.checkpoint.leaves import Leaf, TensorLeaf
from gate.evidence.given import MAX_OPTIMIZER_SETTINGS

PATH = re.compile(r"/optimizer/\d+/group/\d+/.+")
FORMATS = {"F64": "<d", "F32": "<f", "I64": "<q", "BOOL": "<?"}


def optimizer_settings(leaves: Iterable[Leaf], prefix: str) -> dict[str, str]:
    """Every setting that is one number, under its name in the manifest; at most 1,000 of them."""
    settings: dict[str, str] = {}
    for leaf in leaves:
        if isinstance(leaf, TensorLeaf) and leaf.shape == () and PATH.fullmatch(leaf.path):
            layout = FORMATS.get(leaf.dtype)
            if layout is not None and len(settings) < MAX_OPTIMIZER_SETTINGS:
                data = b"".join(map(bytes, leaf.source.pieces(struct.calcsize(layout))))
                (number,) = struct.unpack(layout, data)
                # a float32 by its own shortest form: 0.001, not 0.0010000000474974513
                word = str(np.float32(number) if leaf.dtype == "F32" else number)
                settings[prefix + leaf.path] = word.lower()
    return settings
