"""Which of many pairs of tensors differ, and by how much, on all cores and in little memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gate.checkpoint.hashing import run_all
from gate.checkpoint.leaves import FileSpan, TensorLeaf
from gate.comparison.equal_bytes import (
    STRETCH_BYTES,
    Buffers,
    equal_sources,
    in_file,
    stretches,
)
from gate.records.state_difference import NumberDifference

if TYPE_CHECKING:
    from gate.comparison.tensor_numbers import TensorNumbers

TASK_BYTES: Final = 8 * STRETCH_BYTES
TASK_TENSORS: Final = 256


class TensorPair(NamedTuple):
    """Two tensors of one type and shape."""

    left: TensorLeaf
    right: TensorLeaf

    @property
    def identity(self) -> tuple[Hashable, ...]:
        """Equal for pairs of the same bytes, so that shared ones are compared once."""
        return self.left.source.identity, self.right.source.identity, self.left.dtype

    @property
    def splits(self) -> bool:
        """Whether several threads may share the work on it."""
        large = self.left.source.size_bytes > STRETCH_BYTES
        return large and in_file(self.left.source, self.right.source)


def changed_tensors(pairs: Sequence[TensorPair], threads: int) -> list[TensorPair]:
    """Those whose bytes differ, in the order given."""
    buffers = Buffers()
    differing: set[tuple[Hashable, ...]] = set()
    firsts = {pair.identity: pair for pair in pairs}
    whole = [pair for pair in firsts.values() if not pair.splits]
    tasks: list[Callable[[], object]] = [
        partial(_compare_span, pair, start, differing, buffers)
        for pair in firsts.values()
        if pair.splits
        for start in range(0, pair.left.source.size_bytes, TASK_BYTES)
    ]
    tasks += [partial(_compare_whole, batch, differing, buffers) for batch in _batches(whole)]
    run_all(tasks, threads)
    return [pair for pair in pairs if pair.identity in differing]


def _batches(pairs: Sequence[TensorPair]) -> Iterator[list[TensorPair]]:
    """Small tensors together, so that handing out work costs little."""
    batch: list[TensorPair] = []
    size = 0
    for pair in pairs:
        batch.append(pair)
        size += pair.left.source.size_bytes
        if size >= TASK_BYTES or len(batch) == TASK_TENSORS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _compare_whole(
    batch: Sequence[TensorPair], differing: set[tuple[Hashable, ...]], buffers: Buffers
) -> None:
    for pair in batch:
        if not equal_sources(pair.left.source, pair.right.source, buffers):
            differing.add(pair.identity)


def _compare_span(
    pair: TensorPair, first: int, differing: set[tuple[Hashable, ...]], buffers: Buffers
) -> None:
    """One part of a large tensor; nothing is read of one that is known to differ."""
    identity = pair.identity
    for start, left, right in _spans(pair, first):
        if identity in differing:
            return
        if not buffers.equal(buffers.load(left, right, start)):
            differing.add(identity)


def _spans(pair: TensorPair, first: int) -> Iterator[tuple[int, FileSpan, FileSpan]]:
    left, right = pair.left.source, pair.right.source
    if isinstance(left, FileSpan) and isinstance(right, FileSpan):
        for start in range(first, min(first + TASK_BYTES, left.size_bytes), STRETCH_BYTES):
            yield start, left, right


def number_differences(pairs: Sequence[TensorPair], threads: int) -> list[NumberDifference | None]:
    """By how much the numbers of tensors that differ differ; None where a type has no numbers."""
    if not pairs:
        return []
    # slow to import, and most comparisons find nothing that differs
    from gate.comparison.tensor_numbers import TensorNumbers, has_numbers  # noqa: PLC0415

    buffers = Buffers()
    found: list[NumberDifference | None] = [None] * len(pairs)
    known = [(index, pair) for index, pair in enumerate(pairs) if has_numbers(pair.left.dtype)]

    def work(index: int, pair: TensorPair) -> None:
        numbers = TensorNumbers(pair.left.dtype, pair.left.shape)
        _add_all(pair, numbers, buffers)
        found[index] = numbers.result()

    run_all([partial(work, *item) for item in known if not item[1].splits], threads)
    for index, pair in known:
        if pair.splits:
            numbers = TensorNumbers(pair.left.dtype, pair.left.shape)
            starts = range(0, pair.left.source.size_bytes, TASK_BYTES)
            run_all(
                [partial(_add_span, pair, start, numbers, buffers) for start in starts], threads
            )
            found[index] = numbers.result()
    return found


def _add_all(pair: TensorPair, numbers: TensorNumbers, buffers: Buffers) -> None:
    for start, length in stretches(pair.left.source, pair.right.source, buffers):
        numbers.add(start, buffers.left.view[:length], buffers.right.view[:length])


def _add_span(pair: TensorPair, first: int, numbers: TensorNumbers, buffers: Buffers) -> None:
    for start, left, right in _spans(pair, first):
        length = buffers.load(left, right, start)
        numbers.add(start, buffers.left.view[:length], buffers.right.view[:length])
