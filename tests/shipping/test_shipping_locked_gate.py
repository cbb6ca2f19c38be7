"""The gate's own lock names every package that it needs: nothing of it is resolved."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements" / "gate.txt").read_text("utf-8")
PINNED = {canonicalize_name(name) for name in re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE)}


def _needs(name: str, extras: frozenset[str]) -> list[Requirement]:
    try:
        texts = requires(name) or []
    except PackageNotFoundError:
        return []
    found = [Requirement(text) for text in texts]
    return [
        one
        for one in found
        if one.marker is None
        or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def test_the_lock_holds_all_that_a_package_in_it_needs() -> None:
    missing, seen = set(), set()
    waiting = [(name, frozenset[str]()) for name in PINNED]
    while waiting:
        name, extras = waiting.pop()
        for need in _needs(name, extras):
            asked = (canonicalize_name(need.name), frozenset(need.extras))
            if asked[0] not in PINNED:
                missing.add(f"{name} needs {need}")
            elif asked not in seen:
                seen.add(asked)
                waiting.append(asked)
    assert missing == set()
    # what brought the resolver to fail: a need with an extra
    assert any(extras for _, extras in seen)
