from __future__ import annotations

import json

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import DocumentError
from gate.text.json_text import canonical_json, reviewable_json
from gate.text.strict_json import INSIDE, outline_of_json, parse_json

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON_VALUES)
def test_reviewable_text_reads_back_as_the_same_value(value: object) -> None:
    assert parse_json(reviewable_json(value).encode(), "x") == value


@given(JSON_VALUES)
def test_canonical_text_does_not_depend_on_key_order(value: object) -> None:
    shuffled = json.loads(json.dumps(value), object_pairs_hook=lambda pairs: dict(pairs[::-1]))
    assert canonical_json(shuffled) == canonical_json(value)


def test_a_record_in_a_list_keeps_to_one_line() -> None:
    text = reviewable_json({"points": [{"step": 1, "shape": [2, 3]}, {"step": 2, "shape": []}]})
    assert '    {"shape": [2, 3], "step": 1},\n' in text


@each_row(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 2}', "x: not valid JSON: key 'a' is given twice"),
        (b"[NaN]", "x: not valid JSON: NaN is not a JSON number"),
        (b"[-Infinity]", "x: not valid JSON: -Infinity is not a JSON number"),
        (b"\xff", "x: not UTF-8 at byte 0"),
        (b"[" * 100_000, "x: nested deeper than 32 levels"),
        (b'{"a":' * 40, "x: nested deeper than 32 levels"),
        (b"", "x: not valid JSON: it is empty"),
        (b" \n", "x: not valid JSON: it is empty"),
        (b"{", "x: not valid JSON: Expecting property name"),
    ],
)
def test_what_is_refused_is_named(data: bytes, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_json(data, "x")
    assert str(caught.value).startswith(message)


def test_brackets_inside_text_are_no_nesting() -> None:
    assert parse_json(b'"' + b"[" * 100 + b'\\"{"', "x") == "[" * 100 + '"{'


def test_a_file_over_its_limit_is_refused_before_parsing() -> None:
    with pytest.raises(DocumentError, match=r"x: 11 bytes, the limit is 10"):
        parse_json(b"[1,2,3,4,5]", "x", max_bytes=10)


@given(JSON_VALUES)
def test_an_outline_is_the_outermost_object_without_what_is_inside(value: object) -> None:
    found = outline_of_json(json.dumps(value).encode(), "x")
    if not isinstance(value, dict):
        assert found is None
        return
    assert found is not None
    assert found.keys() == value.keys()
    plain = {key: one for key, one in value.items() if not isinstance(one, dict | list)}
    assert {key: found[key] for key in plain} == plain
    assert all(found[key] is INSIDE for key, one in value.items() if isinstance(one, dict))


@each_row(
    "data",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": [{"b": {"c": 1, "c": 1}}]}',
        b'{"a": NaN}',
        b'[{"a": -Infinity}]',
        b'{"a": "\xff"}',
        b'{"a": 1',
        b'{"a": ' + b"[" * 33 + b"]" * 33 + b"}",
        b" " * 101,
    ],
)
def test_an_outline_refuses_what_the_parser_refuses_with_the_same_words(data: bytes) -> None:
    with pytest.raises(DocumentError) as parsed:
        parse_json(data, "x", max_bytes=100)
    with pytest.raises(DocumentError) as outlined:
        outline_of_json(data, "x", max_bytes=100)
    assert outlined.value.message == parsed.value.message


@given(st.text(st.sampled_from('a\u202e\u200b\u00a0\U000e0041\n"\\')))
def test_what_turns_or_hides_text_is_spelt_out_and_means_the_same(text: str) -> None:
    """In a baseline somebody reviews it (CVE-2021-42574)."""
    written = reviewable_json({text: [text]})
    assert written.replace("\n", "").isprintable()
    assert json.loads(written) == {text: [text]}
