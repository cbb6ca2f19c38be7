"""The tar format that a package uses, and where the files of a package lie inside it.

Written here rather than by a library, because a package's bytes must not depend on the version of
one. GNU tar with `--format=ustar --mode=644 --mtime=@0 --owner=0 --group=0 --numeric-owner` writes
the same headers.
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
# Eleven octal digits: GNU and pax have extensions for more, and extensions are ambiguous.
MAX_MEMBER_BYTES = 8**11 - 1
MAX_MEMBERS = 10_000
SUMS_NAME = "SHA256SUMS"

_FIELDS = struct.Struct("100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x")
_BLANK_CHECKSUM = b" " * 8
_RENAME_HINT = "Rename the file; a package takes plain relative names that every system can unpack."


def check_member_name(name: str) -> None:
    """Refuse a name that could leave the folder it is unpacked in, or mean two things."""
    problem = name_problem(name)
    if problem:
        raise AttestationError(
            f"unsafe name in package: {name[:200]!r} {problem}", hint=_RENAME_HINT
        )


def check_names(names: Sequence[str]) -> None:
    """Refuse unsafe names, too many, and two that would be one file where case does not count."""
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
    """The one header of a regular file: mode 0644, no owner, no time.

    Raises `AttestationError` for an unsafe name and for 8 GiB or more, which ustar cannot say.
    """
    check_member_name(name)
    if size_bytes > MAX_MEMBER_BYTES:
        raise AttestationError(
            f"{name!r} has {size_bytes:,} bytes, a package member can have {MAX_MEMBER_BYTES:,}",
            hint="Save the checkpoint in shards below 8 GiB.",
        )
    prefix, short = split_name(name) or (b"", b"")
    size = b"%011o\0" % size_bytes
    # POSIX: the sum of all bytes, those of the checksum counted as blanks
    blank = _pack(short, prefix, size, _BLANK_CHECKSUM)
    return _pack(short, prefix, size, b"%06o\0 " % sum(blank))


def _pack(name: bytes, prefix: bytes, size: bytes, checksum: bytes) -> bytes:
    zero, time, device = b"0000000\0", b"0" * 11 + b"\0", b"0000000\0"
    return _FIELDS.pack(
        *(name, b"0000644\0", zero, zero, size, time, checksum, b"0", b""),
        *(b"ustar\0", b"00", b"", b"", device, device, prefix),
    )


def parse_header(block: bytes) -> tuple[str, int]:
    """Name and size of a member, from a header that is byte for byte the one we would write."""
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
    # every field at once: owner, time or a link name that differ are not ours, whatever they mean
    if header(*parsed) != block:
        raise not_canonical()
    return parsed


def not_canonical() -> AttestationError:
    """The refusal of an archive that has another form than the one that is written here."""
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
    """Zeros up to the next block."""
    return bytes(-size_bytes % BLOCK_BYTES)


def sums_text(members: Sequence[tuple[str, str]]) -> bytes:
    """The content of `SHA256SUMS` for (name, SHA-256), as `sha256sum` writes it."""
    return "".join(f"{digest}  {name}\n" for name, digest in members).encode("ascii")


# the evidence of the run whose state that is
RUN_MEMBER: Final = "evidence/strict-1/evidence.json"
# Where the header of POSIX ustar has its magic and version.
MAGIC_START: Final = 257
MAGIC: Final = b"ustar\x0000"


def looks_like_package(head: bytes) -> bool:
    """Whether a file that begins with these bytes (one block of them) may be a package."""
    return head[MAGIC_START : MAGIC_START + len(MAGIC)] == MAGIC


def member_index(
    read_at: Callable[[int, int], bytes], size_bytes: int
) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of each file, in the order in which they lie there.

    Nothing is verified but the headers: `AttestationError` for one that we would not write, and
    whatever `read_at` raises for a place behind the end.
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
