"""Group ranges that lie near each other in a file, so that they are read together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def grouped(
    items: Iterable[Item], joins: Callable[[Item, Item, Item], bool]
) -> Iterator[list[Item]]:
    """Neighbours together: `joins` is given the first and the last of a group, and the next."""
    group: list[Item] = []
    for item in items:
        if group and not joins(group[0], group[-1], item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group
