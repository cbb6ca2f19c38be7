"""A module that the harness looks up by a text exists: a move leaves no name behind."""

from __future__ import annotations

import re
from pathlib import Path

HARNESS = Path(__file__).resolve().parents[2] / "gate" / "harness"
# `sys.modules.get(f"{__package__}.process")`
LOOKED_UP = re.compile(r"\{__package__\}\.([A-Za-z_.]+)")


def test_each_own_module_that_is_looked_up_by_its_name_is_there() -> None:
    names = [
        (path.with_name(name.replace(".", "/") + ".py"), path.name)
        for path in sorted(HARNESS.rglob("*.py"))
        for name in LOOKED_UP.findall(path.read_text(encoding="utf-8"))
    ]
    assert names
    assert not [f"{user} looks up {path.name}" for path, user in names if not path.exists()]
