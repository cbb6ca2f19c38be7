"""What the calls in a state's pickle stand for; nothing is ever called.

Nodes compare by identity: an untrusted pickle can nest them deeper than a comparison could follow.
Those of tensors are not frozen, since a frozen one takes three times as long to make.

Source: the `__reduce_ex__` methods of torch 2.13 (`torch/_tensor.py`, `torch/_utils.py`) and of the
standard library's containers under pickle protocols 2 to 5.
"""

from __future__ import annotations

import re
from _compat_pickle import IMPORT_MAPPING
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gate.checkpoint.leaves import QUANTIZED_STORAGES, TORCH_DTYPES, TORCH_STORAGES
from gate.checkpoint.untrusted_files import HINT
from gate.errors import EvidenceError
from gate.text.untrusted_text import short_text

# Protocol 2 writes these modules and names as they were called in Python 2.
RENAMED_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "exceptions": "builtins"}
RENAMED_BUILTINS = {"xrange": "range", "unicode": "str", "long": "int", "unichr": "chr"}


def global_node(module: str, name: str) -> GlobalNode:
    """The node of a name, the same under every protocol."""
    if module == "__builtin__":
        name = RENAMED_BUILTINS.get(name, name)
    # NumPy 2 moved its core; arrays say so, and are the same arrays
    if module.partition(".")[0] == "numpy":
        module = module.replace("numpy._core", "numpy.core", 1)
    return GlobalNode(RENAMED_MODULES.get(module, module), name)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalNode:
    """A name that a pickle refers to; it is never imported."""

    module: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        """What the tables of known names are indexed by."""
        return self.module, self.name

    @property
    def shown(self) -> str:
        """The name as it is hashed: no module has a colon, so no two names are written alike."""
        return f"{self.module}:{self.name}"


@dataclass(slots=True, eq=False)
class MapNode:
    """A dictionary of any kind; keys may be of any kind too, so it is kept as pairs."""

    pairs: list[tuple[object, object]] = field(default_factory=list)
    attributes: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SetNode:
    """A set of any kind."""

    items: list[object]


@dataclass(slots=True, eq=False)
class OpaqueNode:
    """An object of a class that means nothing to us: what it was made from, nothing more.

    `is_new` says that `__new__` was called and not the class itself, which would run `__init__`.
    """

    made_by: str
    arguments: tuple[object, ...]
    is_new: bool = False
    keywords: list[object] = field(default_factory=list)
    items: list[object] = field(default_factory=list)
    pairs: list[tuple[object, object]] = field(default_factory=list)
    states: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class PartsNode(OpaqueNode):
    """A tensor without plain memory: its parts are the pairs, and nothing can be added."""


@dataclass(frozen=True, slots=True, eq=False)
class AttributedNode:
    """A tensor of a class of its own, or one with attributes, as `~class` and `~attributes`."""

    tensor: object
    kind: GlobalNode | None
    attributes: tuple[MapNode, ...]


@dataclass(slots=True, eq=False)
class StorageNode:
    """A run of `elements` elements under a record's key.

    `first` and `length` are the part that is meant, `quantized` the name of a type whose
    elements mean nothing without a scale, or empty. `view` is the key of a part in legacy files.
    """

    key: str
    dtype: str
    elements: int
    first: int
    length: int
    quantized: str
    view: str = ""


@dataclass(slots=True, eq=False)
class TensorNode:
    """A view of a storage; offset and strides count elements.

    Of a conjugated one the imaginary parts, of a negated one all parts have the other sign.
    """

    storage: StorageNode
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


MAX_DIMENSIONS = 64
# Storage, offset, shape and strides.
VIEW: Final = 4
MAX_INTEGER = 2**62
PLAIN_FACTORIES: Final = frozenset({
    *(("builtins", name) for name in (
        "bool", "bytes", "complex", "dict", "float", "int", "list", "set", "str", "tuple",
    )),
    *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
})  # fmt: skip
ORDINARY: Final = "Save an ordinary tensor, for example tensor.clone()."
# Calls that no saved state needs and that would act on the machine that loads the file.
ACTING_MODULES = frozenset({
    "code", "codeop", "ctypes", "importlib", "marshal", "nt", "os", "posix", "pty", "runpy",
    "shutil", "socket", "subprocess", "sys", "webbrowser",
})  # fmt: skip
ACTING_BUILTINS = frozenset({
    "__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "open", "setattr",
})  # fmt: skip
Arguments = tuple[object, ...]
Call = Callable[[Arguments], object]
# As opaque objects any two of these would be equal: they name a shape and hold no bytes.
# A kind of device and its number; on `meta` a tensor has no bytes.
LOCATION: Final = re.compile(r"(?!meta(?::|\Z))[a-z][a-z0-9_]*(?::[0-9]{1,4})?", re.ASCII)
NOT_PLAIN = {
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): "a tensor on the meta device",
    ("torch._utils", "_rebuild_wrapper_subclass"): "a tensor subclass without data",
}


