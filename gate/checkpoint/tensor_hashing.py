"""Compute the digests of many leaves on all cores; each byte is read once.

Tensors are never in memory as a whole.

Every field is its length (8 bytes, little-endian) followed by its bytes, so different inputs never
give the same byte string. H is SHA-256:

- a tensor up to `CHUNK_BYTES`: H(field("tensor") field(dtype) field(dimensions) data)
- a larger one: H(field("chunks") field(dtype) field(dimensions) and field(H(chunk)) for each)
- a value: H(field("value") field(kind) data)
- a part: H(field(algorithm) field(hash) field(part) and, sorted by path, field(path) field(leaf))
- the root: H(field(algorithm) field(hash) field("state") and field(part) field(root) for each)

Small tensors that are close to each other in a file are read together. Large tensors are cut into
the chunks of the canonical form, which are hashed in parallel. Threads are enough for that, because
`hashlib` lets other threads run while it hashes.
"""

from __future__ import annotations

import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256

from gate.checkpoint.leaves import PIECE_BYTES, FileSpan, Leaf, TensorLeaf, ValueLeaf
from gate.checkpoint.untrusted_files import UntrustedFile, grouped
from gate.text.digests import field

ALGORITHM = "repro-gate-state/2"
# the name is part of every root, so a different hash function gives different digests
HASH = "sha256"
CHUNK_BYTES = 4 * 1024 * 1024
WHOLE, CHUNKS, VALUE, STATE = b"tensor", b"chunks", b"value", b"state"


