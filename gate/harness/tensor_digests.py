"""Digests of tensors and of nested values, sensitive to every bit and to every position.

The bytes are read as 64-bit words in rows of `COLUMNS`; of each block of `ROWS` rows the sums over
rows and over columns (mod 2**64) are taken, and SHA-256 over all sums and the rest of less than a
row. Small tensors are hashed as they are. torch adds 64-bit integers at the speed of memory: 3.5 ms
for 40 MB on one core, against 25 ms for SHA-256 and 11 ms for CRC-32 (one core of an AMD EPYC with
SHA extensions, torch 2.13; `make bench-harness` measures each fingerprint).

What it sees: any change of one word (its row's sum moves), any swap of two (they are in another
row or in another column), any permutation of whole rows or of columns. What it misses: changes that
cancel in every row and in every column at once, which takes four words at the corners of a
rectangle with equal and opposite differences. Rounding does not do that; somebody who wants to can.
So a diagnosis may rest on it, and a verdict does not: parameters keep SHA-256.

All end in one SHA-256 over, for each tensor in order, a header (name if given, type and shape as
text, ended by a newline) and a body:

- `sha256`: the body is the tensor's row-major little-endian bytes. For parameters on the CPU,
  because a verdict rests on them.
- `grid64`: the body of a CPU tensor is the digest of its sums over rows and columns (`grid.py`),
  several times as fast. For what only a diagnosis rests on.
- `poly64`: the body of a tensor on another device is the 8 bytes of
  P = sum over i of w[i] * M**i (mod 2**64), where w are its elements read as signed integers of
  their own width (8-byte and wider ones as 4-byte words) in row-major order and M is the multiplier
  of Knuth's MMIX generator. Integer sums do not depend on the order in which threads add.

A tensor that others make up (`plain_parts.py`) has a header of its own kind and no body, and then
each of those others with its path.

Reductions on a device are started when a digest is, and copied to the host together, one copy a
device, however many tensors and fingerprints there are; nothing waits until a digest is finished. A
device only multiplies and adds the chunks of a tensor, each from power 0 on, which is two launches
a chunk and none beside; P is put together on the host. A small training is bound by launches.

Why P misses no single fault: M is odd, so changing one word by d changes P by d * M**i, which is
never 0 for |d| < 2**32. Swapping words i < j changes it by (w[i] - w[j]) * M**i * (M**(j-i) - 1);
M = 5 (mod 8), so the last factor has at most 2 + log2(j-i) factors of two and the first at most
31: below 2**31 words apart their sum stays under 64 and the product is not 0.
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
    """32 bytes over the elements of a CPU tensor; type and shape are no part of it."""
    dense = row_major(tensor).reshape(-1)
    hasher = hashlib.sha256()
    if byte_size(dense) >= SMALL_BYTES:
        # words can be viewed only where they lie on a boundary of their own, and a slice may
        # begin between two
        if dense.data_ptr() % WORD_BYTES or dense.storage_offset() % WORD_BYTES:
            dense = dense.clone()
        elements = COLUMNS * WORD_BYTES // dense.element_size()
        rows = dense.numel() // elements
        words = dense[: rows * elements].view(torch.int64).view(rows, COLUMNS)
        for start in range(0, rows, ROWS):
            block = words[start : start + ROWS]
            # over rows, then over columns: a swap inside a row moves only the first of them
            use_bytes(block.sum(0), hasher.update)
            use_bytes(block.sum(1), hasher.update)
        dense = dense[rows * elements :]
    use_bytes(dense, hasher.update)
    return hasher.digest()


MULTIPLIER: Final = 6364136223846793005
# The scratch of a device: powers and products of a chunk, 32 MiB each at most, and none of them
# larger than the largest tensor asks for.
CHUNK_WORDS: Final = 1 << 22
# Wider elements are read as 4-byte words: the proof above needs |d| < 2**32.
_WORD_TYPES: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32}

_powers_of: dict[torch.device, torch.Tensor] = {}

OnLeftOut = Callable[[str], None]


class _Once(threading.local):
    """The bodies that this thread has taken where each is taken once; None anywhere else.

    Each beside its tensor: as long as that lives, nothing else gets its place in memory.
    """

    bodies: dict[tuple[object, ...], tuple[torch.Tensor, bytes]] | None = None


_once = _Once()


@contextmanager
def bodies_once() -> Iterator[None]:
    """Take the body of each CPU tensor once, however many digests in here it is part of.

    Only for code of the harness: nobody may write into a tensor meanwhile.
    """
    before, _once.bodies = _once.bodies, {}
    try:
        yield
    finally:
        _once.bodies = before


class Sums(NamedTuple):
    """The sums of one tensor's chunks, scalars on its device that nobody has waited for."""

    chunks: list[torch.Tensor]


