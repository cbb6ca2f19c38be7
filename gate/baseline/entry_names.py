"""The name of an entry's file in the baseline's folder, made from the entry alone."""

from __future__ import annotations

import re
from typing import Final

from gate.baseline.entry import BaselineEntry
from gate.text.codec_digests import sha256_hex
from gate.text.json_text import canonical_json
from gate.training.environment import CPU, DEVICE

SUFFIX: Final = ".json"
DIGITS: Final = 6
MAX_DEVICE: Final = 40
MAX_VERSION: Final = 20
# small letters alone: two names that differ in their case are one file on some disks
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{0,149}\.json")
_OTHER: Final = re.compile(r"[^a-z0-9.]+")


def entry_name(entry: BaselineEntry) -> str:
    """For example `cpu-1-rank-torch-2.13.0-1f65dc-2eb18f.json`.

    The words are for people; the digits at the end, of a SHA-256 over all parts of the environment
    and the training, make it the name of no other entry. So entries of different environments are
    different files, and a merge never meets two of them in one.
    """
    where = entry.environment
    device = where.part(DEVICE) if where.on_gpu else CPU
    ranks = where.part("world_size")
    ranks = ranks if ranks.isascii() and ranks.isdecimal() else "1"
    torch = where.part("torch").partition("+")[0]
    digest = sha256_hex(canonical_json([entry.training, where.parts]))
    words = (
        _plain(device, MAX_DEVICE) or "unknown",
        ranks[:MAX_VERSION],
        "rank" if ranks == "1" else "ranks",
        "torch",
        _plain(torch, MAX_VERSION) or "unknown",
        # apart, since seven and more are taken for a commit wherever a comment names the file
        digest[:DIGITS],
        digest[DIGITS : 2 * DIGITS],
    )
    return "-".join(words) + SUFFIX


def may_be_entry(name: str) -> bool:
    """Whether a file of this name could be an entry; such a name is safe as a path."""
    return _NAME.fullmatch(name) is not None


def _plain(text: str, most: int) -> str:
    return _OTHER.sub("-", text.lower())[:most].strip("-.")
