"""Nodes for the calls in a state's pickle; nothing is ever called or imported.

Every call that a pickle would make becomes a node: a map, a set, a tensor, or an `OpaqueNode` with
what the object was made from.

Nodes compare by identity, because an untrusted pickle can nest them deeper than a recursive
comparison could follow. The nodes of tensors are not frozen: a frozen data class takes three times
as long to create.

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

# Protocol 2 writes these modules and names in their Python 2 form.
RENAMED_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "exceptions": "builtins"}
RENAMED_BUILTINS = {"xrange": "range", "unicode": "str", "long": "int", "unichr": "chr"}


def global_node(module: str, name: str) -> GlobalNode:
    """Return the node of a name; one object gets the same node under every pickle protocol."""
    if module == "__builtin__":
        name = RENAMED_BUILTINS.get(name, name)
    # NumPy 2 renamed `numpy.core` to `numpy._core`. The arrays are the same, so the name must be
    # too.
    if module.partition(".")[0] == "numpy":
        module = module.replace("numpy._core", "numpy.core", 1)
    return GlobalNode(RENAMED_MODULES.get(module, module), name)


@dataclass(frozen=True, slots=True, eq=False)
class GlobalNode:
    """A class or function that a pickle refers to by name; it is never imported."""

    module: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        """Module and name, as the tables of known names are indexed."""
        return self.module, self.name

    @property
    def shown(self) -> str:
        """The name as it is hashed.

        No module contains a colon, so two different names never give the same text.
        """
        return f"{self.module}:{self.name}"


@dataclass(slots=True, eq=False)
class MapNode:
    """A dictionary of any kind.

    It is stored as pairs, because the keys of a pickle may be values that Python cannot hash here.
    """

    pairs: list[tuple[object, object]] = field(default_factory=list)
    attributes: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class SetNode:
    """A set or frozenset."""

    items: list[object]


@dataclass(slots=True, eq=False)
class OpaqueNode:
    """An object of an unknown class, described by everything that it is made from.

    `made_by` is the class or function that the pickle calls. `is_new` is true if only `__new__` was
    called; a call of the class itself would run `__init__` too. `items`, `pairs` and `states` were
    added to the object after the call.
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
    """A tensor without plain memory, such as a sparse one.

    It has its parts as pairs, like any `OpaqueNode`. The pickle cannot add anything to it.
    """


@dataclass(frozen=True, slots=True, eq=False)
class AttributedNode:
    """A tensor of a subclass, or a tensor with attributes.

    In paths the class is `~class` and the attributes are `~attributes`.
    """

    tensor: object
    kind: GlobalNode | None
    attributes: tuple[MapNode, ...]


@dataclass(slots=True, eq=False)
class StorageNode:
    """A storage: `elements` elements of one dtype under the key of a record.

    `first` and `length` select the part that is referred to. `quantized` is the name of a quantized
    storage type, whose elements mean nothing without a scale; otherwise it is empty. `view` is the
    key of the part in legacy files.
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
    """A view of a storage; `offset` and `strides` count elements.

    In a `conjugated` tensor the imaginary parts have the opposite sign of the stored ones. In a
    `negated` tensor all numbers do.
    """

    storage: StorageNode
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


MAX_DIMENSIONS = 64
# the number of arguments that describe a view: storage, offset, shape and strides
VIEW: Final = 4
MAX_INTEGER = 2**62
PLAIN_FACTORIES: Final = frozenset({
    *(("builtins", name) for name in (
        "bool", "bytes", "complex", "dict", "float", "int", "list", "set", "str", "tuple",
    )),
    *(("collections", name) for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
})  # fmt: skip
ORDINARY: Final = "Save an ordinary tensor, for example tensor.clone()."
# Modules and builtins that no saved state needs, and whose calls would act on the machine that
# loads the file.
ACTING_MODULES = frozenset({
    "code", "codeop", "ctypes", "importlib", "marshal", "nt", "os", "posix", "pty", "runpy",
    "shutil", "socket", "subprocess", "sys", "webbrowser",
})  # fmt: skip
ACTING_BUILTINS = frozenset({
    "__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "open", "setattr",
})  # fmt: skip
Arguments = tuple[object, ...]
Call = Callable[[Arguments], object]
# A kind of device, and optionally its number. A tensor on `meta` has no bytes.
LOCATION: Final = re.compile(r"(?!meta(?::|\Z))[a-z][a-z0-9_]*(?::[0-9]{1,4})?", re.ASCII)
# These tensors have a shape and no bytes. As opaque objects any two of them would be equal, so they
# are refused.
NOT_PLAIN = {
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): "a tensor on the meta device",
    ("torch._utils", "_rebuild_wrapper_subclass"): "a tensor subclass without data",
}


class StateError(EvidenceError):
    """A fault inside a saved state; the reader of the file adds the file's name."""


# A tensor that pickle or joblib saved is a call of torch.storage._load_from_bytes. Its argument is
# a whole file of torch.save, which only torch can open.
BY_PICKLE: Final = (
    "If pickle or joblib saved this tensor, save it with torch.save or as a NumPy array: pickle "
    "puts a file of torch's own into the file. Otherwise the file is damaged."
)


def fault(problem: str, *, hint: str = HINT) -> StateError:
    """Return an error that says what is wrong inside the state."""
    return StateError(problem, hint=hint)


