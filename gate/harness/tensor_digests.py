"""Digests of tensors and of nested values, sensitive to every bit and to every position.

Every digest is one SHA-256. For each tensor in order it covers a header (name if given, type and
shape as text, ended by a newline) and a body. The algorithm's name says what the body is:

- `sha256`: the tensor's row-major little-endian bytes. Used for parameters on the CPU, because a
  verdict rests on them.
- `grid64`: for a CPU tensor, the digest of its sums over rows and columns (`grid_body`), several
  times as fast. Used where only a diagnosis rests on the digest.
- `poly64`: for a tensor on another device, the 8 bytes of
  P = sum over i of w[i] * M**i (mod 2**64), where w are its elements read as signed integers of
  their own width (8-byte and wider ones as 4-byte words) in row-major order and M is the multiplier
  of Knuth's MMIX generator. Integer sums do not depend on the order in which threads add.

A tensor that is made up of others (`plain_parts`) has a header of its own and no body. The tensors
it is made of follow, each with its path.

How `grid64` works: the bytes are read as 64-bit words in rows of `COLUMNS`. For each block of
`ROWS` rows the sums over rows and over columns (mod 2**64) are taken. SHA-256 covers all sums, and
the remainder of less than a row. Small tensors are hashed as they are. torch adds 64-bit integers
at the speed of memory: 3.5 ms for 40 MB on one core, against 25 ms for SHA-256 and 11 ms for CRC-32
(one core of an AMD EPYC with SHA extensions, torch 2.13; `make bench-harness` measures each
fingerprint).

What `grid64` detects: any change of one word (its row's sum moves), any swap of two (they are in
different rows or different columns), any permutation of whole rows or of columns. What it misses:
changes that cancel in every row and in every column at once. That takes four words at the corners
of a rectangle with equal and opposite differences. Rounding does not do that, but somebody who
wants to can. So a diagnosis may rest on it and a verdict does not: parameters keep SHA-256.

Reductions on a device begin when the digest is created. They are copied to the host together, one
copy for each device, however many tensors and fingerprints there are; nothing waits until a digest
is finished. The device only multiplies and adds the chunks of a tensor, each from power 0 on, which
takes two kernel launches a chunk. The host combines the chunks to P. Launches matter because they
are what limits a small training.

Why P misses no single fault: M is odd, so changing one word by d changes P by d * M**i, which is
never 0 for |d| < 2**32. Swapping words i < j changes it by (w[i] - w[j]) * M**i * (M**(j-i) - 1); M
= 5 (mod 8), so the last factor has at most 2 + log2(j-i) factors of two and the first at most 31:
below 2**31 words apart their sum stays under 64 and the product is not 0.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import torch

from . import cuda
from .plain_tensors import (
    UnsupportedTensorError,
    byte_size,
    outside_transforms,
    plain_parts,
    row_major,
    type_and_shape,
    use_bytes,
)

COLUMNS: Final = 1024
ROWS: Final = 1024
WORD_BYTES: Final = 8
SMALL_BYTES: Final = 64 * 1024


def grid_body(tensor: torch.Tensor) -> bytes:
    """Return 32 bytes over the elements of a CPU tensor; type and shape are not included."""
    dense = row_major(tensor).reshape(-1)
    hasher = hashlib.sha256()
    if byte_size(dense) >= SMALL_BYTES:
        # Viewing as words takes 8-byte alignment, and a slice may begin between two words.
        if dense.data_ptr() % WORD_BYTES or dense.storage_offset() % WORD_BYTES:
            dense = dense.clone()
        elements = COLUMNS * WORD_BYTES // dense.element_size()
        rows = dense.numel() // elements
        words = dense[: rows * elements].view(torch.int64).view(rows, COLUMNS)
        for start in range(0, rows, ROWS):
            block = words[start : start + ROWS]
            # over rows, then over columns: a swap inside a row changes only the sums over rows
            use_bytes(block.sum(0), hasher.update)
            use_bytes(block.sum(1), hasher.update)
        dense = dense[rows * elements :]
    use_bytes(dense, hasher.update)
    return hasher.digest()


MULTIPLIER: Final = 6364136223846793005
# A device's scratch memory: powers and products of a chunk, at most 32 MiB each, and never more
# than the largest tensor needs.
CHUNK_WORDS: Final = 1 << 22
# Wider elements are read as 4-byte words: the proof above needs |d| < 2**32.
_WORD_TYPES: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_powers_of: dict[torch.device, torch.Tensor] = {}

OnLeftOut = Callable[[str], None]


class _Once(threading.local):
    """The bodies that this thread digests only once; None outside such a block.

    Each body is kept with its tensor. While the tensor lives, no other can take its place in
    memory.
    """

    bodies: dict[tuple[object, ...], tuple[torch.Tensor, bytes]] | None = None


_once = _Once()


@contextmanager
def bodies_once() -> Iterator[None]:
    """Digest the body of each CPU tensor only once inside the `with` block.

    Only for blocks of the harness's own code: a tensor that is written to inside would keep its old
    body.
    """
    before, _once.bodies = _once.bodies, {}
    try:
        yield
    finally:
        _once.bodies = before


class Sums(NamedTuple):
    """The sums of one tensor's chunks: scalars on its device that nothing has waited for."""

    chunks: list[torch.Tensor]


