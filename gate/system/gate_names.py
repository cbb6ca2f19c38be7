"""The names that belong to one gate of a repository; no two gates share any of them.

A gate without an id is called `default`, and its names are the plain ones. Three more names are
derived elsewhere: the comment's marker (`gate/report/comment.py`), the history's files
(`gate/verdict/history_lines.py`), and a package's tag (`gate/publishing/registry.py`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Final

DEFAULT_GATE: Final = "default"
MAX_ID: Final = 40
GATE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z")
# For records: pydantic searches for the pattern and does not know `\Z`.
GATE_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
OUTPUT_FOLDER: Final = "repro-gate-out"
ARTIFACT: Final = "repro-gate"
CHECK: Final = "gate"
INTO: Final = "into "
# GitHub refuses these characters in the name of an artifact, and line ends.
REFUSED_IN_ARTIFACTS: Final = frozenset('":<>|*?/\\')
MAX_ARTIFACT_NAME: Final = 100


def artifact_name(gate_id: str) -> str:
    """Return the workflow's name for the artifact with a gate's output folder."""
    return ARTIFACT if gate_id == DEFAULT_GATE else f"{ARTIFACT}-{gate_id}"


def output_folder(gate_id: str) -> str:
    """Return the folder in a job's workspace that a gate writes to."""
    return OUTPUT_FOLDER if gate_id == DEFAULT_GATE else f"{OUTPUT_FOLDER}-{gate_id}"


def check_name(gate_id: str) -> str:
    """Return the name of the gate's job, which a ruleset requires, as GitHub names matrix jobs."""
    return CHECK if gate_id == DEFAULT_GATE else f"{CHECK} ({gate_id})"


def status_context(gate_id: str, config: str, default_config: str, base_branch: str = "") -> str:
    """Return the name of a commit status; it is known before any file is read.

    `gate_id` is the id in the workflow, or `default`. For `default`, the settings file's path
    distinguishes gates. GitHub stores a status for a commit alone, but a verdict is about a commit
    and the branch to merge into. So the name includes `base_branch`, which is empty if the event is
    about a commit alone.
    """
    # This cannot be forged: branch names have no blanks, and `_cut` changes a path with this word.
    into = f" ({INTO}{_cut(base_branch)})" if base_branch else ""
    if gate_id != DEFAULT_GATE:
        # Cannot collide with the form below, where no slash follows `repro-gate`.
        return f"repro-gate/{gate_id}{into}"
    named = "" if config in {"", default_config} else f" ({_cut(config)})"
    return f"repro-gate{named}{into}"


def gate_of_config(config: str) -> str:
    """Return a gate's id derived from its settings file's path: `research-nlp` for research/nlp/….

    A path that gives no valid, distinct id gets a digest of the path.
    """
    path = PurePosixPath(config)
    stem = path.stem.removeprefix("repro-gate").strip("-._")
    words = [*path.parent.parts, *([stem] if stem else [])]
    if not words:
        return DEFAULT_GATE
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words)).strip("-._")
    if plain and plain != DEFAULT_GATE and len(plain) <= MAX_ID:
        return plain
    digest = hashlib.sha256(config.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{plain[: MAX_ID - 9]}-{digest}".lstrip("-._")


def is_artifact_name(text: str) -> bool:
    """Return whether GitHub accepts a text as the name of an artifact."""
    return (
        0 < len(text) <= MAX_ARTIFACT_NAME
        and text.isprintable()
        and not text.startswith("-")
        and not REFUSED_IN_ARTIFACTS & set(text)
    )


def _cut(path: str) -> str:
    """Return a path or branch fit for one line; a changed one gets a digest, to stay unique."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)
    if shown == path and len(path) <= MAX_ARTIFACT_NAME and INTO not in path:
        return shown
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{shown[:MAX_ARTIFACT_NAME]}… {digest}"
