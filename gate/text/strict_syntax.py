"""TOML and Python's syntax, bounded before they are parsed.

For each part of a dotted key it keeps and compares all parts before it, so one key of a hundred
thousand parts takes minutes and gigabytes.
"""

from __future__ import annotations

import ast
import re
import tomllib
import warnings
from typing import Any, Final

from gate.errors import DocumentError

MAX_PARTS: Final = 16
# Anywhere, also where it is no key: no name, version or address that people write has as many.
# Possessive, and begun only where a word begins: what has matched is never given back.
_LONG_KEY: Final = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+)"""
    f"{{{MAX_PARTS}}}"
)


def parse_toml(text: str) -> dict[str, Any]:
    """Read one TOML document.

    Raises `DocumentError` for what is no TOML, nested too deep, takes too much memory, or has
    more than `MAX_PARTS` words joined by dots: in a value too, since none is told from a key here.
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


# Python's parser joins a dotted name part by part, and so takes the square of its length. Only what
# may stand within a name of an import counts: between brackets a chain of attributes may be longer.
_LONG_NAME: Final = re.compile(r"(?<!\w)(?:\w++(?:[ \t\f]|\\\r?\n)*+\.(?:[ \t\f]|\\\r?\n)*+){64}")


def python_syntax(text: str) -> ast.Module | None:
    """The syntax tree; None for what this Python cannot read, or should not."""
    if _LONG_NAME.search(text):
        return None
    try:
        with warnings.catch_warnings():
            # a `\d` in somebody's text is no matter of ours
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
