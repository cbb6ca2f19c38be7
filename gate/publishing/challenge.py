"""What a registry asks for before it answers: Basic, or a token from a service that it names.

RFC 9110, 11.6.1; "Distribution Registry Token Authentication" of the distribution project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_HEADER: Final = 4096
# possessive: a header of one's own making costs linear time
_SCHEME: Final = re.compile(r"(?:^|,)\s*+(bearer|basic)\s++", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'([a-z]{1,20})\s?=\s?"([^"\\]*+)"', re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenge:
    """`scheme` in lower case, one of the two; the rest is empty where it was not told."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


def read_challenge(header: str) -> Challenge | None:
    """The strongest of what the header offers, or None for anything else."""
    if len(header) > MAX_HEADER:
        return None
    starts = list(_SCHEME.finditer(header))
    found: dict[str, Challenge] = {}
    for number, start in enumerate(starts):
        end = starts[number + 1].start() if number + 1 < len(starts) else len(header)
        words = {
            name.lower(): value for name, value in _PARAMETER.findall(header[start.end() : end])
        }
        scheme = start[1].lower()
        found[scheme] = Challenge(
            scheme=scheme,
            realm=words.get("realm", ""),
            service=words.get("service", ""),
            scope=words.get("scope", ""),
        )
    return found.get("bearer") or found.get("basic")
