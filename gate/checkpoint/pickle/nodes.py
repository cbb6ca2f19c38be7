"""What an interpreted pickle consists of: plain values, and these nodes for everything else.

Nodes compare by identity: an untrusted pickle can nest them deeper than a comparison could follow.
Those of tensors are not frozen, since a frozen one takes three times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """An object of a class that means nothing to us: what it was made from, nothing more."""

    made_by: str
    arguments: tuple[object, ...]
    keywords: list[object] = field(default_factory=list)
    items: list[object] = field(default_factory=list)
    pairs: list[tuple[object, object]] = field(default_factory=list)
    states: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class StorageNode:
    """A run of `elements` elements under a record's key.

    `first` and `length` are the part that is meant, `quantized` the name of a type whose
    elements mean nothing without a scale, or empty.
    """

    key: str
    dtype: str
    elements: int
    first: int
    length: int
    quantized: str


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
