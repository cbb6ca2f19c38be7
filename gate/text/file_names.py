r"""Names of files as text that shows as itself, and back: a name on Linux is any bytes but a slash.

Inside the program a name is a `str` whose bytes that are no UTF-8 are surrogates (PEP 383). A
document or a message has the shown form, in which what cannot be printed is written `\x0a`, byte
by byte, and a backslash is doubled; no two names have one shown form.
"""

from __future__ import annotations

import re
from typing import Final

MAX_SHOWN: Final = 1000
_ESCAPE: Final = re.compile(r"\\(\\|x[0-9a-f]{2})")


def name_bytes(name: str) -> bytes:
    """The bytes that the file system has."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # half a pair, which somebody wrote into a document: no file system gave that
        return name.encode("utf-8", "surrogatepass")


def shown_name(name: str, *, limit: int = MAX_SHOWN) -> str:
    """One printable text, cut before the first character that would make it longer than `limit`."""
    if len(name) <= limit and name.isprintable() and "\\" not in name:
        return name
    shown: list[str] = []
    room = limit
    for sign in name:
        text = _sign_shown(sign)
        room -= len(text)
        if room < 0:
            break
        shown.append(text)
    return "".join(shown)


def _sign_shown(sign: str) -> str:
    if sign == "\\":
        return "\\\\"
    if sign.isprintable():
        return sign
    return "".join(f"\\x{byte:02x}" for byte in name_bytes(sign))


def bytes_of_shown(shown: str) -> bytes:
    """The bytes of the name that `shown_name` made a text of; any text has some."""
    found, end = b"", 0
    for escape in _ESCAPE.finditer(shown):
        found += name_bytes(shown[end : escape.start()])
        what = escape.group(1)
        found += b"\\" if what == "\\" else bytes.fromhex(what[1:])
        end = escape.end()
    return found + name_bytes(shown[end:])
