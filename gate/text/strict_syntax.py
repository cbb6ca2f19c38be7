"""TOML from anywhere, bounded before it is parsed: Python's parser was made for trusted files.

For each part of a dotted key it keeps and compares all parts before it, so one key of a hundred
thousand parts takes minutes and gigabytes.
"""

from __future__ import annotations

import re
import tomllib
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

    Raises `DocumentError` for what is no TOML, nested too deep, takes too much memory, or has a key
    of more than `MAX_PARTS` parts.
    """
    if _LONG_KEY.search(text):
        raise DocumentError(
            f"a key of more than {MAX_PARTS} parts",
            hint="Write a shorter key; the limit protects the machine that reads it.",
        )
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise DocumentError(f"not valid TOML: {error}", hint="Correct it at that place.") from error
    except RecursionError as error:
        raise DocumentError("nested too deep") from error
