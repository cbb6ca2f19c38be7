"""Describes the inputs and outputs of an operator call: tensors, memory, torch's settings.

If a value differs between two runs although the call that produced it does not, something changed
it that the dispatcher does not see. A storage is identified by its address. That is safe while a
weak reference to it is held: no other storage can get the address.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..operator_audit import operator_name
from ..plain_tensors import has_memory, plain_parts, type_and_shape
from ..tensor_digests import StartedDigest, finish_all, grid_body


def settings_now() -> dict[str, str]:
    """Return torch's settings as text, by the names in reports; unknown ones are left out."""
    return {name: word for name, asked in _ASKED.items() if (word := _word(asked))}


def raw_settings() -> tuple[Any, ...]:
    """Return the raw values behind `settings_now`, in a fifth of the time.

    Raises what reading a setting raises.
    """
    return tuple([asked() for asked in _ASKED.values()])


def generator_state(args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """Return a digest of the state that a call will draw from; empty if it cannot be read."""
    try:
        given = (*args, *named.values())
        own = next((argument for argument in given if isinstance(argument, torch.Generator)), None)
        state = (own or _common(given, named)).get_state()
        return hashlib.sha256(bytes(state.untyped_storage())).hexdigest()[:16]
    except Exception:
        return ""


def _common(given: tuple[Any, ...], named: Mapping[str, Any]) -> torch.Generator:
    """Return the default generator of the device that the call works on."""
    tensor = next((argument for argument in given if isinstance(argument, torch.Tensor)), None)
    device: Any = torch.device(
        named.get("device") or (tensor.device if tensor is not None else "cpu")
    )
    if device.type == "cpu":
        return torch.default_generator
    generators = torch.get_device_module(device).default_generators
    index = torch.get_device_module(device).current_device()
    generator: torch.Generator = generators[index if device.index is None else device.index]
    return generator


def _word(asked: Any) -> str:
    try:
        value = asked()
    except Exception:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)[:100]


_TINY = 5e-324


def _flushes_denormals() -> bool:
    """Whether this thread flushes numbers below the normal range to zero."""
    return _TINY * 1.0 == 0.0


# read at every call, so each entry only reads a variable of torch
_ASKED: dict[str, Any] = {
    "threads": torch.get_num_threads,
    "cpu_capability": torch.backends.cpu.get_cpu_capability,
    "mkldnn": torch._C._get_mkldnn_enabled,  # noqa: SLF001 - its public name is a property of a module
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "fp32_matmul_precision": torch.get_float32_matmul_precision,
    "cudnn": torch._C._get_cudnn_enabled,  # noqa: SLF001 - as above
    "cudnn_benchmark": torch._C._get_cudnn_benchmark,  # noqa: SLF001 - as above
    "cudnn_deterministic": torch._C._get_cudnn_deterministic,  # noqa: SLF001 - as above
    "flush_denormal": _flushes_denormals,
    "torch": lambda: torch.__version__,
}


MAX_STORAGES: Final = 100_000
MAX_PRODUCERS: Final = 64
NOBODY: Final = -1


class KnownStorage(NamedTuple):
    """A storage: a weak reference, the last call that wrote it, the call that left it unset.

    `missing` counts the bytes that no call has written yet. `foreign` is true if its content came
    from outside torch: a view of such a storage is not digested until a call has written all of it.
    """

    reference: Any
    by: int = NOBODY
    bare: int = NOBODY
    missing: int = 0
    foreign: bool = False


_NOTHING: Final = KnownStorage(None)


