"""What a test may not do by itself: choose its number of examples, or judge by the clock."""

from __future__ import annotations

import ast

from hypothesis import settings
from module_imports import ROOT, parsed

# a test that says itself how many it needs, in the tier that has the time
MANY = ("tests/checkpoint/test_checkpoint_properties.py", 1000)
# it takes the least of many readings, and what fails it fails at every speed
GROWTH = "tests/support/growth.py"
# scripts that read a clock, for the gate to find that
PLANTED = ROOT / "tests" / "zoo" / "faults"
CPU_CLOCKS = ("process_time", "thread_time", "perf_counter")


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


def test_no_test_compares_readings_of_a_cpu_clock() -> None:
    """They hold on a quiet machine and not beside other work: calls and sizes are counted."""
    read = {
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.parent != PLANTED
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in CPU_CLOCKS
        if isinstance(node.value, ast.Name) and node.value.id == "time"
    }
    assert read == {GROWTH}
