"""How GitHub's runner looks for a command in a line of a log."""

from __future__ import annotations

import re


def runner_sees_a_command(line: str) -> bool:
    """As the runner looks for one, after dropping what a culture-aware comparison skips."""
    seen = re.sub(r"[\u00ad\u034f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff]", "", line)
    return seen.lstrip().startswith("::") or "##[" in seen
