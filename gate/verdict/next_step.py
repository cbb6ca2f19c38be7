"""The exact next command for each outcome."""

from __future__ import annotations

import shlex

from gate.records.verdict import Outcome

ACCEPT = (Outcome.NO_BASELINE, Outcome.CODE_DRIFT, Outcome.NOT_COMPARABLE)


def next_command(
    outcome: Outcome, *, passes: bool, config: str, out: str, over_budget: bool = False
) -> str:
    """What to type next, or the empty text after a pass."""
    if passes:
        return ""
    settings = f"--config {shlex.quote(config)}"
    if over_budget:
        return f"repro-gate cost --attribute {settings}"
    if outcome in ACCEPT or outcome is Outcome.ENVIRONMENT_DRIFT:
        return (
            f"repro-gate baseline accept {settings} --out {shlex.quote(out)} "
            "--reason 'why the result moved'"
        )
    return f"repro-gate gate {settings} --verbose"
