"""Reads a file that is one pickle, as `pickle.dump` writes it, by interpreting it."""

from __future__ import annotations

from gate.checkpoint.leaves import StateContent
from gate.checkpoint.node_leaves import no_storages, node_leaves
from gate.checkpoint.pickle.calls import StateError
from gate.checkpoint.pickle.reader import HEADS, read_pickle
from gate.checkpoint.sources.untrusted_file import UntrustedFile

MAX_PICKLE_BYTES = 64 * 1024 * 1024
FORMAT = "pickle"


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a pickle of a protocol that is read."""
    return head[:2] in HEADS


def read_pickle_file(opened: UntrustedFile) -> StateContent:
    """Every leaf of the pickled value.

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
    return StateContent(shown=opened.shown, format=FORMAT, leaves=leaves)
