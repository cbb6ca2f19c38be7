"""Making attempts: one in a call of the gate, or all that only look around in one call."""

from __future__ import annotations

from abilities import promised
from aftermath import RUNS, faults, told_lines
from arena import Arena, arena
from attempt import GOT, REFUSED, TRY, Attempt, Threat
from install_arena import try_install
from table import ATTEMPTS

from gate.isolation.modes import IsolationMode

TOGETHER = tuple(one for one in ATTEMPTS if one.together)
CONTROLS = tuple(one for one in TOGETHER if one.control)
ALL_OF_THEM = Attempt(
    name="together",
    threat=Threat.SECRETS,
    tries="looks around in every way that has no effect, each in a process of its own",
    stopped_by="",
    script="",
)


def try_one(mode: IsolationMode, attempt: Attempt) -> list[str]:
    """All that is wrong after the attempt."""
    if attempt.lock:
        return try_install(attempt)
    with arena(mode, attempt) as place:
        return faults(place, attempt, attempt.tells)


def try_together(mode: IsolationMode) -> dict[str, list[str]]:
    """All that is wrong after each of them; what cannot be told apart counts for all."""
    asked = tuple(one for one in TOGETHER if promised(mode, one))
    with arena(mode, ALL_OF_THEM, asked) as place:
        common = faults(place, ALL_OF_THEM, len(asked))
        found = {one.name: _of_one(place, one.name) for one in asked}
        return {name: own or common for name, own in found.items()}


def try_controls() -> tuple[dict[str, bool], list[str]]:
    """Which attempts get what they want with nothing in the way; what the checks say to it."""
    with arena(IsolationMode.NONE, ALL_OF_THEM, CONTROLS) as place:
        got = {one.name: bool(told_lines(_part(place, one.name), GOT)) for one in CONTROLS}
        return got, faults(place, ALL_OF_THEM, len(CONTROLS))


def _of_one(place: Arena, name: str) -> list[str]:
    part = _part(place, name)
    refused = len(told_lines(part, REFUSED))
    wrong = [] if refused == RUNS else [f"{refused} refusals were told, not {RUNS}"]
    return [*told_lines(part, GOT), *wrong]


def _part(place: Arena, name: str) -> str:
    """The lines that one of the attempts printed, in all runs."""
    kept = [line for line in place.log.splitlines() if line.endswith(f"{TRY}{name}")]
    return "\n".join(kept)