Body = bytes | torch.Tensor | Sums


class StartedDigest:
    """A digest whose device values have not been waited for.

    `fast` takes the bodies of CPU tensors at once and by `grid64`; without it CPU tensors are read
    when the digest is finished, so they must not change in between. A tensor of a kind that cannot
    be read is left out and told to `on_left_out`.
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
        """Whether every tensor was left out: such a digest would be equal to any other."""
        # no tensors at all is something that was seen, and equal in both runs
        return 0 < self._left_out == len(self._parts)

    def device_values(self) -> list[torch.Tensor]:
        """The scalars that are not on the host yet, in order."""
        return [chunk for _, body in self._parts if isinstance(body, Sums) for chunk in body.chunks]

    def settle(self) -> None:
        """Be done with the CPU's tensors, which may change while the devices' values come.

        Without any on a device this finishes the digest.
        """
        if self.device_values():
            # the optimizer's next step changes these in place while the device is still busy
            self._parts = [(header, _kept(body)) for header, body in self._parts]
        else:
            self._text = self.finish({})
            self._parts = []

    def finish(self, values: dict[torch.device, list[int]]) -> str:
        """`algorithm:hex`; takes this digest's device values off the front of `values`."""
        if self._text:
            return self._text
        hasher = hashlib.sha256()
        for header, body in self._parts:
            hasher.update(header)
            if isinstance(body, bytes):
                hasher.update(body)
            elif isinstance(body, Sums):
                # the order in which `device_values` handed them out, for each device its own
                sums = [values[chunk.device].pop(0) for chunk in body.chunks]
                hasher.update(polynomial(sums).to_bytes(8, "little"))
            else:
                use_bytes(body, hasher.update)
        return f"{self._algorithm}:{hasher.hexdigest()}"


class HostCopies:
    """The device values of several digests on their way to the host, one copy a device.

    Of the `followed` devices they go to pinned memory (that is what `non_blocking` makes of a copy
    to the host), so that the host can go on; they may be read when the device has come so far.
    """

    def __init__(self, started: Sequence[StartedDigest], followed: cuda.Devices = ()) -> None:
        waiting: dict[torch.device, list[torch.Tensor]] = {}
        for digest in started:
            digest.settle()
            for value in digest.device_values():
                waiting.setdefault(value.device, []).append(value)
        # One small tensor a device, whatever number of scalars there are: each copy is a launch and
        # a transfer of its own. It is queued behind the sums, so nothing has to wait for them.
        self._copies = {
            device: torch.stack(scalars).to("cpu", non_blocking=device in followed)
            for device, scalars in waiting.items()
        }

    def read(self) -> dict[torch.device, list[int]]:
        """The values of each device in order."""
        return {device: copy.tolist() for device, copy in self._copies.items()}


def finish_all(started: Sequence[StartedDigest], copies: HostCopies | None = None) -> list[str]:
    """The digests in order; without the `copies` of theirs the devices are waited for."""
    values = (HostCopies(started) if copies is None else copies).read()
    return [digest.finish(values) for digest in started]


def start_parameters(parameters: Sequence[torch.Tensor], on_left_out: OnLeftOut) -> StartedDigest:
    """The digest that baselines hold: of the parameters alone, by SHA-256 on the CPU."""
    named = ((str(index), parameter) for index, parameter in enumerate(parameters))
    return StartedDigest(named, "parameter", on_left_out, fast=False)


