"""Digests of many leaves at once: all cores, each byte read once, no tensor held in memory.

Every field is its length (8 bytes, little-endian) and its bytes, so no two different inputs are
the same byte string. H is SHA-256:

- a tensor up to `CHUNK_BYTES`: H(field("tensor") field(dtype) field(dimensions) data)
- a larger one: H(field("chunks") field(dtype) field(dimensions) and field(H(chunk)) for each)
- a value: H(field("value") field(kind) data)
- a part: H(field(algorithm) field(hash) field(part) and, sorted by path, field(path) field(leaf))
- the root: H(field(algorithm) field(hash) field("state") and field(part) field(root) for each)

Small tensors that lie near each other are read together; large ones are cut into the chunks of the
canonical form, which are hashed in parallel. `hashlib` lets other threads run while it hashes.
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
# part of every root, so that another hash would be another digest
HASH = "sha256"
CHUNK_BYTES = 4 * 1024 * 1024
WHOLE, CHUNKS, VALUE, STATE = b"tensor", b"chunks", b"value", b"state"


def tensor_head(tag: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What is hashed before a tensor's bytes, or before the digests of its chunks."""
    dimensions = b"".join(size.to_bytes(8, "little") for size in shape)
    return field(tag) + field(dtype.encode("ascii")) + field(dimensions)


def chunked_digest(dtype: str, shape: tuple[int, ...], chunks: Iterable[bytes]) -> bytes:
    """The leaf of a tensor above `CHUNK_BYTES`, from the digests of its chunks in order."""
    return sha256(tensor_head(CHUNKS, dtype, shape) + b"".join(map(field, chunks))).digest()


def value_digest(kind: str, data: bytes) -> bytes:
    """The leaf of a plain value."""
    return sha256(field(VALUE) + field(kind.encode("ascii")) + data).digest()


def part_root(part: str, leaves: Iterable[tuple[str, bytes]]) -> bytes:
    """The root over leaves given as (path, digest); their order does not matter."""
    # as bytes: languages disagree on the order of texts beyond ASCII
    rows = sorted((path.encode("utf-8", "surrogatepass"), digest) for path, digest in leaves)
    fields = b"".join([field(path) + field(digest) for path, digest in rows])
    return sha256(_head(part.encode("ascii")) + fields).digest()


def state_root(parts: Mapping[str, bytes]) -> bytes:
    """The root over the roots of all parts, sorted by their names."""
    hasher = sha256(_head(STATE))
    for part in sorted(parts):
        hasher.update(field(part.encode("ascii")) + field(parts[part]))
    return hasher.digest()


def _head(what: bytes) -> bytes:
    return field(ALGORITHM.encode("ascii")) + field(HASH.encode("ascii")) + field(what)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Nothing is collected in the body, which would look at every new object again and again.

    Reference counts still free what is not needed any more; cycles wait until the body has ended.
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
# Of a large tensor at once: it stays in the cache of a core.
HASHED_BYTES = 256 * 1024


def available_threads() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0))


def digest_leaves(leaves: Sequence[Leaf], threads: int) -> list[bytes]:
    """The digest of each leaf, in the order given; equal sources are hashed once.

    Raises whatever reading the sources raises.
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
        # tied weights and views of one storage: the same place is read and hashed once
        first = firsts.setdefault((source.identity, dtype, shape), index)
        if first == index:
            tensors.append((index, leaf))
        else:
            copies.append((index, first))
    _digest_tensors(small, tensors, threads, digests)
    for index, first in copies:
        digests[index] = digests[first]
    return digests


# File, place, size, dtype, shape, position in the answer: sorted, equal tensors are neighbours.
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
    # the position in the answer is unique and stands before the file, so files are never compared
    small.sort()
    tasks += [
        partial(_one_window, window, buffers, results) for window in grouped(small, _are_near)
    ]
    run_all(tasks, threads)
    for index, leaf, digests in chunked:
        results[index] = chunked_digest(leaf.dtype, leaf.shape, digests)


class _Buffers(threading.local):
    """A buffer for each thread, used again and again, so that it stays in the cache."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(PIECE_BYTES))


def _one_chunk(
    span: FileSpan, first: int, number: int, places: tuple[_Buffers, list[bytes]]
) -> None:
    buffers, digests = places
    end = min(first + CHUNK_BYTES, span.size_bytes)
    hasher = sha256()
    # a piece is hashed while it is in the cache: to map each chunk would cost more than the copy
    for start in range(first, end, HASHED_BYTES):
        piece = buffers.view[: min(HASHED_BYTES, end - start)]
        span.opened.read_into(span.start + start, piece)
        hasher.update(piece)
    digests[number] = hasher.digest()


def _one_odd(index: int, leaf: TensorLeaf, digests: list[bytes]) -> None:
    """A tensor whose bytes come in order from wherever they are."""
    if leaf.source.size_bytes <= CHUNK_BYTES:
        hasher = sha256(tensor_head(WHOLE, leaf.dtype, leaf.shape))
        for piece in leaf.source.pieces(PIECE_BYTES):
            hasher.update(piece)
        digests[index] = hasher.digest()
        return
    chunks = (sha256(piece).digest() for piece in _whole_chunks(leaf))
    digests[index] = chunked_digest(leaf.dtype, leaf.shape, chunks)


def _whole_chunks(leaf: TensorLeaf) -> Iterator[bytes]:
    """Chunks of exactly `CHUNK_BYTES`, but for the last."""
    held = bytearray()
    for piece in leaf.source.pieces(CHUNK_BYTES):
        held += piece
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)


def _are_near(first: SmallTensor, before: SmallTensor, item: SmallTensor) -> bool:
    """Whether one read may serve them; the gap between the last two is read as well."""
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
            # head and bytes at once: copying a little costs less than a second call
            digest = sha256(head + view[start - first : start - first + size_bytes]).digest()
            before = same
        digests[index] = digest


def run_all(tasks: Sequence[Callable[[], object]], threads: int) -> None:
    """Run every task, the caller's thread being one of `threads`; the first fault ends the rest.

    Not a pool of the standard library, whose import alone costs as much as a small state.
    """
    waiting = deque(tasks)
    faults: list[BaseException] = []

    def work() -> None:
        try:
            while waiting and not faults:
                _next(waiting)()
        except BaseException as fault:  # noqa: BLE001 - raised again by the caller's thread
            faults.append(fault)

    # the calling thread works too: with one thread none is started at all
    others = [threading.Thread(target=work) for _ in range(min(threads, len(tasks)) - 1)]
    for other in others:
        other.start()
    try:
        work()
    finally:
        # whatever ends this, no thread reads on when the file is closed
        for other in others:
            other.join()
    if faults:
        raise faults[0]


def _next(waiting: deque[Callable[[], object]]) -> Callable[[], object]:
    try:
        return waiting.popleft()
    except IndexError:
        # another thread took the last task between the question and this call
        return lambda: None
