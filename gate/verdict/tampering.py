"""Findings about what the training's own code did to the knobs that were set for it."""

from __future__ import annotations

from collections.abc import Iterable

from gate.records.evidence import RunEvidence
from gate.records.tampering import Tampering, TamperKind
from gate.records.verdict import Finding, Severity

SHOWN = 5


def tampering(strict: tuple[RunEvidence, ...]) -> tuple[Finding, ...]:
    """Did the script turn back what strict mode set, or draw seeds that differ from run to run?"""
    deeds = strict[0].tampering if strict else ()
    return (
        *_turned_back([deed for deed in deeds if deed.weakens]),
        *_holes([deed for deed in deeds if deed.declared_hole]),
        *_seeds_that_differ(strict[:2]),
    )


def _turned_back(deeds: list[Tampering]) -> tuple[Finding, ...]:
    places = _by_place(deeds)
    shown = [_told_of(deeds) for deeds in places[:SHOWN]]
    if len(places) > SHOWN:
        shown[-1] += f" (and {len(places) - SHOWN} more place(s))"
    return tuple(
        Finding(
            code="tampered",
            severity=Severity.WARNING,
            message=message,
            remedy="Take that line out, or set determinism.tamper to restore or fail.",
        )
        for message in shown
    )


def _told_of(deeds: list[Tampering]) -> str:
    first = deeds[0]
    steps = f"step {first.step}" + (" and later" if deeds[-1].step > first.step else "")
    after = "; the guest put it back" if first.restored else ""
    if first.kind is TamperKind.ENTROPY:
        return f"{first.place} takes a seed from outside at {steps}: {first.name}{after}"
    return (
        f"{first.place} turned {first.name} from {first.before or 'unset'} to "
        f"{first.after or 'unset'} at {steps}{after}"
    )


def _holes(deeds: list[Tampering]) -> tuple[Finding, ...]:
    places = _by_place(deeds)
    if not places:
        return ()
    names = ", ".join(deeds[0].place for deeds in places[:SHOWN])
    return (
        Finding(
            code="declared-hole",
            severity=Severity.NOTICE,
            message=f"deterministic algorithms are put aside and taken up again in "
            f"{len(places)} place(s): {names}",
            remedy="What lies between is not held to strict mode; equal bits still are.",
        ),
    )


def _seeds_that_differ(runs: tuple[RunEvidence, ...]) -> tuple[Finding, ...]:
    """Seeds that two strict runs did not share; a constant of the script's own is no finding."""
    if len(runs) < 2:  # noqa: PLR2004 - a difference takes two
        return ()
    seeds = [[deed for deed in run.tampering if deed.kind is TamperKind.RESEED] for run in runs]
    differing = [
        first
        for first, second in zip(*seeds, strict=False)
        if (first.place, first.name) == (second.place, second.name) and first.after != second.after
    ]
    return tuple(
        Finding(
            code="seed-differs",
            severity=Severity.WARNING,
            message=f"{deeds[0].place} gives {deeds[0].name} another seed in each run",
            remedy="Seed with a constant, or leave the seed to the gate.",
        )
        for deeds in _by_place(differing)[:SHOWN]
    )


def _by_place(deeds: Iterable[Tampering]) -> list[list[Tampering]]:
    places: dict[tuple[str, str], list[Tampering]] = {}
    for deed in deeds:
        places.setdefault((deed.place, deed.name), []).append(deed)
    return list(places.values())
