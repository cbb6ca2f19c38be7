"""Which data moved, how much of it, and in which numbers: the words that a reviewer reads."""

from __future__ import annotations

import math

import pytest
from data_folders import fetched, listing_of
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.comparison.data_moves import _rounded, _unlike, data_moves
from gate.data.data_digests import data_set, with_parts_of
from gate.data.data_sets import DataSet, DataSets, DataStatistics, move_sentence
from gate.data.declared import Listing
from gate.settings.data import Verify

FILES = {f"a/{number:04}.npy": str(number) for number in range(1200)}
MANY_FILES = {f"a/{number:04}.npy": str(number) for number in range(2400)}
FEW = {f"a/{number:02}.npy": str(number) for number in range(40)}


def _set(contents: dict[str, str], *numbers: DataStatistics, name: str = "mini") -> DataSet:
    made = data_set(fetched(name), listing_of(contents))
    return made.model_copy(update={"statistics": numbers})


def _sampled(contents: dict[str, str]) -> DataSet:
    listing = listing_of(contents, Verify.SAMPLE)
    files = tuple(
        file if number % 2 else file._replace(sha256="")
        for number, file in enumerate(listing.files)
    )
    return data_set(fetched(), Listing(files=files, verify=Verify.SAMPLE))


def _csv(name: str = "", **values: object) -> DataStatistics:
    return DataStatistics.model_validate(
        {"format": "csv", "name": name, "rows": 10, "rows_read": 10, **values}
    )


def _sentences(before: DataSet, after: DataSet) -> list[str]:
    return [move_sentence(move) for move in data_moves((before,), (after,))]


def test_files_are_counted_and_the_first_is_named() -> None:
    after = FEW | {"a/07.npy": "x", "a/09.npy": "y", "a/11.npy": "z"}
    one = _set(FEW, _csv(mean=0.481))
    assert _sentences(one, _set(after, _csv(mean=0.533))) == [
        "mini, 3 of 40 files (first: a/07.npy), mean 0.481 → 0.533"
    ]


def test_files_that_are_new_and_gone_are_counted_too() -> None:
    after = {name: text for name, text in FEW.items() if name != "a/05.npy"} | {"b": ""}
    assert _sentences(_set(FEW), _set(after)) == ["mini, 2 of 40 files (first: a/05.npy)"]


def test_more_files_moved_than_are_left() -> None:
    assert _sentences(_set(FEW), _set({"a/00.npy": "0"})) == [
        "mini, 39 files (first: a/01.npy), 40 → 1 files"
    ]


def test_a_file_by_itself_has_another_content() -> None:
    before, after = _set({"": "1"}, name="x.npz"), _set({"": "2"}, name="x.npz")
    assert _sentences(before, after) == ["x.npz, another content"]


def test_one_file_of_one_in_a_folder() -> None:
    assert _sentences(_set({"a": "1"}), _set({"a": "2"})) == ["mini, 1 of 1 file (first: a)"]


def test_a_file_that_became_a_folder_has_another_content() -> None:
    assert _sentences(_set({"": "1"}), _set({"a": "2"})) == ["mini, another content"]


def test_of_many_files_the_parts_are_counted() -> None:
    after = MANY_FILES | {"a/0007.npy": "x", "a/0500.npy": "y"}
    assert _sentences(_set(MANY_FILES), _set(after)) == [
        "mini, files in 2 of 1,200 parts (first: a/0006.npy or later)"
    ]


def test_an_insertion_moves_one_part_where_the_listing_is_at_hand() -> None:
    contents = MANY_FILES | {"a/0500x.npy": "new"}
    before, after = _set(MANY_FILES), _set(contents)
    (move,) = data_moves((before,), (after,), {"mini": listing_of(contents)})
    assert move_sentence(move) == (
        "mini, files in 1 of 1,200 parts (first: a/0500.npy or later), 2,400 → 2,401 files"
    )