class StateError(EvidenceError):
    """A fault inside a saved state; it names no file yet, the reader of the file adds that."""


# torch.storage._load_from_bytes: a whole file of torch.save in one value, which only torch opens
BY_PICKLE: Final = (
    "If pickle or joblib saved this tensor, save it with torch.save or as a NumPy array: pickle "
    "puts a file of torch's own into the file. Otherwise the file is damaged."
)


def fault(problem: str, *, hint: str = HINT) -> StateError:
    """What is wrong inside the state."""
    return StateError(problem, hint=hint)


def named(module: str, name: str) -> GlobalNode:
    """The node of a name; `StateError` for a module that is none."""
    # a colon joins module and name where they are hashed; one more would make two names look alike
    if ":" in module:
        raise fault("refers to a module with an impossible name")
    return global_node(module, name)


def attributes_of(state: object) -> list[object]:
    """What counts of a map's state: all but an empty one, and but the versions in `_metadata`."""
    if not isinstance(state, MapNode):
        return [state]
    kept = [pair for name, value in state.pairs if (pair := _kept_attribute(name, value))]
    return [MapNode(kept, state.attributes)] if kept or state.attributes else []


def _kept_attribute(name: object, value: object) -> tuple[object, object] | None:
    if not _is_text(name, "_metadata") or not isinstance(value, MapNode):
        return name, value
    odd = [(module, text) for module, text in value.pairs if not _is_version(module, text)]
    return (name, MapNode(odd, value.attributes)) if odd or value.attributes else None


def left_out_of(state: object) -> list[MapNode]:
    """The maps of versions in `_metadata` that do not count, which must not change any more."""
    left_out = []
    for name, value in state.pairs if isinstance(state, MapNode) else ():
        if _is_text(name, "_metadata") and isinstance(value, MapNode):
            left_out.append(value)
            left_out.extend(inner for _, inner in value.pairs if isinstance(inner, MapNode))
    return left_out


def _is_version(module: object, value: object) -> bool:
    """Whether this is what `state_dict()` notes of a module: its version and nothing else."""
    match value:
        case MapNode(pairs=[(str() as key, int() | None as version)], attributes=[]):
            return isinstance(module, str) and key == "version" and type(version) is not bool
    return False


def _is_text(value: object, text: str) -> bool:
    return isinstance(value, str) and value == text


def opaque_call(function: object, arguments: object, *, is_new: bool = False) -> OpaqueNode:
    """The node of a call that is in no table.

    Raises `StateError` for a call with invalid arguments, for one that would act on the machine,
    and for tensors without plain bytes, which must not be left out silently.
    """
    if not isinstance(arguments, tuple):
        raise fault("makes a call whose arguments are not a tuple")
    if not isinstance(function, GlobalNode):
        return OpaqueNode("an object", (function, *arguments), is_new)
    if function.key in NOT_PLAIN:
        raise fault(
            f"holds {NOT_PLAIN[function.key]}, which has no plain bytes to compare",
            hint="Save ordinary tensors.",
        )
    if _acts(function):
        raise fault(
            f"calls {short_text(f'{function.module}.{function.name}')} when it is loaded",
            hint="This checkpoint runs code when it is loaded: do not load it anywhere, and "
            "check what the change does.",
        )
    return OpaqueNode(function.shown, arguments, is_new)


def _acts(function: GlobalNode) -> bool:
    if function.module == "builtins":
        return function.name in ACTING_BUILTINS
    # a list of bad names can never be complete, and need not be: nothing is called in any case,
    # this only decides whether the file is reported as an attack
    module = IMPORT_MAPPING.get(function.module, function.module)
    return module.partition(".")[0] in ACTING_MODULES


def storage(reference: object) -> object:
    """What a persistent id names: a storage, or in legacy files the class of a module.

    A storage is `("storage", type, key, location, elements)`; legacy files add None or
    `(key, first element, elements)` of a part of it.
    """
    match reference:
        case ("storage", GlobalNode() as kind, str() as key, location, int() as elements, *rest):
            check_location(location)
        # its source text follows, which is no part of a state
        case ("module", GlobalNode() as kind, None | str(), None | str()):
            return kind
        case _:
            raise fault("refers to an external object that is not a storage")
    match rest:
        case [] | [None]:
            return _storage(kind, key, elements, (0, elements))
        case [(str() as view, int() as first, int() as length)]:
            node = _storage(kind, key, elements, (first, length))
            node.view = view
            return node
    raise fault("refers to an external object that is not a storage")


