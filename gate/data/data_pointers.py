"""All pointers that an entry of `data` names, each by the reader of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gate.data.data_sets import DataPointer, DataPointers, PointerFile
from gate.data.lfs_pointers import read_lfs
from gate.data.pointers import read_dvc
from gate.settings.data import DataKind

MAX_POINTER_BYTES: Final = 256 * 1024


def read_pointers(
    files: Iterable[PointerFile], content: Callable[[PointerFile], bytes]
) -> DataPointers:
    """What each of the files names, in their order; raises `DataError` at the first fault."""
    return tuple(pointer for file in files for pointer in _of(file, content(file)))


def _of(file: PointerFile, data: bytes) -> Iterator[DataPointer]:
    if file.kind is DataKind.LFS:
        pointer = read_lfs(file, data)
        if pointer is not None:
            yield pointer
    else:
        yield from read_dvc(file, data)
