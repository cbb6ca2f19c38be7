"""Read many tensors of one map in one piece, if they are written as `torch.save` writes them.

A large state repeats about thirty opcodes for each name and its tensor. Interpreting each opcode
alone would take most of the reading time. So one regular expression reads these opcodes, and the
checks run for all tensors at once.

If anything is unusual, `tensor_run` does nothing. The handlers of `reader.py` then interpret the
opcodes one at a time, and they alone define what a pickle means. Nothing is imported or called here
either.

Source: `persistent_id` in `torch/serialization.py` and `Tensor._reduce_ex_internal` of torch 2.13.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import Final

from gate.checkpoint.leaves import TORCH_STORAGES
from gate.checkpoint.pickle.calls import (
    GlobalNode,
    MapNode,
    StorageNode,
    TensorNode,
    is_location,
)

# fewer tensors do not repay the cost of the checks
FEWEST_TENSORS: Final = 8
REBUILD: Final = ("torch._utils", "_rebuild_tensor_v2")
HOOKS: Final = ("collections", "OrderedDict")
# The number of values that each tensor adds to the memo: name, key, reference, shape, strides,
# hooks, arguments and the tensor itself.
PUTS: Final = 8

# BINGET or LONG_BINGET; LONG_BINPUT; integers from 0. Each alternative begins with a different byte
# that determines its length, so the bytes cannot be read as any other opcodes.
_GET = rb"(h.|j.{4})"
_PUT = rb"r(.{3}\0)"
_INTEGER = rb"(?:K.|M..|J.{3}[\0-\x7f])"
_SIZES = rb"(\(" + _INTEGER + rb"{4,64}t|" + _INTEGER + rb"{1,3}[\x85-\x87])" + _PUT
# The pattern ends a text at the first byte that is not printable; `_have_lengths` checks the
# length.
_TENSOR: Final = (
    # name and function
    rb"X(.)\0\0\0([ -~]{1,255}?)" + _PUT + _GET
    # two marks, then ("storage", type, key, location, elements), which BINPERSID refers outside
    + rb"\(\(" + _GET + _GET + rb"X(.)\0\0\0([0-9]{1,10})" + _PUT + _GET
    + rb"(" + _INTEGER + rb")t" + _PUT
    # offset, shape, strides, requires_grad, and an empty map of hooks
    + rb"Q(" + _INTEGER + rb")" + _SIZES + _SIZES + rb"([\x88\x89])" + _GET + rb"\)R" + _PUT
    + rb"t" + _PUT + rb"R" + _PUT
)  # fmt: skip
# The two marks of a tensor come at most this many bytes later, after its longest name and two more
# opcodes.
_MARKS: Final = b"(("
_BEFORE_MARKS: Final = 5 + 255 + 5 + 5 + len(_MARKS)
_WANTS_GRADIENT: Final = b"\x88"
_WIDTHS: Final = {ord("K"): 2, ord("M"): 3, ord("J"): 5}
_MISSING: Final = object()


@dataclass(frozen=True, slots=True, eq=False)
class TensorRun:
    """Names and tensors in the order of the pickle, which continues at `end`.

    The run uses the memo numbers from `first` to before `last`. Hardly any pickle recalls one of
    them, so `remembered` builds the values only on demand. `types`, `locations` and `gradients` are
    needed only for that.
    """

    end: int
    first: int
    names: Sequence[str]
    tensors: Sequence[TensorNode]
    types: Sequence[object]
    locations: Sequence[object]
    gradients: Sequence[bytes]

    @property
    def last(self) -> int:
        """The first memo number after those of the run."""
        return self.first + PUTS * len(self.names)

    def remembered(self) -> Iterable[tuple[int, object]]:
        """Return each memo number with its value, as if the opcodes had been read one by one."""
        columns = (self.names, self.tensors, self.types, self.locations, self.gradients)
        return enumerate(chain.from_iterable(map(_remembered, *columns)), self.first)


def _remembered(
    name: str, tensor: TensorNode, kind: object, location: object, gradient: bytes
) -> tuple[object, ...]:
    storage, shape, strides = tensor.storage, tensor.shape, tensor.strides
    hooks = MapNode()
    reference = ("storage", kind, storage.key, location, storage.elements)
    asks = gradient == _WANTS_GRADIENT
    arguments = (storage, tensor.offset, shape, strides, asks, hooks)
    return name, storage.key, reference, shape, strides, hooks, arguments, tensor


def tensor_run(data: bytes, position: int, memo: Mapping[int, object]) -> TensorRun | None:
    """Return the names and tensors from `position` on, or None if torch would not write them so."""
    if data.find(_MARKS, position, position + _BEFORE_MARKS) < 0:
        return None
    rows = []
    tensor = _expression()
    while match := tensor.match(data, position):
        rows.append(match.groups())
        position = match.end()
    if len(rows) < FEWEST_TENSORS:
        return None
    (
        name_lengths, names, name_puts, calls, words, types, key_lengths, keys, key_puts, locations,
        elements, reference_puts, offsets, shapes, shape_puts, strides, strides_puts, gradients,
        hooks, hooks_puts, argument_puts, own_puts,
    ) = zip(*rows, strict=True)  # fmt: skip
    first = int.from_bytes(name_puts[0], "little")
    puts = (
        name_puts, key_puts, reference_puts, shape_puts, strides_puts, hooks_puts, argument_puts,
        own_puts,
    )  # fmt: skip
    recalled = {
        get: _recalled(get, first, memo) for get in {*calls, *words, *types, *locations, *hooks}
    }
    dtypes = {get: _dtype(recalled[get]) for get in set(types)}
    sizes = {text: _integers(text) for text in {*shapes, *strides, *elements, *offsets}}
    shape_sizes, stride_sizes = [sizes[text] for text in shapes], [sizes[text] for text in strides]
    if (
        not _have_lengths(names, name_lengths)
        or not _have_lengths(keys, key_lengths)
        or not _is_counted(puts, first)
        or not _is_new(range(first, first + PUTS * len(rows)), memo)
        or any(recalled[get] != "storage" for get in set(words))
        or any(_key(recalled[get]) != REBUILD for get in set(calls))
        or any(_key(recalled[get]) != HOOKS for get in set(hooks))
        or not all(is_location(recalled[get]) for get in set(locations))
        or None in dtypes.values()
        or list(map(len, shape_sizes)) != list(map(len, stride_sizes))
    ):
        return None
    counts = [sizes[text][0] for text in elements]
    kinds = [dtype for get in types if (dtype := dtypes[get])]
    storages = map(
        StorageNode, map(bytes.decode, keys), kinds, counts, repeat(0), counts, repeat("")
    )
    tensors = map(
        TensorNode, storages, kinds, [sizes[text][0] for text in offsets], shape_sizes, stride_sizes
    )
    return TensorRun(
        position,
        first,
        list(map(bytes.decode, names)),
        list(tensors),
        [recalled[get] for get in types],
        [recalled[get] for get in locations],
        gradients,
    )


@cache
def _expression() -> re.Pattern[bytes]:
    """Return the compiled pattern.

    Compiling takes longer than reading a small state, so it is done only when a state may have a
    run.
    """
    return re.compile(_TENSOR, re.DOTALL)


def _have_lengths(texts: Sequence[bytes], lengths: Sequence[bytes]) -> bool:
    return bytes(map(len, texts)) == b"".join(lengths)


def _is_counted(puts: Sequence[Sequence[bytes]], first: int) -> bool:
    """Return whether the opcodes remember values under consecutive numbers, as all picklers do."""
    count = len(puts[0])
    return all(
        b"".join(column) == struct.pack(f"<{count}I", *range(start, start + PUTS * count, PUTS))
        for start, column in enumerate(puts, first)
    )


def _is_new(numbers: range, memo: Mapping[int, object]) -> bool:
    """Return whether the memo has none of these numbers.

    The smaller of the two is iterated, so the work is limited by the size of the run.
    """
    if len(memo) < len(numbers):
        return not any(map(numbers.__contains__, memo))
    return memo.keys().isdisjoint(numbers)


def _recalled(get: bytes, first: int, memo: Mapping[int, object]) -> object:
    """Return the value that a get recalls from before the run, or `_MISSING`."""
    number = int.from_bytes(get[1:], "little")
    return memo.get(number, _MISSING) if number < first else _MISSING


def _key(value: object) -> tuple[str, str] | None:
    return value.key if isinstance(value, GlobalNode) else None


def _dtype(kind: object) -> str | None:
    """Return the dtype of a plain storage class of torch, or None."""
    if not isinstance(kind, GlobalNode) or kind.module.partition(".")[0] != "torch":
        return None
    return TORCH_STORAGES.get(kind.name)


def _integers(text: bytes) -> tuple[int, ...]:
    """Return the integers of a tuple or a single one; empty if the opcodes do not fit them."""
    integers = []
    position = int(text.startswith(b"("))
    while position < len(text) and (width := _WIDTHS.get(text[position])):
        integers.append(int.from_bytes(text[position + 1 : position + width], "little"))
        position += width
    # TUPLE1 to TUPLE3 take a fixed number of values; any others would be left on the stack
    fits = text[position:] in {b"", b"t"} or text[position] - 0x84 == len(integers)
    return tuple(integers) if fits else ()