def is_location(location: object) -> bool:
    """Whether a tensor would be on a device that holds its bytes; which one does not count."""
    return isinstance(location, str) and LOCATION.fullmatch(location) is not None


def check_location(location: object) -> None:
    """`StateError` for what is no device that holds bytes."""
    if not is_location(location):
        shown = short_text(location) if isinstance(location, str) else "something else"
        raise fault(
            f"holds a tensor on the device {shown}, which holds no bytes",
            hint="Save ordinary tensors, for example tensor.cpu().",
        )


def _storage(kind: GlobalNode, key: str, elements: int, part: tuple[int, int]) -> StorageNode:
    quantized = kind.name in QUANTIZED_STORAGES
    dtype = QUANTIZED_STORAGES.get(kind.name) or TORCH_STORAGES.get(kind.name)
    # a class of another package may have the same name and other elements
    if dtype is None or kind.module.partition(".")[0] != "torch":
        raise _unread_storage(kind.name)
    if not 0 <= elements < MAX_INTEGER:
        raise fault(f"storage {short_text(key)} has an invalid size")
    first, length = part
    if not 0 <= first <= first + length <= elements:
        raise fault(f"a part of storage {short_text(key)} reaches outside it")
    return StorageNode(key, dtype, elements, first, length, kind.name if quantized else "")


def _unread_storage(kind: str) -> StateError:
    return fault(
        f"holds a storage of type {short_text(kind)}, which is not supported",
        hint="Save ordinary tensors, for example dequantized ones.",
    )


def _sizes(values: object, what: str) -> tuple[int, ...]:
    if not isinstance(values, tuple) or len(values) > MAX_DIMENSIONS:
        raise fault(f"a tensor's {what} is not a short tuple")
    for value in values:
        if type(value) is not int or not 0 <= value < MAX_INTEGER:
            raise fault(f"a tensor's {what} has a value that is not a size from 0")
    return values


def _tensor(
    arguments: Arguments, dtype: str | None, metadata: object, *, quantized: bool = False
) -> TensorNode:
    """A tensor from (storage, offset, shape, strides, …)."""
    match arguments:
        case (StorageNode() as source, int() as offset, shape, strides, *_):
            pass
        case _:
            raise fault("rebuilds a tensor from something that is not a storage", hint=BY_PICKLE)
    if source.quantized and not quantized:
        raise _unread_storage(source.quantized)
    marks = _marks(metadata)
    node = TensorNode(
        source,
        source.dtype if dtype is None else dtype,
        offset,
        _sizes(shape, "shape"),
        _sizes(strides, "strides"),
        "conj" in marks,
        "neg" in marks,
    )
    if not 0 <= offset < MAX_INTEGER or len(node.shape) != len(node.strides):
        raise fault("a tensor's offset, shape and strides do not match")
    return node


def _marks(metadata: object) -> set[str]:
    """The names of what a tensor is marked with: its bytes are to be read in another way."""
    if metadata is None:
        return set()
    if not isinstance(metadata, MapNode) or metadata.attributes:
        raise fault("holds a tensor whose marks are not a plain map", hint=ORDINARY)
    names = [key for key, _ in metadata.pairs if isinstance(key, str)]
    if len(names) != len(metadata.pairs) or len(set(names)) != len(names):
        raise fault("holds a tensor whose marks are not distinct names", hint=ORDINARY)
    unknown = set(names) - {"conj", "neg"}
    if unknown:
        raise fault(
            f"holds a tensor that is marked with {short_text(min(unknown))}, which is unknown",
            hint=ORDINARY,
        )
    # any that is there counts, whatever its value is: torch writes those that are set
    if not all(value is True for _, value in metadata.pairs):
        raise fault("holds a tensor with a mark that is not True", hint=ORDINARY)
    return set(names)


def check_no_gradients(gradient: object, *hooks: object) -> None:
    """`StateError` unless a tensor only says whether it asks for gradients, and has no hooks.

    Torch writes an empty map for the hooks; one that is not would run when gradients are made.
    """
    if not isinstance(gradient, bool):
        raise fault("holds a tensor that does not say by True or False if it asks for gradients")
    for hook in hooks:
        if hook is not None and not is_empty_map(hook):
            raise fault(
                "holds a tensor with hooks, which run when it is used",
                hint="Remove the hooks, or save tensor.detach().",
            )


