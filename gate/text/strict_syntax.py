"""Parses TOML and Python source, with limits checked before parsing.

Python's TOML parser stores and compares every prefix of a dotted key. A key of a hundred thousand
parts therefore takes minutes and gigabytes.
"""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from typing import Any, Final

from gate.errors import DocumentError

MAX_PARTS: Final = 16
# Searched everywhere, not only in keys: no name, version or address that people write has as many
# parts. Possessive, and started only where a word begins, so the time stays linear.
_LONG_KEY: Final = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{MAX_PARTS}}}"
)


def parse_toml(text: str) -> dict[str, Any]:
    """Read one TOML document.

    Raises `DocumentError` for text that is not TOML, is nested too deep, takes too much memory, or
    has more than `MAX_PARTS` words joined by dots. The last holds for values too, because the check
    cannot tell a key from a value.
    """
    if _LONG_KEY.search(text):
        raise DocumentError(
            f"more than {MAX_PARTS} words joined by dots, in a key or a value",
            hint="Shorten it; the limit protects the machine that reads it.",
        )
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise DocumentError(f"not valid TOML: {error}", hint="Correct it at that place.") from error
    except RecursionError as error:
        raise DocumentError("nested too deep", hint="Correct it at that place.") from error


# Python's parser joins a dotted name part by part, which takes quadratic time. Only characters that
# may occur within the name of an import count: in brackets, a chain of attributes may be longer.
_LONG_NAME: Final = re.compile(r"(?<!\w)(?:\w++(?:[ \t\f]|\\\r?\n)*+\.(?:[ \t\f]|\\\r?\n)*+){64}")


def python_syntax(text: str) -> ast.Module | None:
    """Return the syntax tree, or None for source that this Python cannot or should not parse."""
    if _LONG_NAME.search(text):
        return None
    try:
        with warnings.catch_warnings():
            # an invalid escape such as `\d` in a user's source would print a warning
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
