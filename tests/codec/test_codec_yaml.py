from __future__ import annotations

import pytest

from gate.codec.strict_yaml import parse_yaml
from gate.errors import SettingsError


def test_values_and_lines_are_kept() -> None:
    value, lines = parse_yaml(b"a: 1\nb:\n  - x\n  - {c: true}\n", "x")
    assert value == {"a": 1, "b": ["x", {"c": True}]}
    assert lines[("b", 1, "c")] == 4


def test_an_empty_file_is_an_empty_mapping() -> None:
    assert parse_yaml(b"# nothing\n", "x") == ({}, {})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: 1\na: 2\n", "f: line 2: key 'a' is given twice"),
        (b"a: [1\n", "f: not valid YAML: line 2, column 1: "),
        (b"\xff\xfe\xfa", "f: not "),
        (b"1: x\n", "f: line 1: a key must be text (put it in quotes)"),
        (b"a: 2026-01-01\n", "f: line 1: unsupported value of type date: quote it"),
        (b"a: !!python/object:os.system x\n", "f: line 1: unsupported value: "),
        (b"[1]: x\n", "f: line 1: a key must be text (put it in quotes)"),
        (b"a: 2026-99-99\n", "f: line 1: unsupported value: "),
    ],
)
def test_what_is_refused_is_named_with_its_line(data: bytes, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_yaml(data, "f")
    assert str(caught.value).startswith(message)


def test_a_billion_laughs_are_refused() -> None:
    rows = ["a0: &a0 [x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(SettingsError, match="more than 20 aliases of one value"):
        parse_yaml("\n".join(rows).encode(), "f")


def test_a_huge_file_is_refused() -> None:
    with pytest.raises(SettingsError, match="the limit is 262,144"):
        parse_yaml(b"#" * 300_000, "f")
