"""The entry of `data` that would declare something: words for findings, hints and remedies."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

MAX_NAME: Final = 100
# what YAML takes for a text between brackets without quotation marks
PLAIN: Final = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*\Z")


def names_of(paths: Iterable[str]) -> dict[str, str]:
    """A name below `$REPRO_GATE_DATA` for each path: its last part, numbered where two are one."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for path in paths:
        last = path.rstrip("/").rpartition("/")[2]
        plain = re.sub(r"[^A-Za-z0-9._-]", "-", last)[: MAX_NAME - 4].lstrip("._-") or "data"
        name, number = plain, 1
        while name.casefold() in taken:
            number += 1
            name = f"{plain}-{number}"
        taken.add(name.casefold())
        names[path] = name
    return names


def entries_for(names: dict[str, str]) -> str:
    """The line of `repro-gate.yml` that declares these paths under these names."""
    entries = (f"{{path: {_written(path)}, as: {name}}}" for path, name in names.items())
    return f"data: [{', '.join(entries)}]"


def entry_at(path: str, place: str) -> str:
    """The same for a path of the machine, at the place where an unmodified script looks for it."""
    return f"data: [{{path: {_written(path)}, at: {_written(place)}}}]"


def entry_of_pointer(kind: str, path: str) -> str:
    """The same for a pointer in the tree; `kind` is `dvc` or `lfs`."""
    return f"data: [{{{kind}: {_written(path)}}}]"


def names_entry(hint: str) -> bool:
    """Whether a hint says what to declare."""
    return "`data: [" in hint


def _written(path: str) -> str:
    plain = path.rstrip("/") or path
    return plain if PLAIN.match(plain) else json.dumps(plain)