Body = bytes | torch.Tensor | Sums


class StartedDigest:
    """A digest whose values on devices may still be in computation.

    With `fast`, bodies of CPU tensors are digested at once, by `grid64`. Without it CPU tensors are
    read when the digest is finished, so nothing may change them until then. A tensor of an
    unsupported kind is left out and reported to `on_left_out`.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, torch.Tensor | None]],
        what: str,
        on_left_out: OnLeftOut,
        *,
        fast: bool,
    ) -> None:
        self._algorithm = "grid64" if fast else "sha256"
        self._text = ""
        self._parts: list[tuple[bytes, Body]] = []
        self._left_out = 0
        with outside_transforms():
            for name, tensor in tensors:
                if tensor is None:
                    self._parts.append((f"{name} none\n".encode(), b""))
                    continue
                try:
                    self._add(name, tensor, fast=fast)
                except UnsupportedTensorError as error:
                    on_left_out(f"{what} {name} is left out of the digest: {error}")
                    self._parts.append((b"left out\n", b""))
                    self._left_out += 1

    def _add(self, name: str, tensor: torch.Tensor, *, fast: bool) -> None:
        parts = plain_parts(tensor)
        shown = f"{name} " if fast else ""
        if [path for path, _ in parts] != [""]:
            header = f"{shown}{type(tensor).__qualname__} {type_and_shape(tensor)}\n"
            self._parts.append((header.encode("utf-8", "backslashreplace"), b""))
        for path, part in parts:
            place = f"{name}{path} " if fast else f"{path} " if path else ""
            header = f"{place}{type_and_shape(part)}\n"
            self._parts.append(
                (header.encode("utf-8", "backslashreplace"), self._body(part, fast=fast))
            )

    def _body(self, tensor: torch.Tensor, *, fast: bool) -> Body:
        if not _on_host(tensor):
            self._algorithm = "poly64"
            return Sums(chunk_sums(tensor))
        return _grid_body(tensor) if fast else tensor

    @property
    def saw_nothing(self) -> bool:
        """Whether every tensor was left out: two such digests would be equal for no reason."""
        # an empty list of tensors is an observation too, and equal in both runs
        return 0 < self._left_out == len(self._parts)

    def device_values(self) -> list[torch.Tensor]:
        """Return the scalars that are not on the host yet, in order."""
        return [chunk for _, body in self._parts if isinstance(body, Sums) for chunk in body.chunks]

    def settle(self) -> None:
        """Stop depending on the CPU tensors, which may change before the devices' values arrive.

        Without values on a device this finishes the digest.
        """
        if self.device_values():
            # the optimizer's next step writes to these in place while the device is still busy
            self._parts = [(header, _kept(body)) for header, body in self._parts]
        else:
            self._text = self.finish({})
            self._parts = []

    def finish(self, values: dict[torch.device, list[int]]) -> str:
        """Return `algorithm:hex`; takes this digest's device values off the front of `values`."""
        if self._text:
            return self._text
        hasher = hashlib.sha256()
        for header, body in self._parts:
            hasher.update(header)
            if isinstance(body, bytes):
                hasher.update(body)
            elif isinstance(body, Sums):
                # for each device, the order in which `device_values` returned them
                sums = [values[chunk.device].pop(0) for chunk in body.chunks]
                hasher.update(polynomial(sums).to_bytes(8, "little"))
            else:
                use_bytes(body, hasher.update)
        return f"{self._algorithm}:{hasher.hexdigest()}"