class Storages:
    """Which call last wrote each storage, and which call created it uninitialised."""

    def __init__(self) -> None:
        self._known: dict[int, KnownStorage] = {}

    def producers(self, tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
        """Return the calls that last wrote these tensors, and those that left them unwritten.

        `NOBODY` stands for a tensor that no traced call has written.
        """
        made, unset = dict[int, None](), dict[int, None]()
        for storage in _storages(tensors):
            known = self._of(storage)
            made[known.by] = None
            if known.bare != NOBODY:
                unset[known.bare] = None
        return list(made)[:MAX_PRODUCERS], list(unset)[:MAX_PRODUCERS]

    def foreign(self, tensors: list[torch.Tensor]) -> bool:
        """Whether any of these tensors is in memory whose content came from outside torch."""
        return any(self._of(storage).foreign for storage in _storages(tensors))

    def _of(self, storage: Any) -> KnownStorage:
        return self._known.get(storage._cdata, _NOTHING)  # noqa: SLF001 - its identity has no public name

    def note(self, tensors: list[torch.Tensor], call: int, *, unset: bool, view: bool) -> None:
        """Note that a call wrote these tensors, left them unwritten (`unset`) or viewed them."""
        for tensor in tensors:
            for storage in _storages([tensor]):
                self._note(tensor, storage, call, unset=unset, view=view)

    def note_foreign(self, tensors: list[torch.Tensor], call: int) -> None:
        """Note that a call took memory that no traced call has written."""
        for storage in _storages(tensors):
            if self._of(storage).by == NOBODY:
                self._put(storage, KnownStorage(self._reference(storage), call, foreign=True))

    def _note(
        self, tensor: torch.Tensor, storage: Any, call: int, *, unset: bool, view: bool
    ) -> None:
        known = self._of(storage)
        size = tensor.numel() * tensor.element_size()
        if view:
            known = known._replace(by=call)
        elif unset:
            known = KnownStorage(None, call, call, storage.nbytes())
        else:
            # Assume that no bytes are written twice: writing piece by piece completes the storage.
            missing = max(0, known.missing - size)
            bare = known.bare if missing else NOBODY
            foreign = known.foreign and size < storage.nbytes()
            known = KnownStorage(None, call, bare, missing, foreign)
        self._put(storage, known._replace(reference=self._reference(storage)))

    def _reference(self, storage: Any) -> Any:
        if len(self._known) >= MAX_STORAGES:
            # dead entries are dropped only at the limit, since the search goes through all entries
            self._forget_dead()
        known = self._of(storage).reference
        return known or StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def _put(self, storage: Any, known: KnownStorage) -> None:
        self._known[storage._cdata] = known  # noqa: SLF001 - as above

    def _forget_dead(self) -> None:
        self._known = {
            identity: known
            for identity, known in self._known.items()
            if not known.reference.expired()
        }


def _storages(tensors: list[torch.Tensor]) -> list[Any]:
    storages = []
    for tensor in tensors:
        try:
            if has_memory(tensor):
                storages.append(tensor.untyped_storage())
            else:
                storages += [part.untyped_storage() for _, part in plain_parts(tensor)]
        except Exception:  # noqa: S112 - a kind that has no memory to speak of has no producer
            continue
    return storages


MAX_LIST: Final = 10_000
MAX_TEXT: Final = 400
MAX_VALUE: Final = 100
MAX_NUMBERS: Final = 8
SAMPLES: Final = 8
# of one call's inputs or outputs together; larger ones are not digested
MAX_BYTES: Final = 1 << 30
# a lower limit for views, which read nothing: a row of a data set is taken thousands of times
MAX_VIEWED_BYTES: Final = 1 << 20
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# their results are values that no operator has written yet
UNINITIALISED: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "_empty_affine_quantized", "empty_quantized"),
        "_empty_per_channel_affine_quantized",
    )
)
# reads a file, as operators that take a storage do: no operator has written its content
FROM_OUTSIDE: Final = frozenset(("aten::from_file",))
# after these a tensor uses the memory of another
REBINDS: Final = frozenset(("aten::set_", "aten::set", "aten::set_data"))
# the elements that these add are unwritten
RESIZES: Final = frozenset(f"aten::{name}" for name in ("resize_", "resize_as_", "_resize_output_"))
MESSAGES: Final = "c10d"
RECEIVES: Final = frozenset(("c10d::recv_", "c10d::recv_any_source_"))
# their schemas mark nothing as written, and these do write nothing
READ_ALONE: Final = frozenset(
    f"c10d::{name}" for name in ("send", "barrier", "monitored_barrier_", "check_for_nan")
)
# statistics of normalisations, which older schemas do not mark as written
RUNNING: Final = ("running_mean", "running_var")
ALIGNED: Final = 64
# types whose elements convert to a Python number
_ORDINARY: Final = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
)


