"""Names and values as an MLflow server takes them.

MLflow, `mlflow/utils/validation.py`: word characters, dots, dashes, spaces, colons and slashes, of
which none may lead up or nowhere; 250 characters of a name, 500 of a parameter's value in every
version of the server, 5,000 of a tag's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

MAX_NAME: Final = 250
MAX_PARAMETER: Final = 500
MAX_TAG: Final = 5000
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.\- /]")
_CUT: Final = "…"


def server_names(names: Iterable[str]) -> Mapping[str, str]:
    """A name that the server takes for each of these, another for each."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        if name in found:
            continue
        # cut first: what is left of a part must be none that leads up
        parts = _OTHER.sub("_", name)[:MAX_NAME].split("/")
        plain = "/".join(part for part in parts if part.strip(". ")) or "_"
        wanted, number = plain, 1
        while wanted in taken:
            number += 1
            wanted = f"{plain[: MAX_NAME - 12]}-{number}"
        taken.add(wanted)
        found[name] = wanted
    return found


def cut(text: str, limit: int) -> str:
    """A value up to the server's limit, with a mark where it was cut."""
    return text if len(text) <= limit else text[: limit - 1] + _CUT


def number(value: float) -> float | str:
    """A double in JSON as the server reads one: what is not finite is a word (protobuf's JSON)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
