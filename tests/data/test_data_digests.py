"""Digest and parts of a data set, and the names of its files as text."""

from __future__ import annotations

import hashlib
from itertools import accumulate

from data_folders import fetched, listing_of
from hypothesis import given
from hypothesis import strategies as st

from gate.data.data_digests import (
    cut_like,
    data_parts,
    data_set,
    listing_digest,
    listing_line,
    sampled,
    with_parts_of,
)
from gate.data.data_sets import MAX_PARTS
from gate.data.declared import ListedFile
from gate.settings.data import Verify
from gate.text.untrusted_text import MAX_SHOWN, bytes_of_shown, name_bytes, shown_name

NAMES = st.binary(min_size=1, max_size=40).map(lambda name: name.decode("utf-8", "surrogateescape"))
MANY = {f"{number:05}": str(number) for number in range(5000)}


@given(NAMES)
def test_a_shown_name_can_be_printed_and_leads_back(name: str) -> None:
    assert shown_name(name).isprintable()
    assert bytes_of_shown(shown_name(name)) == name_bytes(name)


@given(st.text(max_size=30) | st.text("\\x0af\ud800\udc80\udfff", max_size=9))
def test_any_text_can_be_shown_and_has_bytes(text: str) -> None:
    assert shown_name(text).isprintable()
    assert isinstance(bytes_of_shown(text), bytes)


def test_a_shown_name_escapes_no_more_than_it_must() -> None:
    assert shown_name("däta/ein bild.png") == "däta/ein bild.png"
    assert shown_name("a\n\udcff\\x0a") == "a\\x0a\\xff\\\\x0a"
    assert shown_name("x" * 999 + "\n") == "x" * 999
    assert len(shown_name("ö" * 5000)) == MAX_SHOWN


def test_a_line_whose_name_needs_escapes_begins_with_a_backslash() -> None:
    lines = map(listing_line, listing_of({"a b": "", "c\nd\\\re": ""}).files)
    digest = hashlib.sha256(b"").hexdigest().encode()
    assert list(lines) == [digest + b"  ./a b\n", b"\\" + digest + b"  ./c\\nd\\\\\\re\n"]


def test_a_line_of_a_file_that_was_not_read_has_its_size() -> None:
    assert listing_line(ListedFile("a", 12, "", (0, 0, 0, 0))) == b"12  ./a\n"


def test_one_file_in_a_folder_is_no_file_by_itself() -> None:
    folder = listing_of({"a": "x"}).files
    assert listing_digest(listing_of({"": "x"}).files) == hashlib.sha256(b"x").hexdigest()
    assert listing_digest(folder) == hashlib.sha256(listing_line(folder[0])).hexdigest()


def test_up_to_two_thousand_files_have_a_part_each() -> None:
    files = listing_of({name: MANY[name] for name in sorted(MANY)[:MAX_PARTS]}).files
    parts = data_parts(files)
    assert [part.first for part in parts] == [file.name for file in files]
    assert {part.files for part in parts} == {1}


def test_more_files_have_runs_of_equal_count() -> None:
    parts = data_parts(listing_of(MANY).files)
    assert len(parts) == 1667
    assert {part.files for part in parts} == {3, 2}
    assert sum(part.files for part in parts) == 5000
    assert parts[1].first == "00003"


def test_an_inserted_file_moves_one_part_where_the_recorded_cuts_are_kept() -> None:
    before = data_parts(listing_of(MANY).files)
    after = cut_like(listing_of(MANY | {"01000x": "new"}).files, before)
    assert [part.first for part in after] == [part.first for part in before]
    moved = [one for one, other in zip(before, after, strict=True) if one != other]
    assert [part.first for part in moved] == ["00999"]


def test_a_file_before_the_first_belongs_to_the_first_part() -> None:
    before = data_parts(listing_of(MANY).files)
    after = cut_like(listing_of(MANY | {"!": "new"}).files, before)
    assert (after[0].first, after[0].files) == ("!", 4)
    assert after[1:] == before[1:]


@given(st.sets(st.integers(0, 3000)), st.integers(1, 400))
def test_cuts_cover_every_file_once(kept: set[int], step: int) -> None:
    names = {f"{number:05}": "" for number in kept}
    recorded = data_parts(listing_of(dict.fromkeys(list(MANY)[::step], "")).files)
    files = listing_of(names).files
    parts = cut_like(files, recorded)
    assert len(parts) <= MAX_PARTS
    starts = [0, *accumulate(part.files for part in parts)]
    assert starts[-1] == len(files)
    assert [part.first for part in parts] == [files[start].name for start in starts[:-1]]


def test_the_same_cuts_of_the_same_files_are_the_same_parts() -> None:
    listing = listing_of(MANY)
    made = data_set(fetched(), listing)
    assert with_parts_of(made, listing, made) == made


def test_a_record_has_counts_and_shown_names() -> None:
    made = data_set(fetched("mi\nni"), listing_of({"a\udcff": "xyz"}, Verify.SAMPLE))
    assert (made.name, made.files, made.size_bytes) == ("mi\\x0ani", 1, 3)
    assert made.parts[0].first == "a\\xff"
    assert made.verify is Verify.SAMPLE


def test_a_sample_is_64_files_or_one_in_64() -> None:
    assert sampled(["a", "b"]) == {"a", "b"}
    assert len(sampled([str(number) for number in range(500)])) == 64
    many = sampled([str(number) for number in range(20_000)])
    assert 250 < len(many) < 375


@given(st.sets(st.integers(0, 500), min_size=65), st.integers(501, 600))
def test_a_new_file_displaces_one_at_most(numbers: set[int], new: int) -> None:
    before = sampled([str(number) for number in numbers])
    assert len(before - sampled([str(number) for number in numbers | {new}])) <= 1
