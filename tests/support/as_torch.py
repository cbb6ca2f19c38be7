"""Compare what `torch.load` reads from a file with the leaves that the program finds in it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from checkpoint_digests import content_of
from plain_states import specified_leaves

from gate.errors import EvidenceError

REFUSED, NOT_LOADED, THE_SAME = "refused", "not loaded by torch", "the same"


def loaded(path: Path) -> object:
    """Load the state with torch, without running the file's code if torch can.

    Only for files whose calls do no harm. Raises torch's own error for a file that it refuses.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return torch.load(path, weights_only=True)
        except Exception:  # noqa: BLE001 - torch raises all kinds for files that are not its own
            return torch.load(path, weights_only=False)


def meaning(path: Path) -> str:
    """Return how a file was read; raises `AssertionError` if torch finds different leaves.

    The content of objects, their attributes and classes is ignored, because torch rebuilds these.
    """
    try:
        found = content_of(path)
    except EvidenceError:
        return REFUSED
    try:
        state = loaded(path)
    except Exception:  # noqa: BLE001 - as above: such a file has no other meaning
        return NOT_LOADED
    ours = {leaf.path: (leaf.kind, leaf.digest) for leaf in found.leaves}
    objects = {path for path, (kind, _) in ours.items() if kind in {"object", "name"}}
    beside = {path for path in ours if "/~" in path}
    # a map without items is no leaf where it has attributes
    passed_over = {path.partition("/~")[0] for path in beside} - ours.keys()
    expected = {
        path: digest
        for path, (_, _, digest) in specified_leaves(plain_arrays(state)).items()
        if path not in passed_over and not is_at_or_below(path, objects)
    }
    told = {
        path: digest
        for path, (_, digest) in ours.items()
        if path not in beside and not is_at_or_below(path, objects)
    }
    assert told == expected, (told.keys() ^ expected.keys(), state)
    return THE_SAME


def is_at_or_below(path: str, objects: set[str]) -> bool:
    return any(
        path == above or (path.startswith(above) and path[len(above)] in "/[{<")
        for above in objects
    )


def is_dense(tensor: torch.Tensor) -> bool:
    own = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return own and tensor.layout is torch.strided and not tensor.is_quantized


def plain_arrays(state: object) -> object:
    """Return the state with arrays as tensors, which give the same leaves.

    Tensors that consist of several tensors become objects.
    """
    if isinstance(state, torch.Tensor) and not is_dense(state):
        return "an object"
    if isinstance(state, np.ndarray):
        return torch.from_numpy(state.astype(state.dtype.newbyteorder("="), order="C"))
    if isinstance(state, dict):
        return {key: plain_arrays(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plain_arrays(value) for value in state]
    return state
