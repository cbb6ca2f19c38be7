from __future__ import annotations

import json

import pytest
from each_row import each_row
from hypothesis import given
from hypothesis import strategies as st

from gate.errors import SettingsError
from gate.text.strict_yaml import parse_yaml


def test_values_and_lines_are_kept() -> None:
    value, lines = parse_yaml(b"a: 1\nb:\n  - x\n  - {c: true}\n", "x")
    assert value == {"a": 1, "b": ["x", {"c": True}]}
    assert lines[("b", 1, "c")] == 4


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert parse_yaml(b"# nothing\n", "x") == ({}, {})


@each_row(
    ("data", "message"),
    [
        (b"a: 1\na: 2\n", "f: line 2: key 'a' is given twice"),
        (b"a: [1\n", "f: not valid YAML: line 2, column 1: "),
        (b"\xff\xfe\xfa", "f: not "),
        (b"1: x\n", "f: line 1: a key must be text\nhint: Put the key in quotes."),
        (
            b"a: 2026-01-01\n",
            "f: line 1: unsupported value of type date\nhint: Put the value in quotes.",
        ),
        (b"a: !!python/object:os.system x\n", "f: line 1: a tag (tag:yaml.org,2002:python/obj"),
        (b'a: !!bool "##[add-mask]e"\n', "f: line 1: a tag (tag:yaml.org,2002:bool) is not"),
        (b'a: !!int ""\n', "f: line 1: a tag (tag:yaml.org,2002:int) is not allowed"),
        (b"a: ! x\n", "f: line 1: a tag (!) is not allowed"),
        (b"x: " + b"[" * 2000, "f: line 1: nested deeper than 40 levels"),
        (
            b"a: 0x" + b"f" * 20_000,
            "f: line 1: a number of more than 40 characters\nhint: Put the value in quotes.",
        ),
        (b'a: "\\UFFFFFFFF"\n', "f: not valid YAML: an invalid escape sequence"),
        (b'a: "\\uD800"\n', "f: line 1: an unpaired surrogate"),
        (b"[1]: x\n", "f: line 1: a key must be text\nhint: Put the key in quotes."),
        (b"a: 2026-99-99\n", "f: line 1: unsupported value: "),
        (
            b"a: 1\n\tb: 2\n",
            (
                "f: not valid YAML: line 2, column 1: a tab, where YAML allows only spaces\n"
                "hint: Check the indentation and the quotes on that line."
            ),
        ),
        (
            b"a: 1\n---\nb: 2\n",
            (
                "f: not valid YAML: line 2, column 1: a second document begins here\n"
                "hint: Keep one document, without a line of three dashes after it."
            ),
        ),
        (
            b"a: 1\nb: \0\n",
            (
                "f: not valid YAML: line 2: the character U+0000 is not allowed\n"
                "hint: Remove that character."
            ),
        ),
        (
            b"a: &x {c: 1}\nb:\n  <<: *x\n",
            (
                "f: line 3: merge keys (<<) are not supported\n"
                "hint: Copy the keys of the other mapping to this place."
            ),
        ),
    ],
)
def test_what_is_refused_is_named_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(data, "f")
    assert str(caught.value).startswith(message)


@each_row(
    "data",
    [
        b"a: 1\na: 2\n",
        b"\xff",
        b"x: " + b"[" * 2000,
        b"#" * 300_000,
        b"a: [" + b"1," * 20_000 + b"]",
    ],
)
def test_each_refusal_says_what_to_do(data: bytes) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(data, "f")
    assert caught.value.hint


def test_a_billion_laughs_are_refused() -> None:
    rows = ["a0: &a0 [x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(SettingsError, match="more than 20 aliases of one value"):
        parse_yaml("\n".join(rows).encode(), "f")


def test_a_huge_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="the limit is 262,144"):
        parse_yaml(b"#" * 300_000, "f")


def test_a_number_may_be_written_as_everybody_writes_it() -> None:
    value, _ = parse_yaml(b"[1e-3, 1E5, -2.e+1, 1.0e-3, 1e3x, e3]", "f")
    assert value == [1e-3, 1e5, -20.0, 1e-3, "1e3x", "e3"]


def test_two_escapes_of_one_character_are_that_character() -> None:
    assert parse_yaml(b'a: "\\ud83d\\ude00"', "f")[0] == {"a": "\N{GRINNING FACE}"}


YAML_PIECES = st.lists(
    st.sampled_from(("{", "}", "[", "]", ": ", "- ", "\n", "&a ", "*a", "!", "!!int ", "<<", "? ",
                     '"', "'", "|", ">", "%", "@", "0x", "1e9", ".inf", "\\U", "a", "#", "  "))
    | st.text(max_size=4),
    max_size=40,
).map("".join)  # fmt: skip


@given(YAML_PIECES)
def test_any_text_is_plain_values_or_one_fault_that_can_be_printed(text: str) -> None:
    told = "f"
    try:
        value, _ = parse_yaml(text.encode("utf-8", "replace"), "f")
        assert len(json.dumps(value)) < 1_000_000
    except SettingsError as fault:
        told = fault.message
    assert told.isprintable()
