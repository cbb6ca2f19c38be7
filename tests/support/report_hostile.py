"""Texts with which a training could try to deceive a reader, a parser or the runner."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from hypothesis import strategies as st

from gate.evidence.trace import HowKnown
from gate.verdict.verdict import RunPurpose, Verdict, WhyNotRun

FRAGMENTS = (
    "|", "`", "``", "```", "<!--", "-->", "<img src=x onerror=1>", "</details>", "<script>",
    "[a](javascript:x)", "![x](http://evil.example)", "[x]: http://evil.example", "@octocat",
    "#12", "GH-12", "www.evil.example", "https://evil.example", "$x$", "~~", "**", "_", "\\",
    "&lt;", "&#96;", "1. ", "- ", "> ", "\n", "\r", "\t", "\x00", "\x1b[31m", "\x9b31m",
    "\x1b]0;title\x07", "\u202e", "\u200b", "\u2066", "\ufe0f", "\u2028", "::error::no",
    " ::add-mask::1", "##[error]no", "#\u034f#[", "{{ 7 * 7 }}", "[bold]", "loss", "é", "損失",
    "%0A", "'", '"',
)  # fmt: skip
# files and JSON cannot contain a lone surrogate, but a decoded log line could
PLAIN = st.characters(codec="utf-8")
HOSTILE = st.lists(st.sampled_from(FRAGMENTS) | st.text(PLAIN, max_size=8), max_size=12).map(
    "".join
)
MAX_PACKAGE = 200
DIGEST = re.compile(r"[0-9a-f]{64}")
KEPT_KEYS = frozenset((
    "schema_version", "outcome", "severity", "kind", "state", "mode", "created_at", "recorded_at",
    "measured_at", "answers", "level", "cause_class", "shape", "sha256", "verify", "format",
    "states", "work", "failure_mode", "point", "left",
))  # fmt: skip


def poisoned(verdict: Verdict, text: str) -> Verdict:
    """Return the verdict with `text` in every field that allows free text."""

    def poison(value: object) -> object:
        if isinstance(value, str):
            return text
        if isinstance(value, list):
            return [poison(item) for item in value]
        if isinstance(value, dict):
            return {key: _kept(key, item, poison) for key, item in value.items()}
        return value

    return Verdict.model_validate_json(json.dumps(poison(verdict.model_dump(mode="json"))))


def _kept(key: str, value: object, poison: Callable[[object], object]) -> object:
    if key in {"packages", "imported", "before", "after"} and isinstance(value, list):
        return [str(poison(item))[:MAX_PACKAGE] for item in value]
    # of data that moved; elsewhere these are words
    if key in {"before", "after"} and DIGEST.fullmatch(str(value)):
        return value
    # why a change is shown; elsewhere these are words
    if key == "how" and value in set(HowKnown):
        return value
    # of what was not run; elsewhere these are words
    if (key == "part" and value in set(RunPurpose)) or (key == "why" and value in set(WhyNotRun)):
        return value
    # of an entry that answers without a run; elsewhere these may be longer
    if key == "unaffected" and isinstance(value, dict):
        texts = {name: _kept(name, item, poison) for name, item in value.items()}
        return texts | {name: str(texts[name])[:64] for name in ("commit", "files_sha256")}
    run_commit = key in {"commit", "environment"} and value in ("head", "base")
    kept = value if key in KEPT_KEYS or run_commit else poison(value)
    # of a save that was killed, and of a configuration
    most = {"path": 200, "file": 200, "configured": 500}.get(key)
    return kept[:most] if isinstance(kept, str) else kept
