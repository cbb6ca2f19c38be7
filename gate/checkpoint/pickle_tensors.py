"""One tensor of a state at once: the two dozen opcodes that torch writes for each, as one step.

A short cut and nothing more. It makes the tensor and the remembered values that the opcodes one by
one would have made (`pickle_opcodes.py`), and leaves to them whatever has not exactly this form.
The remembered values are made when one of them is asked for, which is seldom.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Final, NamedTuple

from gate.checkpoint.known_calls import call
from gate.checkpoint.pickle_calls import StateError, storage
from gate.checkpoint.pickle_nodes import GlobalNode, MapNode, StorageNode, TensorNode

BUILDER: Final = ("torch._utils", "_rebuild_tensor_v2")
HOOKS: Final = ("collections", "OrderedDict")
TRUE: Final = b"\x88"[0]

# An opcode is known by its first byte and knows its own length, so bytes fit in one way only. The
# first 256 remembered values are written in a shorter form, which is not worth an expression.
_GET = rb"(?:h.|j....)"
_INTEGER = rb"(?:K.|M..|J...[\0-\x7f])"
_SIZES = (
    rb"(?:"
    + rb"|".join((
        _INTEGER + rb"\x85",
        _INTEGER + rb"{2}\x86",
        _INTEGER + rb"{3}\x87",
        rb"\(" + _INTEGER + rb"{4,64}t",
    ))
    + rb")"
)  # fmt: skip
_PUT = rb"r(....)"
_FORM: Final = re.compile(
    rb"(\(\(" + _GET + _GET + rb"X.\0\0\0)([0-9]{1,9})" + _PUT
    + rb"(" + _GET + _INTEGER + rb")t" + _PUT + rb"Q(" + _INTEGER + rb")"
    # a tensor without dimensions has two empty tuples, which are not remembered
    + rb"(?:\)\)|(" + _SIZES + rb")" + _PUT + rb"(" + _SIZES + rb")" + _PUT + rb")"
    + rb"([\x88\x89]" + _GET + rb")\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT,
    re.DOTALL,
).match  # fmt: skip
_FORM_GROUPS: Final = (1, 4, 6, 7, 9, 11)
_SHAPE_GROUP: Final = 3
_PLACES_GROUPS: Final = (3, 5, 8, 10, 12, 13, 14)
_SCALAR_PLACES_GROUPS: Final = (3, 5, 12, 13, 14)
_PLACES: Final = struct.Struct("<7I").unpack
_SCALAR_PLACES: Final = struct.Struct("<5I").unpack
_NUMBERS: Final = re.compile(_GET + rb"|" + _INTEGER, re.DOTALL).findall

Raw = tuple[bytes | None, ...]


class Form(NamedTuple):
    """What tensors share whose opcodes differ only in the key and in where values are remembered.

    `recall` takes what they need from the memo, `recalled` is what must stand there.
    """

    key_length: int
    recall: Callable[[dict[int, object]], tuple[object, ...]]
    recalled: tuple[object, ...]
    sample: TensorNode
    gradient: bool


class TensorForms:
    """Takes tensors out of one pickle and into its memo."""

    def __init__(self, data: bytes, memo: dict[int, object], storages: list[StorageNode]) -> None:
        self._data = data
        self._memo = memo
        self._storages = storages
        self._known: dict[Raw, Form | None] = {}
        self._late: list[tuple[Form, TensorNode, tuple[int, ...]]] = []
        self._newest = -1

    def take(self, builder: GlobalNode, position: int) -> tuple[TensorNode, int] | None:
        """The tensor whose arguments for `builder` begin at `position`, and where it ends.

        None, and nothing has changed, when anything else stands there, or something faulty.
        """
        match = _FORM(self._data, position)
        if match is None:
            return None
        raw, key = match.group(*_FORM_GROUPS), match[2]
        try:
            form = self._known[raw]
        except KeyError:
            form = self._known[raw] = self._learned(builder, raw)
        if form is None or len(key) != form.key_length:
            return None
        if raw[_SHAPE_GROUP] is None:
            places = _SCALAR_PLACES(b"".join(match.group(*_SCALAR_PLACES_GROUPS)))
        else:
            places = _PLACES(b"".join(match.group(*_PLACES_GROUPS)))
        if form.recall(self._memo) != form.recalled or not self._are_new(places):
            return None
        sample = form.sample
        like = sample.storage
        source = StorageNode(
            key.decode("ascii"), like.dtype, like.elements, like.first, like.length, like.quantized
        )
        tensor = TensorNode(source, sample.dtype, sample.offset, sample.shape, sample.strides)
        self._newest = places[-1]
        self._storages.append(source)
        self._late.append((form, tensor, places))
        return tensor, match.end()

    def _are_new(self, places: tuple[int, ...]) -> bool:
        """Whether they follow each other, and nothing was remembered there before."""
        first = places[0]
        return (
            first > self._newest
            and places == tuple(range(first, first + len(places)))
            and self._memo.keys().isdisjoint(places)
        )

    def remember_all(self) -> None:
        """Bring the memo up to date; what was remembered later in a place stays there."""
        remember = self._memo.setdefault
        for form, tensor, places in self._late:
            word, kind, _, location = form.recalled
            source, offset, shape, strides = (
                tensor.storage, tensor.offset, tensor.shape, tensor.strides,
            )  # fmt: skip
            hooks = MapNode()
            remember(places[0], source.key)
            remember(places[1], (word, kind, source.key, location, source.elements))
            if shape:
                remember(places[2], shape)
                remember(places[3], strides)
            remember(places[-3], hooks)
            remember(places[-2], (source, offset, shape, strides, form.gradient, hooks))
            remember(places[-1], tensor)
        self._late.clear()

    def _learned(self, builder: GlobalNode, raw: Raw) -> Form | None:
        """The form by way of the calls themselves; None when they refuse it."""
        head, reference, offset, shape, strides, tail = (part or b"" for part in raw)
        *recalls, elements = _numbers(head[2:-5] + tail[1:] + reference)
        if not self._memo.keys() >= set(recalls):
            return None
        recall = itemgetter(*recalls)
        word, kind, hooks, location = recalled = recall(self._memo)
        if not isinstance(hooks, GlobalNode) or hooks.key != HOOKS or not isinstance(location, str):
            return None
        gradient = tail[0] == TRUE
        try:
            source = storage((word, kind, "0", location, elements))
            view = (*_numbers(offset), _numbers(shape), _numbers(strides))
            sample = call(builder, (source, *view, gradient, MapNode()))
        except StateError:
            return None
        if not isinstance(sample, TensorNode):
            return None
        return Form(head[-4], recall, recalled, sample, gradient)


def _numbers(opcodes: bytes) -> tuple[int, ...]:
    """What stands behind the opcodes of numbers and of remembered values; none has a sign here."""
    return tuple(int.from_bytes(token[1:], "little") for token in _NUMBERS(opcodes))
