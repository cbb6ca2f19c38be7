"""Whether the committed baseline can judge a run made here."""

from __future__ import annotations

from gate.baseline.entry import Baseline, BaselineEntry
from gate.pipelines.doctor.health import CheckResult, Examined
from gate.training.environment import DEVICE, PACKAGES, Environment, moved_packages

RECORD = "Run `repro-gate baseline record` on this kind of machine, and commit the folder."
CONFIRM = (
    "It judges nothing until another call has given the same bits: record it again, and commit."
)
SHOWN_PARTS = 4


def examined_baseline(
    baseline: Baseline | None,
    path: str,
    entry: BaselineEntry | None,
    here: Environment,
    nearest: BaselineEntry | None = None,
) -> Examined:
    """`entry` is the one that a run here would be judged by, None when no entry fits it.

    `nearest` is then one of another kind of accelerator.

    What moved may still be compared within tolerance, or judged by running the base commit.
    """
    if baseline is None or not baseline.entries:
        return _row(CheckResult.FAIL, f"{path}: no baseline is committed", RECORD)
    if nearest is not None:
        recorded, now = nearest.environment.part(DEVICE)[:40], here.part(DEVICE)[:40]
        found = f"{path}: has no entry for {now}, only for {recorded}"
        return _row(CheckResult.FAIL, found, RECORD)
    if entry is None:
        found = f"{path}: recorded with another command, seed, step count or thread count"
        return _row(CheckResult.FAIL, found, RECORD)
    if not here.parts:
        found = f"{path}: {len(baseline.entries)} entries; this environment is unknown"
        return _row(CheckResult.WARN, found, "")
    return _beside(entry, path, here)


def _beside(entry: BaselineEntry, path: str, here: Environment) -> Examined:
    """What separates this machine from the entry, where the entry may judge at all."""
    if entry.provisional:
        found = f"{path}: the nearest entry is far from those of other environments"
        return _row(CheckResult.FAIL, found, CONFIRM)
    then = entry.environment
    moved = then.moved(here)
    if not moved:
        return _row(CheckResult.OK, f"{path}: has an entry for exactly this environment", "")
    packages = [move.described for move in moved_packages(then, here).counted]
    parts = [
        f"{name} {here.part(name)[:40]} (was {then.part(name)[:40]})"
        for name in moved
        if name != PACKAGES or not packages
    ]
    every = [*parts, *packages]
    shown = every[:SHOWN_PARTS]
    rest = f" and {len(every) - SHOWN_PARTS} more" if len(every) > SHOWN_PARTS else ""
    return _row(
        CheckResult.WARN, f"{path}: the closest entry differs in {', '.join(shown)}{rest}", RECORD
    )


def _row(health: CheckResult, found: str, fix: str) -> Examined:
    return Examined(name="baseline", health=health, found=found, fix=fix)