@pytest.mark.parametrize(
    ("removed", "added", "first"),
    [("a/0500.npy", "", "a/0500.npy"), ("", "a", "a"), ("a/0000.npy", "", "a/0000.npy")],
)
def test_parts_that_were_cut_as_recorded_count_without_the_listing(
    removed: str, added: str, first: str
) -> None:
    contents = {name: text for name, text in MANY_FILES.items() if name != removed}
    contents |= {added: "new"} if added else {}
    before = _set(MANY_FILES)
    after = with_parts_of(_set(contents), listing_of(contents), before)
    (move,) = data_moves((before,), (after,))
    assert (move.moved_parts, move.parts, move.first) == (1, 1200, first)


def test_without_the_listing_nobody_counts_parts_with_other_cuts() -> None:
    after = _set(MANY_FILES | {"a/0500x.npy": "new"})
    assert _sentences(_set(MANY_FILES), after) == [
        "mini, different content, from a/0500.npy on, 2,400 → 2,401 files"
    ]


def test_two_thousand_files_that_become_more_move_one_part() -> None:
    contents = dict(list(MANY_FILES.items())[:2000])
    more = contents | {"a/0500x.npy": "new"}
    (move,) = data_moves((_set(contents),), (_set(more),), {"mini": listing_of(more)})
    assert (move.moved_files, move.moved_parts, move.parts) == (None, 1, 2000)


def test_sets_that_are_new_or_gone() -> None:
    before, after = (_set(FILES, name="old"),), (_set(FILES, name="new"),)
    assert [move_sentence(move) for move in data_moves(before, after)] == [
        "old, gone",
        "new, new, 1,200 files",
    ]


def test_numbers_that_moved_are_told_up_to_six() -> None:
    before = _csv(
        rows=60_000, mean=1.0, deviation=2.0, nan_share=0.0, classes={"cat": 500, "dog": 3}
    )
    after = _csv(rows=59_000, mean=1.5, deviation=2.5, nan_share=0.002, classes={"cat": 499})
    (move,) = data_moves((_set(FEW, before),), (_set(FEW | {"b": ""}, after),))
    assert move.numbers == (
        "40 → 41 files",
        "rows 60,000 → 59,000",
        "mean 1.00 → 1.50",
        "NaN 0 % → 0.2 %",
        "class cat 500 → 499",
        "class dog 3 → 0",
    )


def test_columns_are_named_where_there_are_several_and_rows_told_once() -> None:
    before = (_csv("x", mean=1.0), _csv("y", mean=2.0), _csv("z"))
    after = (_csv("x", rows=9, mean=1.1), _csv("y", rows=9, mean=2.0), _csv("w"))
    (move,) = data_moves((_set(FEW, *before),), (_set(FEW | {"a/00.npy": "x"}, *after),))
    assert move.numbers == ("rows 10 → 9", "x mean 1.00 → 1.10", "w is new", "z is gone")


def test_numbers_of_the_first_rows_are_not_held_against_those_of_all() -> None:
    before = _csv(mean=1.0, nan_share=0.0, classes={"a": 10})
    after = _csv(rows=20, rows_read=5, mean=2.0, nan_share=0.5, classes={"a": 5})
    (move,) = data_moves((_set(FEW, before),), (_set(FEW | {"a/00.npy": "x"}, after),))
    assert move.numbers == ("rows 10 → 20",)


def test_the_last_digits_of_a_sum_are_no_move() -> None:
    before, after = _csv(mean=0.1), _csv(mean=math.nextafter(0.1, 1))
    (move,) = data_moves((_set(FEW, before),), (_set(FEW | {"a/00.npy": "x"}, after),))
    assert move.numbers == ()


def test_images_are_images() -> None:
    one, other = (
        DataStatistics(format="images", rows=rows, rows_read=rows, classes={"cat": rows})
        for rows in (5, 4)
    )
    (move,) = data_moves((_set(FEW, one),), (_set(FEW | {"a/00.npy": "x"}, other),))
    assert move.numbers == ("images 5 → 4", "class cat 5 → 4")


