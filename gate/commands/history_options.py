"""Options of the verbs that read a history: its place, the time span and the cache."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Final

import typer

from gate.commands.program import FILES
from gate.commands.registry_names import clone_settings
from gate.errors import SettingsError
from gate.pipelines.fleet import FleetCall
from gate.system.clock import SystemClock
from gate.system.git.repository import GitRepository
from gate.text.untrusted_text import safe_line

SPAN: Final = re.compile(r"([0-9]{1,4})([hdw])\Z")
HOURS: Final = {"h": 1, "d": 24, "w": 24 * 7}
LONGEST_DAYS: Final = 3660

Place = Annotated[
    str,
    typer.Option(
        "--history",
        help="A folder, s3://BUCKET/PREFIX, oci://registry/name, or `branch` in a clone; default: "
        "publish.history of the settings.",
    ),
]
Since = Annotated[str, typer.Option(help="How far back: 12h, 7d or 4w.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder that keeps copies of a history elsewhere for the next call."),
]


def history_place(place: str, config: str) -> str:
    """Return the history that the option names, or the settings' `publish.history`.

    Raises `SettingsError` if neither is given.
    """
    if place:
        return place
    settings, _ = clone_settings(config)
    if settings is None or settings.publish.history is None:
        raise SettingsError(
            "no history is named",
            hint="Give --history a folder, s3://BUCKET/PREFIX, oci://registry/name or `branch`; or "
            "set publish.history in repro-gate.yml.",
        )
    return settings.publish.history


def days_of(span: str) -> float:
    """Return the days in a text such as `12h`, `7d` or `4w`.

    Raises `SettingsError` for another form, for zero, and above ten years (`LONGEST_DAYS`).
    """
    match = SPAN.match(span)
    days = int(match[1]) * HOURS[match[2]] / 24 if match else 0.0
    if not 0 < days <= LONGEST_DAYS:
        raise SettingsError(
            f"--since {safe_line(span)!r} is not a time", hint="For example --since 12h, 7d or 4w."
        )
    return days


def fleet_call(place: str, days: float, cache: Path | None = None) -> FleetCall:
    """Return the call that reads the last `days` days of a history."""
    return FleetCall(
        place=place,
        days=days,
        now=SystemClock().now(),
        variables=os.environ,
        files=FILES,
        git=GitRepository(Path.cwd()),
        cache=cache,
    )
