"""What a pickle has made so far: its stack, what it remembers, and all that it referred to."""

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
    named,
    storage,
)
from gate.checkpoint.pickle.tensor_nodes import ArrayNode, DtypeNode
from gate.checkpoint.pickle.tensor_runs import TensorRun

# Far above what a state holds that may have a million values: it bounds memory.
MAX_CONTAINERS = 1_500_000
# An opaque object brings four lists of its own along.
OBJECT_WEIGHT = 4
# A tensor and its hooks.
CONTAINERS_EACH = 2
# What can be changed after it was made.
CHANGEABLE: Final = frozenset((list, MapNode, SetNode, ArrayNode, DtypeNode))


class Machine:
    """The stack of the innermost open group, those of the groups around it, and the memo.

    `storages`, `objects` and `names` are all that there were, also those that are dropped later.
    `given` has by its id whatever a call was handed and must not change any more. What `runs`
    remember is not in the memo until something asks for it; none of it lies above `runs_end`.
    `in_runs` is what tests turn off.
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
        """Push something new that can hold other values, and count it."""
        self.containers += OBJECT_WEIGHT if isinstance(made, OpaqueNode) else 1
        if self.containers > MAX_CONTAINERS:
            raise fault(f"creates more than {MAX_CONTAINERS:,} lists, maps and objects")
        self.stack.append(made)

    def pop_mark(self) -> list[object]:
        """The values of the innermost group; the group around it is open again."""
        items = self.stack
        if not self.marks:
            raise fault("closes a group that it did not open")
        self.stack = self.marks.pop()
        return items

    def push_object(self, made: OpaqueNode) -> None:
        """Push an object, which has to be part of the state in the end."""
        self.objects.append(made)
        self.push_container(made)

    def push_name(self, module: str, name: str) -> None:
        """Push a name."""
        node = named(module, name)
        self.names.append(node)
        self.stack.append(node)

    def give(self, arguments: object) -> None:
        """Note what a call was handed, since some copy it and some keep it.

        What is changed afterwards would mean one thing to the one and another to the other.
        """
        for value in arguments if isinstance(arguments, tuple) else (arguments,):
            for argument in value if isinstance(value, tuple) else (value,):
                if type(argument) in CHANGEABLE:
                    # held as well: the id of what is gone may be given to another value
                    self.given[id(argument)] = argument

    def check_not_given(self, target: object) -> None:
        """`StateError` before something is changed that a call was handed."""
        if id(target) in self.given:
            raise fault(
                "changes a list or map after an object was made of it",
                hint="Save copies, for example list(values), in place of shared lists and maps.",
            )

    def refer_outside(self) -> None:
        """Put what a persistent id names in its place."""
        stored = storage(self.stack[-1])
        if isinstance(stored, StorageNode):
            self.storages.append(stored)
        self.stack[-1] = stored

    def push_run(self, run: TensorRun) -> None:
        """Push the names and tensors of a run, and count what their opcodes make."""
        self.runs.append(run)
        self.runs_end = max(self.runs_end, run.last)
        self.containers += CONTAINERS_EACH * len(run.tensors)
        self.storages.extend(tensor.storage for tensor in run.tensors)
        self.stack.extend(chain.from_iterable(zip(run.names, run.tensors, strict=True)))

    def recalled(self, number: int) -> object:
        """What is remembered under a number."""
        if number not in self.memo:
            self.remember_runs()
        try:
            return self.memo[number]
        except KeyError as error:
            raise fault("recalls a value that it did not remember") from error

    def remember_runs(self) -> None:
        """Put into the memo what the opcodes of all runs have remembered."""
        for run in self.runs:
            for number, value in run.remembered():
                # the run found none there, so this one came later
                self.memo.setdefault(number, value)
                if type(value) is MapNode:
                    # the hooks of a tensor
                    self.given[id(value)] = value
        self.runs.clear()
        self.runs_end = 0

    def taken(self, start: int, length: int) -> bytes:
        """Bytes of the pickle itself."""
        # BINBYTES8 may claim any number of 64 bits, and a slice behind the end would only be
        # shorter
        if start + length > len(self.data):
            raise IndexError
        return self.data[start : start + length]

    def push_bytes(self, start: int, length: int) -> int:
        """Push a byte string that stands at `start`; answer where it ends."""
        self.stack.append(self.taken(start, length))
        return start + length

    def push_text(self, start: int, length: int) -> int:
        """The same for text."""
        # as pickle's own BINUNICODE: a text of Python may hold half of a surrogate pair
        text = self.taken(start, length).decode("utf-8", "surrogatepass")
        self.stack.append(text)
        return start + length

    def push_integer(self, start: int, length: int) -> int:
        """The same for an integer in two's complement."""
        self.stack.append(int.from_bytes(self.taken(start, length), "little", signed=True))
        return start + length
