"""Which call last wrote a piece of memory, and whether anything has written it at all.

A value that differs between two runs although the call that produced it did not was changed by what
the dispatcher does not see. A storage is known by its address while a weak reference to it is held:
no other one can have that address.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..plain_tensors import plain_parts

MAX_STORAGES: Final = 100_000
MAX_PRODUCERS: Final = 64
NOBODY: Final = -1


class Known(NamedTuple):
    """Of a storage: a reference, who wrote it last, and who left it unwritten.

    `missing` counts bytes that nobody has written yet, `foreign` says that what is in it came past
    torch: a view of it is not looked at before somebody has written there.
    """

    reference: Any
    by: int = NOBODY
    bare: int = NOBODY
    missing: int = 0
    foreign: bool = False


_NOTHING: Final = Known(None)


class Storages:
    """By storage: the number of the call that last wrote it, and of the one that left it unset."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}

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
        """Whether some of these lie in memory that was filled, or not filled, past torch."""
        return any(self._of(storage).foreign for storage in _storages(tensors))

    def _of(self, storage: Any) -> Known:
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
                self._put(storage, Known(self._reference(storage), call, foreign=True))

    def _note(
        self, tensor: torch.Tensor, storage: Any, call: int, *, unset: bool, view: bool
    ) -> None:
        known = self._of(storage)
        size = tensor.numel() * tensor.element_size()
        if view:
            known = known._replace(by=call)
        elif unset:
            known = Known(None, call, call, storage.nbytes())
        else:
            # written as a whole, be it bit by bit: nothing of what was there before is left
            missing = max(0, known.missing - size)
            bare = known.bare if missing else NOBODY
            foreign = known.foreign and size < storage.nbytes()
            known = Known(None, call, bare, missing, foreign)
        self._put(storage, known._replace(reference=self._reference(storage)))

    def _reference(self, storage: Any) -> Any:
        if len(self._known) >= MAX_STORAGES:
            self._forget_dead()
        known = self._of(storage).reference
        return known or StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def _put(self, storage: Any, known: Known) -> None:
        self._known[storage._cdata] = known  # noqa: SLF001 - as above

    def _forget_dead(self) -> None:
        self._known = {
            identity: known
            for identity, known in self._known.items()
            if not known.reference.expired()
        }


def _storages(tensors: list[torch.Tensor]) -> list[Any]:
    found = []
    for tensor in tensors:
        try:
            found += [part.untyped_storage() for _, part in plain_parts(tensor)]
        except Exception:  # noqa: S112 - a kind that has no memory to speak of has no producer
            continue
    return found