class Given(NamedTuple):
    """An argument or result by name: one tensor, or the tensors of a list."""

    name: str
    tensors: list[torch.Tensor]


class GivenAll(NamedTuple):
    """The tensors of a call by argument, and all its other arguments as text.

    `whole` is false if an argument is no plain value. Then equal texts do not prove equal
    arguments.
    """

    tensors: list[Given]
    words: str
    whole: bool


class OperatorSignature(NamedTuple):
    """What the tracer asks about an operator at each call, all derived from its schema.

    `names` are its arguments in order. `overwritten` are the arguments whose old content it does
    not read.
    """

    operator: str
    names: tuple[str, ...]
    written: frozenset[str]
    overwritten: frozenset[str]
    view: bool
    storage: bool
    random: bool


@functools.cache
def signature_of(func: Any) -> OperatorSignature:
    """Return the signature of an operator; the dispatcher passes the same object at each call."""
    return OperatorSignature(
        operator=operator_name(func),
        names=tuple(argument.name for argument in _schema_arguments(func)),
        written=frozenset(written_names(func)),
        overwritten=frozenset(overwritten_names(func)),
        view=is_view(func),
        storage=takes_storage(func),
        random=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
    )


def given(
    signature: OperatorSignature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> GivenAll:
    """Return the tensors and the other arguments of a call."""
    tensors, words, whole = list[Given](), list[str](), True
    for name, value in _arguments(signature, args, named):
        values = list(_tensors(value))
        if values:
            tensors.append(Given(name, values))
            whole = whole and len(values) < MAX_LIST
            if isinstance(value, list | tuple) and None in map(_none_or_tensor, value):
                kept = ("None" if part is None else "tensor" for part in value[:MAX_NUMBERS])
                words.append(f"{name}=[{', '.join(kept)}]")
        elif value is not None:
            text, plain = _text(value)
            whole = whole and plain
            words.append(f"{name}={text}")
    return GivenAll(tensors, _cut(", ".join(words), MAX_TEXT), whole)


def _none_or_tensor(value: Any) -> Any:
    # tensors compare element by element: looking for None among them gives no single answer
    return None if value is None else 0


def written_arguments(
    signature: OperatorSignature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> list[Given]:
    """Return the arguments that the operator writes, by its schema or as a received message."""
    if not signature.written:
        return []
    return [
        Given(name, tensors)
        for name, value in _arguments(signature, args, named)
        if name in signature.written and (tensors := list(_tensors(value)))
    ]


def takes_storage(func: Any) -> bool:
    """Whether the operator takes a storage, whose bytes are not a comparable tensor."""
    return any(
        str(schema_argument.type) == "Storage" for schema_argument in _schema_arguments(func)
    )


def is_view(func: Any) -> bool:
    """Whether the result shares memory with an argument that the operator does not write."""
    schema = getattr(func, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(
        result.alias_info is not None and not result.alias_info.is_write for result in returns
    )


def results(result: Any) -> list[Given]:
    """Return the tensors of a result, by their positions."""
    several = result if isinstance(result, tuple) else (result,)
    by_place = ((str(place), list(_tensors(value))) for place, value in enumerate(several))
    return [Given(name, tensors) for name, tensors in by_place if tensors]


def describe(
    argument: Given, *, digest: bool, viewed: bool = False, sample: bool = False
) -> dict[str, Any]:
    """Return name, type and shape, device, place in memory, and a digest as in fast fingerprints.

    The digest is empty if `digest` is false or the values cannot be read. `viewed` says that the
    operator itself reads none of the values, which lowers the limit of bytes.
    """
    first = argument.tensors[0]
    shape = type_and_shape(first).removeprefix("torch.")
    if len(argument.tensors) > 1:
        # for a list: its length, the first tensor's shape, and a short digest over all shapes
        short = _short_digest("\n".join(map(type_and_shape, argument.tensors)))
        shape = f"{len(argument.tensors)} tensors, first {shape}, all {short}"
    limit = MAX_VIEWED_BYTES if viewed else MAX_BYTES
    read = _digest(argument) if digest and _size_in_bytes(argument) <= limit else ""
    return {
        "name": argument.name[:MAX_VALUE],
        "form": shape[: 2 * MAX_VALUE],
        "device": str(first.device)[:20],
        "layout": _layout(argument.tensors),
        "offset": _offset(argument.tensors),
        "digest": read,
        "sample": _sample(first) if sample and read else [],
        "odd": _odd_of(read, argument.tensors) if read else "",
    }


MAX_ODD: Final = 10_000
# by digest: most values are seen as an output of one call and again as an input of the next
_odd_known: dict[str, str] = {}


def _odd_of(digest: str, tensors: list[torch.Tensor]) -> str:
    known = _odd_known.get(digest)
    if known is None:
        if len(_odd_known) >= MAX_ODD:
            _odd_known.clear()
        known = _odd_known[digest] = _odd(tensors)
    return known


def _odd(tensors: list[torch.Tensor]) -> str:
    """Return `nan` or `infinite` if a tensor contains one; empty if all numbers are finite."""
    infinite = False
    for tensor in tensors:
        # a finite sum proves in one operation that every number is finite
        if not tensor.is_floating_point() or math.isfinite(float(tensor.detach().sum())):
            continue
        if bool(torch.isnan(tensor).any()):
            return "nan"
        infinite = infinite or bool(torch.isinf(tensor).any())
    return "infinite" if infinite else ""


def _layout(tensors: list[torch.Tensor]) -> str:
    """Describe an unusual layout in memory: strides, or an address with a small alignment.

    Kernels choose their way to compute by it. The text is empty for the usual layout.
    """
    words = [_layout_of(tensor) for tensor in tensors]
    if len(words) == 1:
        return words[0]
    return _short_digest("\n".join(words)) if any(words) else ""


def _layout_of(tensor: torch.Tensor) -> str:
    try:
        if has_memory(tensor):
            plain = tensor
        else:
            ((_, plain),) = plain_parts(tensor)
        words = "" if plain.is_contiguous() else f"strides {tuple(plain.stride())}"
        # the lowest set bit is the largest power of two that divides the address
        address = plain.data_ptr() if plain.numel() else 0
        step = address & -address
    except Exception:
        # made of several tensors, or of a kind without memory
        return ""
    odd = f"aligned to {step} bytes" if 0 < step < ALIGNED else ""
    return ", ".join(filter(None, (words, odd)))[:MAX_VALUE]


def _offset(tensors: list[torch.Tensor]) -> str:
    """Return where in its storage a view begins, in elements; empty at the storage's beginning."""
    offsets = [tensor.storage_offset() if has_memory(tensor) else 0 for tensor in tensors]
    if not any(offsets):
        return ""
    return str(offsets[0]) if len(offsets) == 1 else _short_digest(str(offsets))


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _cut(text: str, limit: int) -> str:
    """Return at most `limit` characters; the end of a longer text is a digest of all of it."""
    return text if len(text) <= limit else f"{text[: limit - 14]}... #{_short_digest(text)}"


def _size_in_bytes(argument: Given) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in argument.tensors)


def _digest(argument: Given) -> str:
    if all(map(_is_small, argument.tensors)):
        # equals the digest below, without the machinery that waits for a device
        hasher = hashlib.sha256()
        for index, tensor in enumerate(argument.tensors):
            hasher.update(f"{index} {type_and_shape(tensor)}\n".encode())
            hasher.update(grid_body(tensor))
        return f"grid64:{hasher.hexdigest()}"
    left_out: list[str] = []
    named = ((str(index), tensor) for index, tensor in enumerate(argument.tensors))
    started = StartedDigest(named, "", left_out.append, fast=True)
    return "" if left_out else finish_all([started])[0]


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether all bytes are in host memory and are plain numbers, so that reading them is cheap."""
    ordinary = has_memory(tensor) and tensor.is_cpu and tensor.dtype in _ORDINARY
    return ordinary and (tensor.data_ptr() != 0 or not tensor.numel())


def _sample(tensor: torch.Tensor) -> list[str]:
    """Return up to eight evenly spaced values exactly, to show how far apart two results are."""
    if not tensor.is_floating_point() or not tensor.numel():
        return []
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // SAMPLES)
    few = flat[: SAMPLES * stride : stride]
    few = few if few.dtype in _ORDINARY else few.to(torch.float64)
    return [float(value).hex() for value in few.tolist()]


def _arguments(
    signature: OperatorSignature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    names = signature.names
    for place, value in enumerate(args):
        yield (names[place] if place < len(names) else str(place)), value
    yield from named.items()


def _schema_arguments(func: Any) -> Any:
    schema = getattr(func, "_schema", None)
    return schema.arguments if schema is not None else ()


def written_names(func: Any) -> set[str]:
    """Return the names of the arguments that the operator writes."""
    return {
        argument.name
        for argument in _schema_arguments(func)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in RUNNING
    } | _of_messages(func)


def overwritten_names(func: Any) -> set[str]:
    """Return the written arguments whose old content is not read: `out` arguments and receives."""
    name = _name(func)
    if name.startswith(f"{MESSAGES}::"):
        arrives = name in RECEIVES
        return {
            of_message
            for of_message in _of_messages(func)
            if arrives or of_message.startswith("output")
        }
    return {
        argument.name
        for argument in _schema_arguments(func)
        if argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
    }


def _of_messages(func: Any) -> set[str]:
    """Return what a collective or receive writes: its outputs if it has any, else its tensors."""
    name = _name(func)
    if not name.startswith(f"{MESSAGES}::") or name in READ_ALONE:
        return set()
    tensors = [
        schema_argument.name
        for schema_argument in _schema_arguments(func)
        if "Tensor" in str(schema_argument.type)
    ]
    outputs = {tensor for tensor in tensors if tensor.startswith("output")}
    return outputs or {tensor for tensor in tensors if tensor.startswith("tensor")}


def _name(func: Any) -> str:
    schema = getattr(func, "_schema", None)
    return str(schema.name) if schema is not None else ""


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list) and depth < MAX_NUMBERS:
        for part in value[:MAX_LIST]:
            yield from _tensors(part, depth + 1)


def _text(value: Any) -> tuple[str, bool]:
    """Return a plain value as Python writes it, or the type of any other value.

    The text of another object may contain an address. The second result says whether equal texts
    prove equal values.
    """
    if value is None or isinstance(value, bool | int | float | complex | str):
        return _cut(repr(value), MAX_VALUE), True
    if isinstance(value, _NAMED):
        return str(value)[:MAX_VALUE], True
    if isinstance(value, list | tuple):
        several = [_text(part) for part in value[:MAX_LIST]]
        texts, plain = [text for text, _ in several], all(tensor for _, tensor in several)
        shown, more = ", ".join(texts[:MAX_NUMBERS]), ""
        if len(value) > MAX_NUMBERS:
            more = f", ... {len(value)} in all #{_short_digest(', '.join(texts))}"
        return _cut(f"[{shown}{more}]", 2 * MAX_VALUE), plain and len(value) <= MAX_LIST
    return f"<{type(value).__name__}>"[:MAX_VALUE], False