def chunk_sums(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The sum over w[i] * M**i of each chunk of a plain tensor, int64 scalars on its device.

    In each chunk i begins at 0. The host does not wait for the device.
    """
    dense = row_major(tensor).reshape(-1)
    words = dense.view(_WORD_TYPES.get(dense.element_size(), torch.int32))
    # one table serves every chunk and tensor; `polynomial` shifts the chunks on the host
    powers = _powers(dense.device, min(words.numel(), CHUNK_WORDS))
    chunks = torch.split(words, CHUNK_WORDS) if words.numel() else ()
    # One kernel widens and multiplies: the product has the wider type of its factors. It wraps
    # around at 64 bits, and so does the sum, in whichever order the device's threads add.
    return [(chunk * powers[: chunk.numel()]).sum() for chunk in chunks]


def polynomial(sums: Sequence[int]) -> int:
    """P of a tensor from the sums of its chunks, from 0 to 2**64 - 1."""
    step = pow(MULTIPLIER, CHUNK_WORDS, 1 << 64)
    total = 0
    # Horner's scheme from the last chunk: each one before it lies `CHUNK_WORDS` powers lower
    for chunk in reversed(sums):
        total = (total * step + chunk) % (1 << 64)
    return total


def _grid_body(tensor: torch.Tensor) -> bytes:
    if _once.bodies is None:
        return grid_body(tensor)
    marks = tensor.is_conj(), tensor.is_neg()
    place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), marks)
    known = _once.bodies.get(place)
    if known is None:
        known = _once.bodies[place] = tensor, grid_body(tensor)
    return known[1]


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _powers(device: torch.device, count: int) -> torch.Tensor:
    """M**0, M**1, ... for at least `count` words; kept, and made longer by doubling."""
    powers = _powers_of.get(device)
    if powers is None:
        powers = torch.ones(1, dtype=torch.int64, device=device)
    while powers.numel() < count:
        # the next as many powers are these times M**count: few launches, once a device
        factor = _signed(pow(MULTIPLIER, powers.numel(), 1 << 64))
        powers = torch.cat([powers, powers * factor])
    _powers_of[device] = powers
    return powers


def _kept(body: Body) -> Body:
    return body.clone() if isinstance(body, torch.Tensor) else body


def _signed(value: int) -> int:
    """The same 64 bits as the signed integer that torch takes."""
    return value - (1 << 64) if value >= 1 << 63 else value


MAX_DEPTH: Final = 16
# of a mapping in an object
MAX_ENTRIES: Final = 64
_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None))


def start_value(value: object, on_left_out: OnLeftOut) -> StartedDigest:
    """Begin a digest over every tensor, array, number and text inside, with where it stands.

    Objects of other kinds count by the name of their type, since their text may hold an address,
    and by those of their attributes that are tensors, arrays or mappings.
    """
    return StartedDigest(_tensors(value), "batch", on_left_out, fast=True)


def nested_digest(value: object, on_left_out: OnLeftOut) -> str:
    """`algorithm:hex` over the value; waits where a part of it is on a device."""
    return finish_all([start_value(value, on_left_out)])[0]


def _tensors(value: object) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Tensors under their place; whatever is no tensor is a name without one."""
    for place, leaf in nested_leaves("", value, 0):
        if isinstance(leaf, torch.Tensor):
            yield place, leaf
        else:
            yield f"{place}={leaf!a}" if isinstance(leaf, _PLAIN) else f"{place}:{leaf}", None


def nested_leaves(place: str, value: Any, depth: int) -> Iterator[tuple[str, object]]:
    """Each leaf with its place: a tensor, a plain value, or the name of another type in brackets.

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
    """All fields of a dataclass; of any other object the data in it.

    That is not the model, the tokenizer, the vocabulary or the data set that it may refer to.
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
    """A NumPy array or number as its bytes; one of Python objects counts by its shape alone."""
    if value.dtype.hasobject:
        return f"[objects {value.shape}]"
    return torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else "[]"