@each_row(
    ("old", "new", "shown"),
    [
        (0.481, 0.533, ("0.481", "0.533")),
        (0.0, 1e-9, ("0", "1.00e-09")),
        (1234.5, 1234.6, ("1,234.5", "1,234.6")),
        (-3.0, 3.0, ("-3.00", "3.00")),
        (0.1, math.nextafter(0.1, 1), ("0.10000000000000001", "0.10000000000000002")),
        (1e300, 2e300, ("1.00e+300", "2.00e+300")),
    ],
)
def test_both_sides_differ_visibly(old: float, new: float, shown: tuple[str, str]) -> None:
    assert _unlike(old, new, 3) == shown


FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@given(FLOATS, FLOATS)
def test_two_numbers_are_never_shown_alike(old: float, new: float) -> None:
    one, other = _unlike(old, new, 3)
    assert (one != other) is (old != new)
    assert float(_rounded(old, 17).replace(",", "")) == old


# a sample against the whole


def test_a_sample_and_the_whole_cannot_be_compared_by_digest() -> None:
    before, after = _sampled(FILES), _set(FILES)
    assert data_moves((before,), (after,)) == ()


def test_two_samples_can_be_compared() -> None:
    before, after = _sampled(FILES), _sampled(FILES | {"a/0007.npy": "x"})
    assert len(data_moves((before,), (after,))) == 1


def test_a_sample_of_few_files_is_the_whole() -> None:
    small = _set(FEW).model_copy(update={"verify": Verify.SAMPLE})
    assert not data_moves((small,), (_set(FEW),))
    assert len(data_moves((small,), (_set(FEW | {"a/07.npy": "x"}),))) == 1


@pytest.mark.parametrize(
    "contents",
    [
        FILES | {"a/0007.npy": "longer"},
        FILES | {"new": ""},
    ],
)
def test_counts_and_sizes_tell_without_the_digest(contents: dict[str, str]) -> None:
    (move,) = data_moves((_sampled(FILES),), (_set(contents),))
    assert (move.moved_files, move.moved_parts, move.first) == (None, 0, "")


def test_names_tell_without_the_digest() -> None:
    one = {f"{number:03}": "x" for number in range(100)}
    other = {f"{number:03}": "x" for number in range(1, 101)}
    assert len(data_moves((_sampled(one),), (_set(other),))) == 1


# laws

STATISTICS = st.builds(
    DataStatistics,
    format=st.sampled_from(["npy", "csv", "images"]),
    name=st.sampled_from(["", "x", "n" * 200]),
    rows=st.integers(0, 9),
    rows_read=st.just(0),
    mean=st.none() | FLOATS,
    nan_share=st.none() | st.floats(0, 1),
    classes=st.dictionaries(st.sampled_from(["a", "c" * 200]), st.integers(0, 3)),
)
CONTENTS = st.dictionaries(
    st.text("ab/\n\\\udcff", max_size=4), st.sampled_from(["", "x", "yy"]), min_size=1, max_size=9
)
SETS = st.builds(
    lambda contents, numbers, name, verify: data_set(
        fetched(name), listing_of(contents, verify)
    ).model_copy(update={"statistics": tuple(numbers)}),
    CONTENTS,
    st.lists(STATISTICS, max_size=3),
    st.sampled_from("abc"),
    st.sampled_from(Verify),
)
MANY: st.SearchStrategy[DataSets] = st.lists(SETS, max_size=4).map(tuple)


@given(MANY)
def test_nothing_moved_against_itself(sets: DataSets) -> None:
    assert data_moves(sets, sets) == ()


@given(MANY, MANY)
def test_the_same_sets_moved_in_both_directions(one: DataSets, other: DataSets) -> None:
    there, back = data_moves(one, other), data_moves(other, one)
    assert {move.name for move in there} == {move.name for move in back}
    assert all(move_sentence(move) for move in (*there, *back))


@given(SETS, SETS, st.booleans())
def test_any_two_records_can_be_compared(one: DataSet, other: DataSet, spoilt: bool) -> None:  # noqa: FBT001
    # what somebody made up: no part, or those of another
    parts = () if spoilt else one.parts
    mixed = other.model_copy(update={"parts": parts, "name": one.name})
    for move in data_moves((one,), (mixed,)):
        assert type(move).model_validate_json(move.model_dump_json()) == move