class HostCopies:
    """Copies the device values of several digests to the host, one copy for each device.

    From the `followed` devices they are copied to pinned memory (`non_blocking` to the host does
    that), so the host goes on at once. They may be read when the device has reached the copy.
    """

    def __init__(self, started: Sequence[StartedDigest], followed: cuda.Devices = ()) -> None:
        waiting: dict[torch.device, list[torch.Tensor]] = {}
        for digest in started:
            digest.settle()
            for value in digest.device_values():
                waiting.setdefault(value.device, []).append(value)
        # Stack the scalars of a device first: each copy is a launch and a transfer of its own. The
        # copy is queued behind the sums, so the host waits for none of them.
        self._copies = {
            device: torch.stack(scalars).to("cpu", non_blocking=device in followed)
            for device, scalars in waiting.items()
        }

    def read(self) -> dict[torch.device, list[int]]:
        """Return the values of each device in order."""
        return {device: copy.tolist() for device, copy in self._copies.items()}


def finish_all(started: Sequence[StartedDigest], copies: HostCopies | None = None) -> list[str]:
    """Return the digests in order; without `copies` this waits for the devices."""
    values = (HostCopies(started) if copies is None else copies).read()
    return [digest.finish(values) for digest in started]


def start_parameters(parameters: Sequence[torch.Tensor], on_left_out: OnLeftOut) -> StartedDigest:
    """Begin the digest of the parameters that baselines record, by SHA-256 on the CPU."""
    named = ((str(index), parameter) for index, parameter in enumerate(parameters))
    return StartedDigest(named, "parameter", on_left_out, fast=False)


def chunk_sums(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the sum over w[i] * M**i of each chunk, as int64 scalars on the tensor's device.

    The tensor is a plain one. In each chunk i begins at 0. The host does not wait for the device.
    """
    dense = row_major(tensor).reshape(-1)
    words = dense.view(_WORD_TYPES.get(dense.element_size(), torch.int32))
    # one table of powers serves all chunks and tensors; `polynomial` shifts the chunks on the host
    powers = _powers(dense.device, min(words.numel(), CHUNK_WORDS))
    chunks = torch.split(words, CHUNK_WORDS) if words.numel() else ()
    # One kernel widens and multiplies, since the product has the wider type of its factors. The
    # product wraps around at 64 bits, and so does the sum, in any order of the device's threads.
    return [(chunk * powers[: chunk.numel()]).sum() for chunk in chunks]


def polynomial(sums: Sequence[int]) -> int:
    """Return P of a tensor from the sums of its chunks, from 0 to 2**64 - 1."""
    step = pow(MULTIPLIER, CHUNK_WORDS, 1 << 64)
    total = 0
    # Horner's scheme from the last chunk: neighbouring chunks are `CHUNK_WORDS` powers apart
    for chunk in reversed(sums):
        total = (total * step + chunk) % (1 << 64)
    return total


def _grid_body(tensor: torch.Tensor) -> bytes:
    if _once.bodies is None:
        return grid_body(tensor)
    # tensors with a conjugate or negative bit share memory with their base but hold other values
    marks = tensor.is_conj(), tensor.is_neg()
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), marks)
    known = _once.bodies.get(place)
    if known is None:
        known = _once.bodies[place] = tensor, grid_body(tensor)
    return known[1]


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _powers(device: torch.device, count: int) -> torch.Tensor:
    """Return M**0, M**1, ... for at least `count` words, from a table that grows by doubling."""
    powers = _powers_of.get(device)
    if powers is None:
        powers = torch.ones(1, dtype=torch.int64, device=device)
    while powers.numel() < count:
        # The next half of the table is the first half times M**count: few launches, once a device.
        factor = _signed(pow(MULTIPLIER, powers.numel(), 1 << 64))
        powers = torch.cat([powers, powers * factor])
    _powers_of[device] = powers
    return powers


def _kept(body: Body) -> Body:
    return body.clone() if isinstance(body, torch.Tensor) else body


def _signed(value: int) -> int:
    """Return the same 64 bits as a signed integer, the only kind that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value


MAX_DEPTH: Final = 16
# largest mapping in an object's attributes that is still digested
MAX_ENTRIES: Final = 64
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))


