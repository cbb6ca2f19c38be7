"""What a pickle works on while it is interpreted: its bytes, its stacks, its memo."""

from __future__ import annotations

from gate.checkpoint.pickle.calls import fault, storage
from gate.checkpoint.pickle.nodes import OpaqueNode, StorageNode

# Far above what a state holds that may have a million values: it bounds memory.
MAX_CONTAINERS = 1_500_000
# An opaque object brings four lists of its own along.
OBJECT_WEIGHT = 4


class Machine:
    """The stack of the innermost open group, those of the groups around it, and the memo.

    `storages` are all that were referred to, also by what is dropped later.
    """

    __slots__ = ("containers", "data", "end", "marks", "memo", "stack", "storages")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.storages: list[StorageNode] = []
        self.end = 0
        self.containers = 0

    def push_container(self, made: object) -> None:
        """Push something new that can hold other values, and count it."""
        self.containers += OBJECT_WEIGHT if type(made) is OpaqueNode else 1
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

    def refer_outside(self) -> None:
        """Put what a persistent id names in its place."""
        found = storage(self.stack[-1])
        if isinstance(found, StorageNode):
            self.storages.append(found)
        self.stack[-1] = found

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
        text = self.taken(start, length).decode("utf-8", "surrogatepass")
        self.stack.append(text)
        return start + length

    def push_integer(self, start: int, length: int) -> int:
        """The same for an integer in two's complement."""
        self.stack.append(int.from_bytes(self.taken(start, length), "little", signed=True))
        return start + length
