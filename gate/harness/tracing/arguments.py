"""What goes into an operator call and what comes out: tensors, memory, settings of torch's.

A value that differs between two runs although the call that produced it did not was changed by what
the dispatcher does not see. A storage is known by its address while a weak reference to it is held:
no other one can have that address.
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
    """By the name that a report shows; what this torch cannot tell is left out."""
    return {name: word for name, asked in _ASKED.items() if (word := _word(asked))}


def raw_settings() -> tuple[Any, ...]:
    """What their words depend on, in a fifth of the time; raises what a question raises."""
    return tuple([asked() for asked in _ASKED.values()])


def generator_state(args: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    """A digest of the state that a call will draw from; empty where that cannot be told."""
    try:
        given = (*args, *named.values())
        own = next((argument for argument in given if isinstance(argument, torch.Generator)), None)
        state = (own or _common(given, named)).get_state()
        return hashlib.sha256(bytes(state.untyped_storage())).hexdigest()[:16]
    except Exception:
        return ""


def _common(given: tuple[Any, ...], named: Mapping[str, Any]) -> torch.Generator:
    """The generator of the device that the call works on."""
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
    """Whether numbers below the normal range become zero in this thread."""
    return _TINY * 1.0 == 0.0


# what is asked for at every call: each is a look at a variable of torch's
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
    """Of a storage: a reference, who wrote it last, and who left it unwritten.

    `missing` counts bytes that nobody has written yet, `foreign` says that what is in it came past
    torch: a view of it is not looked at before somebody has written there.
    """

    reference: Any
    by: int = NOBODY
    bare: int = NOBODY
    missing: int = 0
    foreign: bool = False


_NOTHING: Final = KnownStorage(None)


class Storages:
    """By storage: the number of the call that last wrote it, and of the one that left it unset."""

    def __init__(self) -> None:
        self._known: dict[int, KnownStorage] = {}

    def producers(self, tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
        """The calls that last wrote these tensors, and those that made them uninitialised.

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
        """Whether some of these are in memory that was filled, or not filled, past torch."""
        return any(self._of(storage).foreign for storage in _storages(tensors))

    def _of(self, storage: Any) -> KnownStorage:
        return self._known.get(storage._cdata, _NOTHING)  # noqa: SLF001 - its identity has no public name

    def note(self, tensors: list[torch.Tensor], call: int, *, unset: bool, view: bool) -> None:
        """A call has written these tensors, made them without writing (`unset`), or is a `view`."""
        for tensor in tensors:
            for storage in _storages([tensor]):
                self._note(tensor, storage, call, unset=unset, view=view)

    def note_foreign(self, tensors: list[torch.Tensor], call: int) -> None:
        """A call took memory that is known already, or that was filled past torch."""
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
            # written as a whole, be it bit by bit: nothing of what was there before is left
            missing = max(0, known.missing - size)
            bare = known.bare if missing else NOBODY
            foreign = known.foreign and size < storage.nbytes()
            known = KnownStorage(None, call, bare, missing, foreign)
        self._put(storage, known._replace(reference=self._reference(storage)))

    def _reference(self, storage: Any) -> Any:
        if len(self._known) >= MAX_STORAGES:
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
# of one call's inputs or outputs together; above it they are not digested
MAX_BYTES: Final = 1 << 30
# the same of a view, which reads nothing: a row of a data set is taken thousands of times
MAX_VIEWED_BYTES: Final = 1 << 20
_NAMED: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format)
# values that no operator has written yet
UNINITIALISED: Final = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"),
        *("new_empty_strided", "_empty_affine_quantized", "empty_quantized"),
        "_empty_per_channel_affine_quantized",
    )
)
# values of a file, and all that takes a storage: what is in it no operator has written
FROM_OUTSIDE: Final = frozenset(("aten::from_file",))
# the memory of one tensor becomes another's
REBINDS: Final = frozenset(("aten::set_", "aten::set", "aten::set_data"))
# what they add to a tensor nobody has written
RESIZES: Final = frozenset(f"aten::{name}" for name in ("resize_", "resize_as_", "_resize_output_"))
MESSAGES: Final = "c10d"
RECEIVES: Final = frozenset(("c10d::recv_", "c10d::recv_any_source_"))
# their schemas name nothing that is written: of these it is nothing
READ_ALONE: Final = frozenset(
    f"c10d::{name}" for name in ("send", "barrier", "monitored_barrier_", "check_for_nan")
)
# statistics that normalisations keep, and that older schemas do not say are written
RUNNING: Final = ("running_mean", "running_var")
ALIGNED: Final = 64
# a Python number stands for each of their elements
_ORDINARY: Final = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    )
)


