"""The tar format of a package: writing and parsing headers, and finding files inside the archive.

It is written here rather than by a library, because a package's bytes must not depend on a
library's version. GNU tar with `--format=ustar --mode=644 --mtime=@0 --owner=0 --group=0
--numeric-owner` writes the same headers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gate.errors import AttestationError
from gate.text.package_names import colliding, name_problem, split_name

BLOCK_BYTES = 512
RECORD_BYTES = 20 * BLOCK_BYTES
END_BYTES = 2 * BLOCK_BYTES
# The size field has eleven octal digits. GNU and pax have extensions for larger files, but tools
# disagree about extensions.
MAX_MEMBER_BYTES = 8**11 - 1
MAX_MEMBERS = 10_000
SUMS_NAME = "SHA256SUMS"

_FIELDS = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_BLANK_CHECKSUM = b" " * 8
_RENAME_HINT = "Rename the file; a package takes plain relative names that every system can unpack."


def check_member_name(name: str) -> None:
    """Raise `AttestationError` for a name that could leave the target folder, or is ambiguous."""
    problem = name_problem(name)
    if problem:
        raise AttestationError(
            f"unsafe name in package: {name[:200]!r} {problem}", hint=_RENAME_HINT
        )


def check_names(names: Sequence[str]) -> None:
    """Refuse too many names, unsafe ones, and names that collide on a case-insensitive disk."""
    if len(names) > MAX_MEMBERS:
        raise AttestationError(
            f"{len(names):,} files in the package, the limit is {MAX_MEMBERS:,}",
            hint="Pack fewer files, for example one archive of many small ones.",
        )
    for name in names:
        check_member_name(name)
    pair = colliding(names)
    if pair is not None:
        raise AttestationError(
            f"names in package collide: {pair[0]!r} and {pair[1]!r}", hint=_RENAME_HINT
        )


def header(name: str, size_bytes: int) -> bytes:
    """Return the header block of a regular file with mode 0644, no owner and no time.

    Raises `AttestationError` for an unsafe name, and for 8 GiB or more, which ustar cannot express.
    """
    check_member_name(name)
    if size_bytes > MAX_MEMBER_BYTES:
        raise AttestationError(
            f"{name!r} has {size_bytes:,} bytes, a package member can have {MAX_MEMBER_BYTES:,}",
            hint="Save the checkpoint in shards below 8 GiB.",
        )
    prefix, short = split_name(name) or (b"", b"")
    size = b"%011o\0" % size_bytes
    # POSIX: the checksum is the sum of all bytes, with the checksum field itself counted as blanks.
    blank = _pack(short, prefix, size, _BLANK_CHECKSUM)
    return _pack(short, prefix, size, b"%06o\0 " % sum(blank))


def _pack(name: bytes, prefix: bytes, size: bytes, checksum: bytes) -> bytes:
    zero, time, device = b"0000000\0", b"0" * 11 + b"\0", b"0000000\0"
    return _FIELDS.pack(
        *(name, b"0000644\0", zero, zero, size, time, checksum, b"0", b""),
        *(b"ustar\0", b"00", b"", b"", device, device, prefix),
    )


def parse_header(block: bytes) -> tuple[str, int]:
    """Return name and size of a member from its header.

    Raises `AttestationError` for a header that is not byte for byte the one that `header` writes.
    """
    if not looks_like_package(block):
        raise AttestationError(
            "this is not a package of repro-gate", hint="Name the package.tar of a gate call."
        )
    fields = _FIELDS.unpack(block)
    if fields[7] != b"0":
        raise AttestationError(
            "the package holds something that is not a regular file",
            hint="repro-gate packs regular files only; do not unpack this archive.",
        )
    short, size, prefix = fields[0], fields[4], fields[15]
    try:
        name = b"/".join(part.rstrip(b"\0") for part in (prefix, short) if part.rstrip(b"\0"))
        parsed = name.decode("ascii"), int(size.rstrip(b"\0"), 8)
    except ValueError as error:
        raise not_canonical() from error
    # Rebuilding checks every field at once: a different owner, time or link name is refused,
    # whatever a tool would make of it.
    if header(*parsed) != block:
        raise not_canonical()
    return parsed


def not_canonical() -> AttestationError:
    """Return the error for an archive whose form is not the one that this module writes."""
    return AttestationError(
        "the package is not an archive that repro-gate wrote",
        hint="The file was damaged, changed, or made by another tool; fetch it again.",
    )


def truncated() -> AttestationError:
    """The refusal of an archive that ends before its end mark."""
    return AttestationError(
        "the package is truncated", hint="The file was cut off; fetch it again."
    )


def padding(size_bytes: int) -> bytes:
    """Return the zeros that fill the file's last block."""
    return bytes(-size_bytes % BLOCK_BYTES)


def sums_text(members: Sequence[tuple[str, str]]) -> bytes:
    """Return the content of `SHA256SUMS` for (name, SHA-256) pairs, as `sha256sum` writes it."""
    return "".join(f"{digest}  {name}\n" for name, digest in members).encode("ascii")


# the evidence of the run whose state is packed
RUN_MEMBER: Final = "evidence/strict-1/evidence.json"
# offset of the magic and version in a POSIX ustar header
MAGIC_START: Final = 257
MAGIC: Final = b"ustar\x0000"


def looks_like_package(head: bytes) -> bool:
    """Return whether a file that begins with this block may be a package."""
    return head[MAGIC_START : MAGIC_START + len(MAGIC)] == MAGIC


def member_index(
    read_at: Callable[[int, int], bytes], size_bytes: int
) -> Iterator[tuple[str, int, int]]:
    """Yield name, start and size in bytes of each file, in the archive's order.

    Only headers are checked. Raises `AttestationError` for a header that the gate would not write,
    and the errors of `read_at` for a position past the end.
    """
    position = 0
    for _ in range(MAX_MEMBERS):
        if position + BLOCK_BYTES > size_bytes:
            # two empty blocks end every archive (POSIX.1, ustar)
            raise truncated()
        block = read_at(position, BLOCK_BYTES)
        if not any(block):
            return
        name, member_bytes = parse_header(block)
        start = position + BLOCK_BYTES
        yield name, start, member_bytes
        position = start + member_bytes + len(padding(member_bytes))
