"""Settings of a training that differ, word by word: `train.command: --lora_alpha 8 → 9`.

A command and a variable are the text of whoever wrote the settings: shown as one harmless line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final

from gate.comparison.differences import OtherSetting
from gate.text.untrusted_text import escaped_lines, safe_line

SHOWN_SETTINGS: Final = 3
SHOWN_WORDS: Final = 6
MAX_WORD: Final = 60
# which data sets there are, in words of ours
UNQUOTED: Final = ("data.", "preprocess.")


def settings_words(settings: Sequence[OtherSetting]) -> str:
    """The first settings that differ, each with what of it does."""
    rest = len(settings) - SHOWN_SETTINGS
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(map(_setting, settings[:SHOWN_SETTINGS])) + more


def _setting(setting: OtherSetting) -> str:
    key = _shown(setting.key)
    differences = changed_words(setting)
    return f"{key} ({', '.join(differences)})" if differences else key


def changed_words(setting: OtherSetting) -> tuple[str, ...]:
    """`--lora_alpha 8 → 9`: what of a setting differs, an option's name before its word."""
    if setting.key.startswith(UNQUOTED):
        return ()
    before, after = _value(setting.before), _value(setting.after)
    if isinstance(before, list) and isinstance(after, list):
        found = tuple(_of_words([str(word) for word in before], [str(word) for word in after]))
        rest = len(found) - SHOWN_WORDS
        return (*found[:SHOWN_WORDS], *((f"{rest} more",) if rest > 0 else ()))
    return (f"{_word(before)} → {_word(after)}",)


def _value(text: str) -> object:
    try:
        value: object = json.loads(text) if text else None
    except ValueError:
        # only an entry that was written by hand holds no JSON here
        return text
    return value


def _of_words(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for kind, first, last, start, end in matcher.get_opcodes():
        if kind == "equal":
            continue
        gone, new = _line(before[first:last]), _line(after[start:end])
        # what follows an option is its word: the number alone says nothing
        option = after[start - 1] if start else ""
        named = f"{_shown(option)} " if option.startswith("-") and "=" not in option else ""
        # an option that comes or goes belongs to no other
        if kind == "replace" and not (gone + new).startswith("-"):
            yield f"{named}{gone} → {new}"
        elif kind == "replace":
            yield f"{gone} → {new}"
        else:
            yield f"{new} added" if kind == "insert" else f"{gone} removed"


def _line(words: list[str]) -> str:
    return _shown(" ".join(map(shlex.quote, words)))


def _word(value: object) -> str:
    if value is None:
        return "none"
    return _shown(value if isinstance(value, str) else json.dumps(value)) or "''"


def _shown(text: str) -> str:
    # a space that is none, and what else no reader tells from another, is spelt out
    line = escaped_lines(safe_line(text))
    return line if len(line) <= MAX_WORD else f"{line[:MAX_WORD]}…"