class Given(NamedTuple):
    """An argument or result: one tensor, or the tensors of a list, under its name."""

    name: str
    tensors: list[torch.Tensor]


class GivenAll(NamedTuple):
    """The tensors of a call by argument, and all its other arguments as text.

    `whole` is false where an argument is no plain value, so that nobody can tell whether two calls
    had the same one.
    """

    tensors: list[Given]
    words: str
    whole: bool


class Signature(NamedTuple):
    """What is asked of an operator at each of its calls, all of it in its schema.

    `names` are those of its arguments in order, `overwritten` those of which nothing is read.
    """

    operator: str
    names: tuple[str, ...]
    written: frozenset[str]
    overwritten: frozenset[str]
    view: bool
    storage: bool
    random: bool


@functools.cache
def signature_of(func: Any) -> Signature:
    """Of an operator as the dispatcher hands it over: there is one object for each."""
    return Signature(
        operator=operator_name(func),
        names=tuple(argument.name for argument in _schema_arguments(func)),
        written=frozenset(written_names(func)),
        overwritten=frozenset(overwritten_names(func)),
        view=is_view(func),
        storage=takes_storage(func),
        random=torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()),
    )


def given(signature: Signature, args: tuple[Any, ...], named: Mapping[str, Any]) -> GivenAll:
    """What a call is given."""
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
    # tensors compare by element
    return None if value is None else 0


