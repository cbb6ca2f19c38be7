"""The syntax of somebody's Python, bounded before it is parsed; nothing of it is run."""

from __future__ import annotations

import ast
import re
import warnings
from typing import Final

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