def is_empty_map(value: object) -> bool:
    """Whether a value is a map that holds nothing at all."""
    return isinstance(value, MapNode) and not value.pairs and not value.attributes


def rebuild_quantized(arguments: Arguments) -> tuple[TensorNode, str]:
    """The integers of a quantized tensor, and the name of its dtype."""
    node = _tensor(arguments, None, None, quantized=True)
    if not node.storage.quantized:
        raise fault("holds a quantized tensor whose storage is not quantized")
    return node, node.storage.quantized.removesuffix("Storage").lower()


def _rebuild_v1(arguments: Arguments) -> TensorNode:
    if len(arguments) != VIEW:
        raise _other_arguments()
    return _tensor(arguments, None, None)


def _rebuild_v2(arguments: Arguments) -> TensorNode:
    node = _tensor(arguments, None, arguments[6] if arguments[6:] else None)
    if len(arguments) not in {VIEW + 2, VIEW + 3}:
        raise _other_arguments()
    check_no_gradients(*arguments[4:6])
    return node


def _rebuild_v3(arguments: Arguments) -> TensorNode:
    match arguments[6:]:
        case (GlobalNode(module="torch", name=name), *rest) if name in TORCH_DTYPES:
            node = _tensor(arguments, TORCH_DTYPES[name], rest[0] if rest else None)
        case _:
            raise fault("holds a tensor of an unknown dtype")
    if len(rest) > 1:
        raise _other_arguments()
    check_no_gradients(*arguments[4:6])
    return node


def _other_arguments() -> StateError:
    return fault("rebuilds a tensor from other arguments than torch writes", hint=ORDINARY)


def torch_dtype(kind: object) -> str | None:
    """The dtype that a name of torch stands for; None for anything else."""
    match kind:
        case GlobalNode(module="torch", name=name):
            return TORCH_DTYPES.get(name)
    return None


def check_dtype(dtype: str, kind: object) -> None:
    """`StateError` where a tensor would be converted to another dtype when it is loaded."""
    if torch_dtype(kind) != dtype:
        raise fault(
            f"holds a tensor of {dtype} that becomes one of another type when it is loaded",
            hint="Save the tensor in the type that it has, for example tensor.cpu().",
        )


def _from_processor(arguments: Arguments) -> object:
    """The tensor itself: the device that it was on is no part of its value."""
    match arguments:
        case (TensorNode() as tensor, kind, device, gradient):
            check_dtype(tensor.dtype, kind)
            check_location(device)
            check_no_gradients(gradient)
            return tensor
    return None


def _ordered(arguments: Arguments) -> object:
    # each tensor has one, of its hooks
    return None if arguments else MapNode()


def _default(arguments: Arguments) -> object:
    """Its factory is called for a key that is missing, so only a plain one is passed over."""
    match arguments:
        case () | (None,):
            return MapNode()
        case (GlobalNode() as factory,) if factory.key in PLAIN_FACTORIES:
            return MapNode()
    return None


def _counter(arguments: Arguments) -> object:
    match arguments:
        case ():
            return MapNode()
        case (MapNode() as counts,):
            # a copy, as Python makes one: each can be filled further on its own
            return MapNode(list(counts.pairs))
    return None


def _set(arguments: Arguments) -> object:
    match arguments:
        case (list() as items,):
            return SetNode(list(items))
    return None


def _size(arguments: Arguments) -> object:
    match arguments:
        case (tuple() as sizes,):
            return sizes
    return None


def _bytes(arguments: Arguments) -> object:
    """Protocol 2 writes bytes as text of which each character is one byte."""
    match arguments:
        case ():
            return b""
        case (bytes() as data,):
            return data
        case (str() as text, "latin1" | "latin-1"):
            try:
                return text.encode("latin-1")
            except UnicodeEncodeError as error:
                raise fault("holds bytes in an invalid encoding") from error
    return None


TENSOR_CALLS: Final[dict[tuple[str, str], Call]] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_v1,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _from_processor,
}
CALLS: Final[dict[tuple[str, str], Call]] = {
    **TENSOR_CALLS,
    ("torch", "Size"): _size,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "defaultdict"): _default,
    ("collections", "Counter"): _counter,
    ("_codecs", "encode"): _bytes,
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): _set,
    ("builtins", "bytes"): _bytes,
    ("builtins", "bytearray"): _bytes,
}  # fmt: skip
