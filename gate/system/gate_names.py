"""The names that belong to one gate of a repository: no two gates share one of them.

A gate without an id of its own is `default`, and its names are the plain ones. Three more names are
derived where they are written: the comment's marker (`report/comment/comment.py`), the history's
files (`records/published/history.py`) and a package's tag (`adapters/registry/registry.py`).
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Final

DEFAULT_GATE: Final = "default"
MAX_ID: Final = 40
GATE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z")
# for records: their patterns are searched for, and have no `\Z`
GATE_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$"
OUTPUT_FOLDER: Final = "repro-gate-out"
ARTIFACT: Final = "repro-gate"
CHECK: Final = "gate"
INTO: Final = "into "
# GitHub refuses these in the name of an artifact, beside line ends
REFUSED_IN_ARTIFACTS: Final = frozenset('":<>|*?/\\')
MAX_ARTIFACT_NAME: Final = 100


def artifact_name(gate_id: str) -> str:
    """What the workflow calls the artifact that holds a gate's output folder."""
    return ARTIFACT if gate_id == DEFAULT_GATE else f"{ARTIFACT}-{gate_id}"


def output_folder(gate_id: str) -> str:
    """The folder that a gate writes to in the workspace of a job."""
    return OUTPUT_FOLDER if gate_id == DEFAULT_GATE else f"{OUTPUT_FOLDER}-{gate_id}"


def check_name(gate_id: str) -> str:
    """The name of the job, which a ruleset requires; as GitHub names the jobs of a matrix."""
    return CHECK if gate_id == DEFAULT_GATE else f"{CHECK} ({gate_id})"


def status_context(gate_id: str, config: str, default_config: str, base_branch: str = "") -> str:
    """The name of a commit status, known before any file is read.

    `gate_id` is the one that the workflow gives, else `default`; then the settings file's path
    tells gates apart. A status belongs to a commit, a verdict to a commit and the branch that it
    is to be merged into, `base_branch`, empty where the event is about a commit alone.
    """
    # no branch's name has a blank, and no path that is shown whole has this word
    into = f" ({INTO}{_cut(base_branch)})" if base_branch else ""
    if gate_id != DEFAULT_GATE:
        # no path of a settings file follows a slash here
        return f"repro-gate/{gate_id}{into}"
    named = "" if config in {"", default_config} else f" ({_cut(config)})"
    return f"repro-gate{named}{into}"


def gate_of_config(config: str) -> str:
    """The id of a gate by the path of its settings file: `research-nlp` for research/nlp/….

    One that is not at its usual place and has no name of its own gets a digest of the path.
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
    """Whether GitHub takes a text as the name of an artifact."""
    return (
        0 < len(text) <= MAX_ARTIFACT_NAME
        and text.isprintable()
        and not text.startswith("-")
        and not REFUSED_IN_ARTIFACTS & set(text)
    )


def _cut(path: str) -> str:
    """A path or branch for a line of a page; a long one keeps a digest: it stays its own."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in path)
    if shown == path and len(path) <= MAX_ARTIFACT_NAME and INTO not in path:
        return shown
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{shown[:MAX_ARTIFACT_NAME]}… {digest}"