def tensor_head(tag: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what is hashed before a tensor's bytes, or before the digests of its chunks."""
    dimensions = b"".join(size.to_bytes(8, "little") for size in shape)
    return field(tag) + field(dtype.encode("ascii")) + field(dimensions)


def chunked_digest(dtype: str, shape: tuple[int, ...], chunks: Iterable[bytes]) -> bytes:
    """Return the digest of a tensor above `CHUNK_BYTES` from the digests of its chunks in order."""
    return sha256(tensor_head(CHUNKS, dtype, shape) + b"".join(map(field, chunks))).digest()


def value_digest(kind: str, data: bytes) -> bytes:
    """Return the digest of a plain value."""
    return sha256(field(VALUE) + field(kind.encode("ascii")) + data).digest()


def part_root(part: str, leaves: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the root over leaves given as (path, digest), in any order."""
    # sort as bytes: languages disagree about the order of texts beyond ASCII
    rows = sorted((path.encode("utf-8", "surrogatepass"), digest) for path, digest in leaves)
    fields = b"".join([field(path) + field(digest) for path, digest in rows])
    return sha256(_head(part.encode("ascii")) + fields).digest()


def state_root(parts: Mapping[str, bytes]) -> bytes:
    """Return the root over the roots of all parts, sorted by their names."""
    hasher = sha256(_head(STATE))
    for part in sorted(parts):
        hasher.update(field(part.encode("ascii")) + field(parts[part]))
    return hasher.digest()


def _head(what: bytes) -> bytes:
    return field(ALGORITHM.encode("ascii")) + field(HASH.encode("ascii")) + field(what)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector in the body, where it would scan all new objects repeatedly.

    Reference counts still free objects. Reference cycles wait until the body has ended.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


SMALL_BYTES = 64 * 1024
WINDOW_BYTES = PIECE_BYTES
MAX_GAP_BYTES = 4096
# how much of a large tensor is read at once; it stays in the cache of a core
HASHED_BYTES = 256 * 1024


def available_threads() -> int:
    """Return one thread for each core that this process may use."""
    return len(os.sched_getaffinity(0))


def digest_leaves(leaves: Sequence[Leaf], threads: int) -> list[bytes]:
    """Return the digest of each leaf, in the order given; equal sources are hashed once.

    Raises any error of reading the sources.
    """
    digests: list[bytes] = [b""] * len(leaves)
    firsts: dict[tuple[Hashable, ...], int] = {}
    copies: list[tuple[int, int]] = []
    small: list[SmallTensor] = []
    tensors: list[tuple[int, TensorLeaf]] = []
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, ValueLeaf):
            digests[index] = value_digest(leaf.kind, leaf.data)
            continue
        _, dtype, shape, source = leaf
        if isinstance(source, FileSpan) and source.size_bytes <= SMALL_BYTES:
            opened, start, size_bytes = source
            small.append((id(opened), start, size_bytes, dtype, shape, index, opened))
            continue
        # tied weights and equal views of one storage are the same place, which is hashed once
        first = firsts.setdefault((source.identity, dtype, shape), index)
        if first == index:
            tensors.append((index, leaf))
        else:
            copies.append((index, first))
    _digest_tensors(small, tensors, threads, digests)
    for index, first in copies:
        digests[index] = digests[first]
    return digests


# File id, start, size, dtype, shape, index in the result, file. After sorting, equal tensors are
# next to each other.
SmallTensor = tuple[int, int, int, str, tuple[int, ...], int, UntrustedFile]


def _digest_tensors(
    small: list[SmallTensor],
    tensors: list[tuple[int, TensorLeaf]],
    threads: int,
    results: list[bytes],
) -> None:
    buffers = _Buffers()
    tasks: list[Callable[[], object]] = []
    chunked: list[tuple[int, TensorLeaf, list[bytes]]] = []
    for index, leaf in tensors:
        span = leaf.source
        if not isinstance(span, FileSpan) or span.size_bytes <= CHUNK_BYTES:
            tasks.append(partial(_one_odd, index, leaf, results))
            continue
        starts = range(0, span.size_bytes, CHUNK_BYTES)
        digests = [b""] * len(starts)
        chunked.append((index, leaf, digests))
        tasks += [
            partial(_one_chunk, span, start, number, (buffers, digests))
            for number, start in enumerate(starts)
        ]
    # The index is unique and comes before the file, so sorting never compares two files.
    small.sort()
    tasks += [
        partial(_one_window, window, buffers, results) for window in grouped(small, _are_near)
    ]
    run_all(tasks, threads)
    for index, leaf, digests in chunked:
        results[index] = chunked_digest(leaf.dtype, leaf.shape, digests)


class _Buffers(threading.local):
    """One buffer for each thread, reused so that it stays in the cache."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(PIECE_BYTES))


def _one_chunk(
    span: FileSpan, first: int, number: int, places: tuple[_Buffers, list[bytes]]
) -> None:
    buffers, digests = places
    end = min(first + CHUNK_BYTES, span.size_bytes)
    hasher = sha256()
    # Each piece is hashed while it is in the cache. Mapping the chunk into memory would cost more
    # than this copy.
    for start in range(first, end, HASHED_BYTES):
        piece = buffers.view[: min(HASHED_BYTES, end - start)]
        span.opened.read_into(span.start + start, piece)
        hasher.update(piece)
    digests[number] = hasher.digest()


def _one_odd(index: int, leaf: TensorLeaf, digests: list[bytes]) -> None:
    """Digest a tensor whose bytes come in order from any source."""
    if leaf.source.size_bytes <= CHUNK_BYTES:
        hasher = sha256(tensor_head(WHOLE, leaf.dtype, leaf.shape))
        for piece in leaf.source.pieces(PIECE_BYTES):
            hasher.update(piece)
        digests[index] = hasher.digest()
        return
    chunks = (sha256(piece).digest() for piece in _whole_chunks(leaf))
    digests[index] = chunked_digest(leaf.dtype, leaf.shape, chunks)


def _whole_chunks(leaf: TensorLeaf) -> Iterator[bytes]:
    """Yield chunks of exactly `CHUNK_BYTES`, except for the last one."""
    held = bytearray()
    for piece in leaf.source.pieces(CHUNK_BYTES):
        held += piece
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)


def _are_near(first: SmallTensor, before: SmallTensor, item: SmallTensor) -> bool:
    """Return whether one read may serve all of them; it includes the gaps between them."""
    file, start, size_bytes = item[:3]
    return (
        file == first[0]
        and start - (before[1] + before[2]) <= MAX_GAP_BYTES
        and start + size_bytes - first[1] <= WINDOW_BYTES
    )


def _one_window(window: list[SmallTensor], buffers: _Buffers, digests: list[bytes]) -> None:
    first, opened = window[0][1], window[0][-1]
    end = max(start + size_bytes for _, start, size_bytes, *_ in window)
    view = buffers.view[: end - first]
    opened.read_into(first, view)
    heads: dict[tuple[str, tuple[int, ...]], bytes] = {}
    before: tuple[object, ...] = ()
    digest = b""
    for _, start, size_bytes, dtype, shape, index, _ in window:
        same = (start, size_bytes, dtype, shape)
        if same != before:
            head = heads.get((dtype, shape))
            if head is None:
                head = heads[dtype, shape] = tensor_head(WHOLE, dtype, shape)
            # one call for head and bytes: copying a little costs less than a second call
            digest = sha256(head + view[start - first : start - first + size_bytes]).digest()
            before = same
        digests[index] = digest


def run_all(tasks: Sequence[Callable[[], object]], threads: int) -> None:
    """Run every task on `threads` threads, one of them the caller's; an error stops the others.

    The first error is raised again. The standard library's thread pool is not used: its import
    alone costs as much as a small state.
    """
    waiting = deque(tasks)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            while waiting and not faults:
                _next(waiting)()
        except BaseException as fault:  # noqa: BLE001 - raised again by the caller's thread
            faults.append(fault)

    # the calling thread works too, so with one thread none is started
    others = [threading.Thread(target=work) for _ in range(min(threads, len(tasks)) - 1)]
    for other in others:
        other.start()
    try:
        work()
    finally:
        # the caller closes the file afterwards, and no thread may read from it then
        for other in others:
            other.join()
    if faults:
        raise faults[0]


def _next(waiting: deque[Callable[[], object]]) -> Callable[[], object]:
    try:
        return waiting.popleft()
    except IndexError:
        # another thread took the last task after the check of `waiting`
        return lambda: None
