"""Features in company: a short table shows each pair at least once, and each row is right."""

from __future__ import annotations

import ast
from itertools import combinations
from pathlib import Path

import pytest
from pairs import (
    EXCLUSIVE,
    SCRIPT,
    Answers,
    Feature,
    Told,
    asked_of,
    available,
    changed_line,
    pairs_of,
    rows_of,
    script,
    told,
)

ROWS = rows_of(available())


def test_the_rows_show_each_pair() -> None:
    features = tuple(Feature)
    rows = rows_of(features)
    shown = {frozenset(pair) for row in rows for pair in combinations(row, 2)}
    assert shown >= set(pairs_of(features))
    assert not any(rule <= row for row in rows for rule in EXCLUSIVE)


def test_each_row_is_a_script_with_one_line_that_changes() -> None:
    for row in rows_of(tuple(Feature)):
        text = script(row, 1.0)
        ast.parse(text)
        assert text.splitlines()[changed_line(row) - 1] == "SCALE = 1.0"
        assert script(row, 1.5) == text.replace("SCALE = 1.0", "SCALE = 1.5"), SCRIPT


def test_answers_are_kept_for_the_program_that_gave_them(tmp_path: Path) -> None:
    file = tmp_path / "build/pairs.jsonl"
    pair = frozenset({Feature.COPY, Feature.SCALER})
    row = Told(features=pair, problems=("first step 2",), machine="of two cores")
    Answers(file).add(row)
    assert Answers(file).known == [row]
    file.write_text(file.read_text().replace(asked_of(pair), "another"))
    assert Answers(file).known == []


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "+".join(sorted(row)))
def test_a_change_is_found_whatever_the_training_uses(row: frozenset[Feature]) -> None:
    assert told(row).problems == ()
