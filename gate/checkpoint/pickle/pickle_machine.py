"""The state of the pickle interpreter: its stack, its memo, and all that the pickle created."""

from __future__ import annotations

from itertools import chain
from typing import Final

from gate.checkpoint.pickle.calls import (
    GlobalNode,
    MapNode,
    OpaqueNode,
    SetNode,
    StorageNode,
    fault,
    name_node,
    storage,
)
from gate.checkpoint.pickle.tensor_nodes import ArrayNode, DtypeNode
from gate.checkpoint.pickle.tensor_runs import TensorRun

# Bounds the memory for nodes. It is far above what a state of a million values needs.
MAX_CONTAINERS = 1_500_000
# an opaque object has four lists of its own
OBJECT_WEIGHT = 4
# a tensor and the map of its hooks
CONTAINERS_EACH = 2
# the kinds of nodes that later opcodes can change
CHANGEABLE: Final = frozenset((list, MapNode, SetNode, ArrayNode, DtypeNode))


class Machine:
    """The stacks, the memo and the records of a pickle that is being interpreted.

    `stack` is the stack of the innermost open group; `marks` has the stacks of the groups around
    it. `storages`, `objects` and `names` have everything that the pickle created, even if it was
    dropped later. `given` maps the id of each value that was passed to a call, and must not change
    any more, to the value. `runs` are tensors that were read in one piece; what they remember is
    added to the memo only when something asks for it. `runs_end` is above the highest of their memo
    numbers. Tests set `in_runs` to False to compare with reading one opcode at a time.
    """

    __slots__ = (
        "containers", "data", "end", "given", "in_runs", "marks", "memo", "names", "objects",
        "runs", "runs_end", "stack", "storages",
    )  # fmt: skip

    def __init__(self, data: bytes, *, in_runs: bool = True) -> None:
        self.data = data
        self.in_runs = in_runs
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.runs: list[TensorRun] = []
        self.runs_end = 0
        self.storages: list[StorageNode] = []
        self.objects: list[OpaqueNode] = []
        self.names: list[GlobalNode] = []
        self.given: dict[int, object] = {}
        self.end = 0
        self.containers = 0

    def push_container(self, made: object) -> None:
        """Push a new value that can contain other values, and count it against the limit."""
        self.containers += OBJECT_WEIGHT if isinstance(made, OpaqueNode) else 1
        if self.containers > MAX_CONTAINERS:
            raise fault(f"creates more than {MAX_CONTAINERS:,} lists, maps and objects")
        self.stack.append(made)

    def pop_mark(self) -> list[object]:
        """Close the innermost group, and return its values."""
        items = self.stack
        if not self.marks:
            raise fault("closes a group that it did not open")
        self.stack = self.marks.pop()
        return items

    def push_object(self, made: OpaqueNode) -> None:
        """Push an object, and note that it has to be part of the final state."""
        self.objects.append(made)
        self.push_container(made)

    def push_name(self, module: str, name: str) -> None:
        """Push a name, and note it."""
        node = name_node(module, name)
        self.names.append(node)
        self.stack.append(node)

    def give(self, arguments: object) -> None:
        """Note the values that a call was given, so that they cannot change any more.

        Some calls copy their arguments and some keep them. A later change would reach the one and
        not the other, so the digest could not say what a load would give.
        """
        for value in arguments if isinstance(arguments, tuple) else (arguments,):
            for argument in value if isinstance(value, tuple) else (value,):
                if type(argument) in CHANGEABLE:
                    # keep the value alive: Python may give the id of a freed object to a new one
                    self.given[id(argument)] = argument

    def check_not_given(self, target: object) -> None:
        """Raise `StateError` if a value that is about to change was given to a call."""
        if id(target) in self.given:
            raise fault(
                "changes a list or map after an object was made of it",
                hint="Save copies, for example list(values), in place of shared lists and maps.",
            )

    def refer_outside(self) -> None:
        """Replace the persistent id on top of the stack by what it refers to."""
        stored = storage(self.stack[-1])
        if isinstance(stored, StorageNode):
            self.storages.append(stored)
        self.stack[-1] = stored

    def push_run(self, run: TensorRun) -> None:
        """Push the names and tensors of a run, and count the containers that its opcodes create."""
        self.runs.append(run)
        self.runs_end = max(self.runs_end, run.last)
        self.containers += CONTAINERS_EACH * len(run.tensors)
        self.storages.extend(tensor.storage for tensor in run.tensors)
        self.stack.extend(chain.from_iterable(zip(run.names, run.tensors, strict=True)))

    def recalled(self, number: int) -> object:
        """Return the value that the memo has under a number.

        Raises `StateError` if there is none.
        """
        if number not in self.memo:
            self.remember_runs()
        try:
            return self.memo[number]
        except KeyError as error:
            raise fault("recalls a value that it did not remember") from error

    def remember_runs(self) -> None:
        """Add to the memo what the opcodes of all runs have remembered."""
        for run in self.runs:
            for number, value in run.remembered():
                # `tensor_run` found these numbers unused, so a value under such a number came after
                # the run and is valid
                self.memo.setdefault(number, value)
                if type(value) is MapNode:
                    # the map is the hooks of a tensor, which were an argument of the call
                    self.given[id(value)] = value
        self.runs.clear()
        self.runs_end = 0

    def taken(self, start: int, length: int) -> bytes:
        """Return bytes of the pickle itself.

        Raises `IndexError` if they end after the end of the pickle.
        """
        # BINBYTES8 may claim any 64-bit length. A slice beyond the end would silently be shorter.
        if start + length > len(self.data):
            raise IndexError
        return self.data[start : start + length]

    def push_bytes(self, start: int, length: int) -> int:
        """Push the byte string at `start`, and return the position after it."""
        self.stack.append(self.taken(start, length))
        return start + length

    def push_text(self, start: int, length: int) -> int:
        """Push the text at `start`, and return the position after it."""
        # the same as in pickle's own reader: a Python text may contain half of a surrogate pair
        text = self.taken(start, length).decode("utf-8", "surrogatepass")
        self.stack.append(text)
        return start + length

    def push_integer(self, start: int, length: int) -> int:
        """Push the two's complement integer at `start`, and return the position after it."""
        self.stack.append(int.from_bytes(self.taken(start, length), "little", signed=True))
        return start + length
