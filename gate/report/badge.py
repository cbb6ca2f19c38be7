"""The verdict as a badge: the JSON that the endpoint of shields.io reads."""

from __future__ import annotations

from gate.report.wording import ANOTHER
from gate.text.json_text import canonical_json
from gate.verdict.verdict import Outcome, Verdict

# the colours are shields' own names
PASSED, LOOK_AT_IT, FAILED, NOT_CHECKED = "brightgreen", "yellow", "red", "lightgrey"


def badge_json(verdict: Verdict, *, gate_id: str = "default") -> bytes:
    """Label, message and colour, all of our own words."""
    name = "" if gate_id == "default" else f" ({gate_id})"
    badge = {
        "schemaVersion": 1,
        "label": f"repro-gate{name}",
        "message": _message(verdict),
        "color": _colour(verdict),
    }
    return canonical_json(badge) + b"\n"


def _message(verdict: Verdict) -> str:
    if verdict.missed_threshold:
        return "threshold missed"
    return "over budget" if verdict.over_budget else verdict.outcome.value


def _colour(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.ERROR:
        return NOT_CHECKED
    if verdict.nothing_to_compare:
        return NOT_CHECKED
    if not verdict.passes:
        return FAILED
    return LOOK_AT_IT if verdict.outcome in ANOTHER else PASSED
