"""Which call last wrote a piece of memory, and whether anything has written it at all.

A value that differs between two runs although the call that produced it did not was changed by what
the dispatcher does not see. A storage is known by its address while a weak reference to it is held:
no other one can have that address.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..tensors.plain_parts import plain_parts

MAX_STORAGES: Final = 100_000
MAX_PRODUCERS: Final = 64
NOBODY: Final = -1


class Storages:
    """By storage: the number of the call that last wrote it, and of the one that left it unset."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int, int]] = {}

    def producers(self, tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
        """The calls that last wrote these tensors, and those that made them uninitialised.

        `NOBODY` stands for a tensor that no traced call has written.
        """
        made, unset = dict[int, None](), dict[int, None]()
        for storage in _storages(tensors):
            _, by, bare = self._known.get(storage._cdata, (None, NOBODY, NOBODY))  # noqa: SLF001 - its identity has no public name
            made[by] = None
            if bare != NOBODY:
                unset[bare] = None
        return list(made)[:MAX_PRODUCERS], list(unset)[:MAX_PRODUCERS]

    def note(self, tensors: list[torch.Tensor], call: int, *, unset: bool, view: bool) -> None:
        """A call has written these tensors, made them without writing (`unset`), or is a `view`."""
        for tensor in tensors:
            for storage in _storages([tensor]):
                self._note(tensor, storage, call, unset=unset, view=view)

    def _note(
        self, tensor: torch.Tensor, storage: Any, call: int, *, unset: bool, view: bool
    ) -> None:
        identity = storage._cdata  # noqa: SLF001 - as above
        reference, _, bare = self._known.get(identity, (None, NOBODY, NOBODY))
        if reference is None:
            if len(self._known) >= MAX_STORAGES:
                self._forget_dead()
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        # written as a whole: nothing of what was there before is left
        whole = not view and tensor.numel() * tensor.element_size() >= storage.nbytes()
        bare = call if unset else NOBODY if whole else bare
        self._known[identity] = (reference, call, bare)

    def _forget_dead(self) -> None:
        self._known = {
            identity: known for identity, known in self._known.items() if not known[0].expired()
        }


def _storages(tensors: list[torch.Tensor]) -> list[Any]:
    found = []
    for tensor in tensors:
        try:
            found += [part.untyped_storage() for _, part in plain_parts(tensor)]
        except Exception:  # noqa: S112 - a kind that has no memory to speak of has no producer
            continue
    return found
