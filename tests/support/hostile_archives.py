"""Archives written by hand, which `torch.save` would never write but an attacker could."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

PROTO = b"\x80\x02"
STOP = b"."


class Opcodes(bytes):
    """Pickle opcodes that leave one value on the stack."""

    __slots__ = ()


def push(value: object) -> Opcodes:
    """Return the opcodes for a plain value; tuples may contain opcodes."""
    if isinstance(value, Opcodes):
        return value
    if isinstance(value, tuple):
        return Opcodes(b"(" + b"".join(map(push, value)) + b"t")
    if isinstance(value, str):
        data = value.encode()
        return Opcodes(b"X" + struct.pack("<I", len(data)) + data)
    if isinstance(value, bool):
        return Opcodes(b"\x88" if value else b"\x89")
    if isinstance(value, int):
        data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        return Opcodes(b"\x8a" + bytes([len(data)]) + data)
    return Opcodes(b"N")


def name(module: str, attribute: str) -> Opcodes:
    return Opcodes(f"c{module}\n{attribute}\n".encode())


def call(function: Opcodes, *arguments: object) -> Opcodes:
    return Opcodes(function + push(arguments) + b"R")


HOOKS = call(name("collections", "OrderedDict"))


def storage(key: object = "0", elements: object = 4, kind: str = "FloatStorage") -> Opcodes:
    return Opcodes(push(("storage", name("torch", kind), key, "cpu", elements)) + b"Q")


def tensor(
    offset: object = 0,
    shape: object = (4,),
    strides: object = (1,),
    source: Opcodes | None = None,
) -> Opcodes:
    rebuild = name("torch._utils", "_rebuild_tensor_v2")
    source = storage() if source is None else source
    return call(rebuild, source, offset, shape, strides, False, HOOKS)


def pickled(value: object) -> bytes:
    return PROTO + push(value) + STOP


def archive(
    folder: Path, pickle: bytes, extra: Mapping[str, bytes] | None = None, *, shown: str = "bad.pt"
) -> Path:
    """Return a torch archive with one storage of 16 bytes, `data/0`."""
    members = {"bad/data.pkl": pickle, "bad/byteorder": b"little"}
    if b"storage" in pickle:
        members["bad/data/0"] = b"0123456789abcdef"
    with zipfile.ZipFile(folder / shown, "w") as target:
        for member, content in {**members, **(extra or {})}.items():
            target.writestr(member, content)
    return folder / shown


def without_checksums(content: bytes) -> bytes:
    """Return the archive with CRC 0 everywhere, as torch does after `set_crc32_options(False)`."""
    changed = bytearray(content)
    start = changed.find(b"PK\x01\x02")
    while start >= 0:
        changed[start + 16 : start + 20] = bytes(4)
        start = changed.find(b"PK\x01\x02", start + 1)
    return bytes(changed)


def written_again(path: Path, old: bytes, new: bytes) -> None:
    """Replace bytes in the archive's entries, and update the checksums."""
    with zipfile.ZipFile(path) as before:
        members = {name: before.read(name).replace(old, new) for name in before.namelist()}
    with zipfile.ZipFile(path, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
