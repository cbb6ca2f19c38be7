"""How GitHub's runner finds commands in a container's output: its rules, in a few lines.

From the runner's ActionCommand and ActionCommandManager: lines end at CR, LF or both; `::name::`
counts after leading blanks, `##[name]` anywhere; names are known ones, in any case; after
`stop-commands` nothing counts but its token. What a culture-aware comparison skips is dropped.
"""

from __future__ import annotations

import re

KNOWN = {
    "add-mask", "add-matcher", "add-path", "debug", "echo", "endgroup", "error", "group", "notice",
    "remove-matcher", "save-state", "set-env", "set-output", "stop-commands", "warning",
    "internal-set-repo-path",
}  # fmt: skip
SKIPPED = re.compile("[\u00ad\u034f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]")


def commands(log: str) -> list[str]:
    """The commands that the runner obeys, in order."""
    obeyed, token = [], ""
    for line in re.split(r"\r\n|\r|\n", log):
        found = _command(SKIPPED.sub("", line), KNOWN | {token.lower()} - {""})
        if found is None:
            continue
        name, data = found
        if token:
            token = "" if name == token.lower() else token
        elif name == "stop-commands":
            token = data
        else:
            obeyed.append(name)
    return obeyed


def _command(line: str, known: set[str]) -> tuple[str, str] | None:
    """Name and data of a line's command, the newer form first."""
    for pattern in (r"\s*::(.*?)::(.*)", r".*?##\[(.*?)\](.*)"):
        match = re.match(pattern, line, re.DOTALL)
        if match and (name := match[1].split(" ")[0].lower()) in known:
            return name, match[2]
    return None
