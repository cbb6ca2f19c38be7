r"""Makes untrusted text safe to show, and turns file names into text that shows as itself.

A terminal obeys control characters and ANSI sequences. GitHub's runner obeys `::command::` at the
start of a line and `##[command]` anywhere in one. Neither may obey a training. A page also needs
its Markdown or HTML escaped, which `report/escape.py` does.

Inside the program a name is a `str` in which bytes that are not UTF-8 are surrogates (PEP 383). A
document or a message contains the shown form: each byte of an unprintable character is written as
`\x0a`, and a backslash is doubled. No two names have the same shown form.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

LINE_LIMIT = 1000
SENTENCE_CHARACTERS = 300
SHOWN_CHARACTERS = 120
LAST_LINES = 20
LAST_LINES_WIDTH = 300
# CSI, OSC (up to BEL or ST) and two-character escapes (ECMA-48)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# these categories include bidirectional controls, which make text read as something
# else (CVE-2021-42574)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
# in a single line, line and paragraph separators too
_NOT_IN_A_LINE = _HIDDEN | {"Zl", "Zp"}
# Further characters of Unicode's Default_Ignorable_Code_Point. They are invisible, and
# culture-aware comparisons skip them. So one of them could hide a command from the gate but not
# from the runner.
_IGNORABLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8"
    "\U000e0000-\U000e0fff]"
)
_DOUBLE_COLON = re.compile(r":(?=:)")
_COMMAND_BRACKET = re.compile(r"##(?=\[)")


def escaped_lines(text: str) -> str:
    """Return text with each unprintable character escaped, except line feeds."""
    return "".join(
        sign if sign == "\n" or sign.isprintable() else ascii(sign)[1:-1] for sign in text
    )


def masked(text: str, mask: str = "?") -> str:
    """Return text with each unprintable character replaced by `mask`."""
    return "".join(sign if sign.isprintable() else mask for sign in text)


def plain_text(text: str) -> str:
    """Return a sentence with unprintable characters escaped, cut to 300 characters."""
    return escaped_lines(text[:SENTENCE_CHARACTERS]).replace("\n", "\\n")


def short_text(text: str) -> str:
    """Return a short, quoted and escaped piece of text for a message."""
    cut = text[:SHOWN_CHARACTERS]
    return ascii(cut) + ("..." if len(text) > SHOWN_CHARACTERS else "")


def visible(text: str) -> str:
    """Return only what can be seen: no control, format or bidi characters, plain spaces alone."""
    if text.isprintable() and not _IGNORABLE.search(text):
        return text
    return "".join(map(_visible, without_sequences(text)))


def without_sequences(text: str) -> str:
    """Return text without ANSI sequences (colours, titles) and invisible characters."""
    return _IGNORABLE.sub("", _ANSI.sub("", text))


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    return "" if unicodedata.category(character) in _HIDDEN else character


def safe_line(text: str | bytes, *, limit: int = LINE_LIMIT) -> str:
    """Return one line that shows as itself: colours removed, other control characters escaped.

    Bytes are decoded as UTF-8, and broken ones replaced. Only the first `limit` characters are
    used.
    """
    line = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    # cut first, so that a line of a gigabyte costs no more than a short one
    plain = without_sequences(line[:limit].replace("\t", "    "))
    shown = "".join(_shown(character) for character in plain)
    # last of all, because removing invisible characters may have joined two halves of a command
    return _COMMAND_BRACKET.sub("# #", _DOUBLE_COLON.sub(": ", shown)).rstrip()


# characters that GitHub's runner ignores when it looks for a command
_PASSED_OVER = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\x00-\x08\x0e-\x1f\x7f"
    r"\U000e0000-\U000e0fff]"
)
_FIRST_COLONS = re.compile(r"\A(\s*):(?=:)")


def without_commands(line: str) -> str:
    """Return a line in which GitHub's runner finds no command; other lines are unchanged.

    A command begins with two colons, or has `##[` anywhere. A line of JSON keeps its meaning.
    """
    bare = _PASSED_OVER.sub("", line)
    if not (_FIRST_COLONS.search(bare) or _COMMAND_BRACKET.search(bare)):
        return line
    if bare.lstrip().startswith(tuple('{}[]"')):
        return bare.replace("##[", "#\\u0023[")
    return _COMMAND_BRACKET.sub("# #", _FIRST_COLONS.sub(r"\1: ", bare))


def safe_block(text: str) -> str:
    """Return several lines, each made safe, for a fault whose details quote the training."""
    return "\n".join(safe_line(line) for line in text.splitlines())


def last_lines(output: bytes, most: int = LAST_LINES) -> tuple[str, ...]:
    """Return the end of a training's output: up to `most` printable lines of 300 characters."""
    # a character has at most four bytes in UTF-8, so no more than this can be shown
    text = output[-most * LAST_LINES_WIDTH * 4 :].decode("utf-8", "replace")
    lines = without_sequences(text).splitlines()
    shown = [line for line in lines if line.strip()][-most:]
    return tuple(masked(line, " ")[:LAST_LINES_WIDTH] for line in shown)


def _shown(character: str) -> str:
    if unicodedata.category(character) in _NOT_IN_A_LINE:
        return character.encode("unicode_escape").decode("ascii")
    return character


MAX_SHOWN: Final = 1000
_ESCAPE: Final = re.compile(r"\\(\\|x[0-9a-f]{2})")


def name_bytes(name: str) -> bytes:
    """Return the bytes of a name as the file system has them."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # an unpaired surrogate, which somebody wrote into a document: no file system produced it
        return name.encode("utf-8", "surrogatepass")


def shown_name(name: str, *, limit: int = MAX_SHOWN) -> str:
    """Return the shown form of a name, cut before a character that would exceed `limit`."""
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
    """Return the bytes of the name with this shown form; every text has some."""
    content, end = b"", 0
    for escape in _ESCAPE.finditer(shown):
        content += name_bytes(shown[end : escape.start()])
        what = escape.group(1)
        content += b"\\" if what == "\\" else bytes.fromhex(what[1:])
        end = escape.end()
    return content + name_bytes(shown[end:])
