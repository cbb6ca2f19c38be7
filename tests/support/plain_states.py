"""Translate a state made with torch into the terms of docs/digest.md, without any file."""

from __future__ import annotations

import torch
from specified_digest import Plain, leaf_digest, leaves, part_root, whole_root
from torch_states import row_major

from gate.checkpoint.parts import PARTS, part_of

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16",
    torch.int16: "I16", torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64",
    torch.int64: "I64", torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float32: "F32", torch.float64: "F64", torch.complex32: "C32", torch.complex64: "C64",
    torch.complex128: "C128",
}  # fmt: skip


def plain(state: object) -> object:
    """Return the state with tensors as `Plain`, and containers as Python's own."""
    if isinstance(state, torch.Tensor):
        return Plain(DTYPES[state.dtype], tuple(state.shape), row_major(state))
    if isinstance(state, dict):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [plain(value) for value in state]
    return state


def specified_leaves(state: object) -> dict[str, tuple[str, str, bytes]]:
    """Return part, kind or dtype, and digest of each leaf, by path."""
    found = {}
    for path, value in leaves(plain(state)):
        kind = value.dtype if isinstance(value, Plain) else ""
        part = part_of(path, kind, tensor=bool(kind))
        found[path] = part, kind, leaf_digest(value)
    return found


def specified_roots(state: object) -> dict[str, str]:
    """Return the root digest of each part, and `whole`."""
    rows = specified_leaves(state)
    parts = {
        part: part_root(part, {path: row[2] for path, row in rows.items() if row[0] == part})
        for part in PARTS
    }
    return {name: root.hex() for name, root in {**parts, "whole": whole_root(parts)}.items()}