def written_arguments(
    signature: Signature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> list[Given]:
    """The arguments that the operator writes: as its schema says, or as a message that arrives."""
    if not signature.written:
        return []
    return [
        Given(name, tensors)
        for name, value in _arguments(signature, args, named)
        if name in signature.written and (tensors := list(_tensors(value)))
    ]


def takes_storage(func: Any) -> bool:
    """Whether it is given a storage, whose bytes are no tensor that could be compared."""
    return any(
        str(schema_argument.type) == "Storage" for schema_argument in _schema_arguments(func)
    )


def is_view(func: Any) -> bool:
    """Whether what the operator returns is memory of an argument that it does not write."""
    schema = getattr(func, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(
        result.alias_info is not None and not result.alias_info.is_write for result in returns
    )


def results(result: Any) -> list[Given]:
    """The tensors of a result."""
    several = result if isinstance(result, tuple) else (result,)
    by_place = ((str(place), list(_tensors(value))) for place, value in enumerate(several))
    return [Given(name, tensors) for name, tensors in by_place if tensors]


def describe(
    argument: Given, *, digest: bool, viewed: bool = False, sample: bool = False
) -> dict[str, Any]:
    """Name, type and shape, device, and the digest as the fast fingerprints take it.

    The digest is empty where the values are not to be read, or cannot be; `viewed`: the operator
    reads none of them.
    """
    first = argument.tensors[0]
    shape = type_and_shape(first).removeprefix("torch.")
    if len(argument.tensors) > 1:
        # of a list: how many, the first, and all of them in few bytes
        short = _short_digest("\n".join(map(type_and_shape, argument.tensors)))
        shape = f"{len(argument.tensors)} tensors, first {shape}, all {short}"
    limit = MAX_VIEWED_BYTES if viewed else MAX_BYTES
    read = _digest(argument) if digest and _size_in_bytes(argument) <= limit else ""
    return {
        "name": argument.name[:MAX_VALUE],
        "form": shape[: 2 * MAX_VALUE],
        "device": str(first.device)[:20],
        "layout": _layout(argument.tensors),
        "digest": read,
        "sample": _sample(first) if sample and read else [],
        "odd": _odd_of(read, argument.tensors) if read else "",
    }


MAX_ODD: Final = 10_000
# by digest: most values are seen as the output of one call and as the input of the next
_odd_known: dict[str, str] = {}


def _odd_of(digest: str, tensors: list[torch.Tensor]) -> str:
    known = _odd_known.get(digest)
    if known is None:
        if len(_odd_known) >= MAX_ODD:
            _odd_known.clear()
        known = _odd_known[digest] = _odd(tensors)
    return known


def _odd(tensors: list[torch.Tensor]) -> str:
    """Whether a tensor holds NaN, or else an infinity; empty where all numbers are finite."""
    infinite = False
    for tensor in tensors:
        # one sum tells of nearly all that every number is finite
        if not tensor.is_floating_point() or math.isfinite(float(tensor.detach().sum())):
            continue
        if bool(torch.isnan(tensor).any()):
            return "nan"
        infinite = infinite or bool(torch.isinf(tensor).any())
    return "infinite" if infinite else ""


def _layout(tensors: list[torch.Tensor]) -> str:
    """How values are in memory where that is not the usual way: strides, and an odd address.

    Kernels choose by it how they compute.
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
        # the largest power of two that divides the address
        address = plain.data_ptr() if plain.numel() else 0
        step = address & -address
    except Exception:
        # several parts, or a kind without memory
        return ""
    odd = f"aligned to {step} bytes" if 0 < step < ALIGNED else ""
    return ", ".join(filter(None, (words, odd)))[:MAX_VALUE]


def _short_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _cut(text: str, limit: int) -> str:
    """At most so many characters; of a longer text the end is a digest of all of it."""
    return text if len(text) <= limit else f"{text[: limit - 14]}... #{_short_digest(text)}"


def _size_in_bytes(argument: Given) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in argument.tensors)


def _digest(argument: Given) -> str:
    if all(map(_is_small, argument.tensors)):
        # the same digest, without what it takes to wait for a device
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
    """Whether its bytes lie here, are read in no time, and are those of ordinary numbers."""
    ordinary = has_memory(tensor) and tensor.is_cpu and tensor.dtype in _ORDINARY
    return ordinary and (tensor.data_ptr() != 0 or not tensor.numel())


def _sample(tensor: torch.Tensor) -> list[str]:
    """Up to eight evenly spaced values, exactly: how far two results are apart can be said."""
    if not tensor.is_floating_point() or not tensor.numel():
        return []
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // SAMPLES)
    few = flat[: SAMPLES * stride : stride]
    few = few if few.dtype in _ORDINARY else few.to(torch.float64)
    return [float(value).hex() for value in few.tolist()]


def _arguments(
    signature: Signature, args: tuple[Any, ...], named: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    names = signature.names
    for place, value in enumerate(args):
        yield (names[place] if place < len(names) else str(place)), value
    yield from named.items()


def _schema_arguments(func: Any) -> Any:
    schema = getattr(func, "_schema", None)
    return schema.arguments if schema is not None else ()


def written_names(func: Any) -> set[str]:
    """The names of the arguments that are written."""
    return {
        argument.name
        for argument in _schema_arguments(func)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in RUNNING
    } | _of_messages(func)


def overwritten_names(func: Any) -> set[str]:
    """Those of which nothing is read: results that the caller made room for, and receives."""
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
    """What a collective or a receive writes: outputs where it has some, else all of its tensors."""
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
    """A plain value as Python writes it; of anything else its type: an address is no value.

    With it whether two texts that are equal stand for equal values.
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