def name_node(module: str, name: str) -> GlobalNode:
    """Return the node of a name; raises `StateError` if the module has a colon in its name."""
    # A colon joins module and name when they are hashed. One more colon could give two different
    # names the same text.
    if ":" in module:
        raise fault("refers to a module with an impossible name")
    return global_node(module, name)


def attributes_of(state: object) -> list[object]:
    """Return the attributes in a map's state that count.

    An empty state does not count, and neither do the module versions in `_metadata`, which
    `state_dict()` adds.
    """
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
    """Return the maps of versions in `_metadata` that do not count.

    They must not change after this decision, or they could hold uncompared data.
    """
    left_out = []
    for name, value in state.pairs if isinstance(state, MapNode) else ():
        if _is_text(name, "_metadata") and isinstance(value, MapNode):
            left_out.append(value)
            left_out.extend(inner for _, inner in value.pairs if isinstance(inner, MapNode))
    return left_out


def _is_version(module: object, value: object) -> bool:
    """Return whether this is what `state_dict()` notes of a module: its version alone."""
    match value:
        case MapNode(pairs=[(str() as key, int() | None as version)], attributes=[]):
            return isinstance(module, str) and key == "version" and type(version) is not bool
    return False


def _is_text(value: object, text: str) -> bool:
    return isinstance(value, str) and value == text


def opaque_call(function: object, arguments: object, *, is_new: bool = False) -> OpaqueNode:
    """Return the node of a call that is not in any table.

    Raises `StateError` for a call with invalid arguments and for a call that would act on the
    machine. Tensors without plain bytes are refused too, because they must not be left out
    silently.
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
    # A list of dangerous names is never complete, and need not be. Nothing is called in any case.
    # The list only decides whether the file is reported as an attack.
    module = IMPORT_MAPPING.get(function.module, function.module)
    return module.partition(".")[0] in ACTING_MODULES


def storage(reference: object) -> object:
    """Return what a persistent id refers to: a storage or, in legacy files, the class of a module.

    A storage is `("storage", type, key, location, elements)`. Legacy files add None, or `(key,
    first element, elements)` of a part of the storage.
    """
    match reference:
        case ("storage", GlobalNode() as kind, str() as key, location, int() as elements, *rest):
            check_location(location)
        # the module's source text follows, which is not part of the state
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
    """Return whether a tensor's device holds its bytes; which device it is does not matter."""
    return isinstance(location, str) and LOCATION.fullmatch(location) is not None


def check_location(location: object) -> None:
    """Raise `StateError` unless the location is a device that holds bytes."""
    if not is_location(location):
        shown = short_text(location) if isinstance(location, str) else "something else"
        raise fault(
            f"holds a tensor on the device {shown}, which holds no bytes",
            hint="Save ordinary tensors, for example tensor.cpu().",
        )


def _storage(kind: GlobalNode, key: str, elements: int, part: tuple[int, int]) -> StorageNode:
    quantized = kind.name in QUANTIZED_STORAGES
    dtype = QUANTIZED_STORAGES.get(kind.name) or TORCH_STORAGES.get(kind.name)
    # another package may have a class of the same name with other elements
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
    """Return a tensor from its arguments (storage, offset, shape, strides, …)."""
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
    """Return the names of the marks on a tensor, which change how its bytes are read."""
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
    # Torch only writes marks that are set, and takes any mark that is there as set. A value other
    # than True was not written by torch.
    if not all(value is True for _, value in metadata.pairs):
        raise fault("holds a tensor with a mark that is not True", hint=ORDINARY)
    return set(names)


def check_no_gradients(gradient: object, *hooks: object) -> None:
    """Raise `StateError` unless `requires_grad` is a bool and the tensor has no hooks.

    Torch writes an empty map for the hooks. A hook would run as soon as a gradient is computed.
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
    """Return whether a value is a map without pairs and attributes."""
    return isinstance(value, MapNode) and not value.pairs and not value.attributes


def rebuild_quantized(arguments: Arguments) -> tuple[TensorNode, str]:
    """Return the integers of a quantized tensor, and the name of its dtype."""
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
    """Return the dtype that a name of torch stands for, or None for anything else."""
    match kind:
        case GlobalNode(module="torch", name=name):
            return TORCH_DTYPES.get(name)
    return None


def check_dtype(dtype: str, kind: object) -> None:
    """Raise `StateError` if loading would convert the tensor to a different dtype."""
    if torch_dtype(kind) != dtype:
        raise fault(
            f"holds a tensor of {dtype} that becomes one of another type when it is loaded",
            hint="Save the tensor in the type that it has, for example tensor.cpu().",
        )


def _from_processor(arguments: Arguments) -> object:
    """Return the tensor itself: the device that it was saved from is not part of its value."""
    match arguments:
        case (TensorNode() as tensor, kind, device, gradient):
            check_dtype(tensor.dtype, kind)
            check_location(device)
            check_no_gradients(gradient)
            return tensor
    return None


def _ordered(arguments: Arguments) -> object:
    # each tensor has an empty OrderedDict, for its hooks
    return None if arguments else MapNode()


def _default(arguments: Arguments) -> object:
    """Return a map for a defaultdict with a plain factory, or None for any other.

    Python calls the factory for a missing key. Only a harmless factory may be left out of the
    digest.
    """
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
            # copied as Python does, because each of the two can be filled further on its own
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
    """Return the bytes of a call of `bytes`, `bytearray` or `_codecs.encode`.

    Protocol 2 writes bytes as text in which each character is one byte.
    """
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
