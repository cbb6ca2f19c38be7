"""What a pickle works on while it is interpreted: its bytes, its stacks, its memo."""

from __future__ import annotations

from gate.checkpoint.pickle_calls import fault, storage
from gate.checkpoint.pickle_nodes import StorageNode
from gate.checkpoint.pickle_tensors import TensorForms


class Machine:
    """The stack of the innermost open group, those of the groups around it, and the memo.

    `storages` are all that were referred to, also by what is dropped later.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[object] = []
        self.marks: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.storages: list[StorageNode] = []
        self.tensors = TensorForms(data, self.memo, self.storages)
        self.end = 0

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