def start_value(value: object, on_left_out: OnLeftOut) -> StartedDigest:
    """Begin a digest over every tensor, array, number and text in a value, with its position.

    Any other object counts by the name of its type, since its text may contain an address. Those of
    its attributes that are tensors, arrays or mappings count too.
    """
    return StartedDigest(_tensors(value), "batch", on_left_out, fast=True)


def nested_digest(value: object, on_left_out: OnLeftOut) -> str:
    """Return `algorithm:hex` over the value; waits for the device of a tensor inside it."""
    return finish_all([start_value(value, on_left_out)])[0]


def _tensors(value: object) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Yield tensors under their place; any other leaf is part of a name without a tensor."""
    for place, leaf in nested_leaves("", value, 0):
        if isinstance(leaf, torch.Tensor):
            yield place, leaf
        else:
            yield f"{place}={leaf!a}" if isinstance(leaf, _PLAIN) else f"{place}:{leaf}", None


def nested_leaves(place: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
    """Yield each leaf with its place: a tensor, a plain value, or a type's name in brackets.

    Arrays become tensors of their bytes.
    """
    if isinstance(value, torch.Tensor) or type(value) in _PLAIN:
        yield place, value
    elif depth >= MAX_DEPTH:
        yield place, f"[{type(value).__name__}]"
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from nested_leaves(f"{place}/{key!a}", part, depth + 1)
    elif isinstance(value, list | tuple):
        yield place, f"[{type(value).__name__} of {len(value)}]"
        for position, part in enumerate(value):
            yield from nested_leaves(f"{place}/{position}", part, depth + 1)
    elif type(value).__module__ == "numpy":
        yield f"{place} {value.dtype} {value.shape}", _array(value)
    else:
        if isinstance(value, type) or not dataclasses.is_dataclass(value):
            yield place, f"[{type(value).__name__}]"
        for name, part in _attributes(value):
            yield from nested_leaves(f"{place}.{name}", part, depth + 1)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """Yield all fields of a dataclass; of another object only its tensors, arrays and mappings.

    So a batch does not pull in the model, tokenizer, vocabulary or data set that it refers to.
    """
    held = getattr(value, "__dict__", None)
    if isinstance(value, type | torch.nn.Module):
        return
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name)
    elif isinstance(held, dict):
        for name, part in list(held.items()):
            array = type(part).__module__ == "numpy" and hasattr(part, "dtype")
            few = isinstance(part, Mapping) and len(part) <= MAX_ENTRIES
            if array or few or isinstance(part, torch.Tensor):
                yield str(name), part


def _array(value: Any) -> object:
    """Return an array's or number's bytes as a tensor; an array of objects counts by its shape."""
    if value.dtype.hasobject:
        return f"[objects {value.shape}]"
    return torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else "[]"
