"""How many examples a property draws is for the profile to say (`tests/conftest.py`)."""

from __future__ import annotations

import ast

from hypothesis import settings
from module_imports import ROOT, parsed

# a test that says itself how many it needs, in the tier that has the time
MANY = ("tests/checkpoint/test_checkpoint_properties.py", 1000)


def test_no_property_draws_more_than_the_profile() -> None:
    """Fewer is for what costs a process an example; more would be the same in every tier."""
    profile = settings.get_profile("ci").max_examples
    asked = [
        (path.relative_to(ROOT).as_posix(), node.value.value)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "max_examples" in path.read_text("utf-8")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.keyword) and node.arg == "max_examples"
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, int)
    ]
    assert [row for row in asked if row[1] > profile] == [MANY]
