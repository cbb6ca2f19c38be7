"""A test of many rows tries all of them, names each that fails, and passes only when all pass."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from each_row import each_row


def test_every_row_that_fails_is_named_with_its_fault() -> None:
    tried = []

    @each_row(("number", "most"), [(1, 2), (3, 2), (2, 2), (5, 4)], ids=("a", "b", "c", "d"))
    def law(number: int, most: int) -> None:
        tried.append(number)
        assert number <= most

    with pytest.raises(BaseExceptionGroup, match="2 of 4 rows") as caught:
        law()
    assert tried == [1, 3, 2, 5]
    assert [fault.__notes__ for fault in caught.value.exceptions] == [["row 1: b"], ["row 3: d"]]


def test_an_error_that_did_not_come_fails_its_row_alone() -> None:
    @each_row("text", ["1", "x"])
    def law(text: str) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match="1 of 2 rows") as caught:
        law()
    assert caught.value.exceptions[0].__notes__ == ["row 0: ('1',)"]


def test_a_row_has_a_folder_of_its_own_and_fixtures_alone_are_asked_for(tmp_path: Path) -> None:
    found = []

    @each_row("first", "ab")
    @each_row("second", "cd")
    def law(tmp_path: Path, first: str, second: str) -> None:
        assert not list(tmp_path.iterdir())
        (tmp_path / first).write_text(second)
        found.append((tmp_path, first + second))

    assert list(inspect.signature(law).parameters) == ["tmp_path"]
    law(tmp_path=tmp_path)
    assert [text for _, text in found] == ["ac", "ad", "bc", "bd"]
    assert len({folder for folder, _ in found}) == 4


def test_a_law_without_rows_is_none() -> None:
    with pytest.raises(AssertionError, match="holds nothing"):
        each_row("row", [])
