"""TOML that is bounded before it is parsed, in words that are true of keys and of values."""

from __future__ import annotations

import pytest

from gate.errors import DocumentError
from gate.text.strict_syntax import MAX_PARTS, parse_toml

LONG = ".".join("a" * (MAX_PARTS + 1))


@pytest.mark.parametrize("text", [f"{LONG} = 1", f'url = "https://{LONG}"'])
def test_too_many_words_joined_by_dots_are_refused_wherever_they_stand(text: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_toml(text)
    assert caught.value.message == "more than 16 words joined by dots, in a key or a value"
    assert caught.value.hint.startswith("Shorten it")


def test_as_many_as_the_limit_are_read() -> None:
    assert parse_toml(f'url = "{".".join("a" * MAX_PARTS)}"') == {"url": ".".join("a" * MAX_PARTS)}
