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

from gate.checkpoint.pickle.calls import StateError, storage
from gate.checkpoint.pickle.known_calls import call
from gate.checkpoint.pickle.nodes import GlobalNode, MapNode, StorageNode, TensorNode

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
_FORM: Final = (
    rb"(\(\(" + _GET + _GET + rb"X.\0\0\0)([0-9]{1,9})" + _PUT
    + rb"(" + _GET + _INTEGER + rb")t" + _PUT + rb"Q(" + _INTEGER + rb")"
    # a tensor without dimensions has two empty tuples, which are not remembered
    + rb"(?:\)\)|(" + _SIZES + rb")" + _PUT + rb"(" + _SIZES + rb")" + _PUT + rb")"
    + rb"([\x88\x89]" + _GET + rb")\)R" + _PUT + rb"t" + _PUT + rb"R" + _PUT
)  # fmt: skip
_TENSOR: Final = re.compile(_FORM, re.DOTALL).match
# A tensor in a dictionary: its key, which is remembered, and the name of what builds it.
_ITEM: Final = re.compile(
    rb"X(...\0)(.{1,200}?)" + _PUT + rb"(" + _GET + rb")" + _FORM, re.DOTALL
).match
_FORM_GROUPS: Final = (1, 4, 6, 7, 9, 11)
_SHAPE_GROUP: Final = 3
_PLACES_GROUPS: Final = (3, 5, 8, 10, 12, 13, 14)
_SCALAR_PLACES_GROUPS: Final = (3, 5, 12, 13, 14)
_PLACES: Final = struct.Struct("<7I").unpack
_SCALAR_PLACES: Final = struct.Struct("<5I").unpack
_NUMBERS: Final = re.compile(_GET + rb"|" + _INTEGER, re.DOTALL).findall

# In the memo, of a tensor in a dictionary that has dimensions, its key among them.
ITEM_PLACES: Final = 8
SHORT_PLACES: Final = 256

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
        # with the first place in the memo, and the key that is remembered there, if any
        self._late: list[tuple[Form, TensorNode, int, str | None]] = []
        self._newest = -1

    def take(self, builder: GlobalNode, position: int) -> tuple[TensorNode, int] | None:
        """The tensor whose arguments for `builder` begin at `position`, and where it ends.

        None, and nothing has changed, when anything else stands there, or something faulty.
        """
        match = _TENSOR(self._data, position)
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
        self._newest = places[-1]
        return self._made(form, key, places[0], None), match.end()

    def take_items(self, builder_key: int, position: int) -> tuple[list[object], int]:
        """Keys and tensors of a dictionary that follow each other from `position` on.

        And where they end. Only those of forms that are known, all built by what is remembered
        under `builder_key`. Anything else ends them, or leaves them all to the opcodes.
        """
        rows, places, end = self._items(_gets(builder_key), position)
        numbers = struct.unpack(f"<{len(places)}I", b"".join(places))
        forms = {id(form): form for form, _, _ in rows}.values()
        if (
            not rows
            or not self._are_new(numbers)
            or any(form.recall(self._memo) != form.recalled for form in forms)
        ):
            return [], position
        self._newest = numbers[-1]
        items: list[object] = []
        for (form, name, key), first in zip(rows, numbers[::ITEM_PLACES], strict=True):
            items += (name, self._made(form, key, first, name))
        return items, end

    def _items(
        self, gets: tuple[bytes, ...], position: int
    ) -> tuple[list[tuple[Form, str, bytes]], list[bytes], int]:
        """Form, name and storage of each, where they want to be remembered, and where they end."""
        rows: list[tuple[Form, str, bytes]] = []
        places: list[bytes] = []
        while (match := _ITEM(self._data, position)) is not None:
            (
                length, name, put, get, head, key, put_key, reference, put_reference, offset,
                shape, put_shape, strides, put_strides, tail, put_hooks, put_arguments, put_tensor,
            ) = match.groups()  # fmt: skip
            form = self._known.get((head, reference, offset, shape, strides, tail))
            if (
                form is None
                or shape is None
                or get not in gets
                or len(key) != form.key_length
                or len(name) != int.from_bytes(length, "little")
            ):
                break
            places += (
                put, put_key, put_reference, put_shape, put_strides, put_hooks, put_arguments,
                put_tensor,
            )  # fmt: skip
            rows.append((form, name.decode("utf-8", "surrogatepass"), key))
            position = match.end()
        return rows, places, position

    def _made(self, form: Form, key: bytes, first: int, name: str | None) -> TensorNode:
        """A tensor of a form, to be remembered from the place `first` on, behind its name."""
        sample = form.sample
        like = sample.storage
        source = StorageNode(
            key.decode("ascii"), like.dtype, like.elements, like.first, like.length, like.quantized
        )
        tensor = TensorNode(source, sample.dtype, sample.offset, sample.shape, sample.strides)
        self._storages.append(source)
        self._late.append((form, tensor, first, name))
        return tensor

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
        for form, tensor, first, name in self._late:
            place = first
            if name is not None:
                remember(place, name)
                place += 1
            word, kind, _, location = form.recalled
            source, offset, shape, strides = (
                tensor.storage, tensor.offset, tensor.shape, tensor.strides,
            )  # fmt: skip
            hooks = MapNode()
            remember(place, source.key)
            remember(place + 1, (word, kind, source.key, location, source.elements))
            place += 2
            if shape:
                remember(place, shape)
                remember(place + 1, strides)
                place += 2
            remember(place, hooks)
            remember(place + 1, (source, offset, shape, strides, form.gradient, hooks))
            remember(place + 2, tensor)
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


def _gets(key: int) -> tuple[bytes, ...]:
    """The opcodes that push what is remembered under a number."""
    long = b"j" + key.to_bytes(4, "little")
    return (b"h" + key.to_bytes(1, "little"), long) if key < SHORT_PLACES else (long,)
