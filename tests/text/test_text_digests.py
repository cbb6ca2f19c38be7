from __future__ import annotations

from gate.text.digests import tree_digest


def test_a_file_mode_is_part_of_a_tree() -> None:
    assert tree_digest([("a", "644", "0")]) != tree_digest([("a", "755", "0")])
