"""Findings about what the training's own code did to the knobs that were set for it."""

from __future__ import annotations

from collections.abc import Iterable

from gate.records.evidence import RunEvidence
from gate.records.knobs import BY_NAME, KEEP
from gate.records.tampering import MAY_BE_OPENED, SeedScope, Tampering, TamperKind
from gate.records.verdict import Finding, Severity

SHOWN = 5
CPU = "cpu"
# filling new memory only makes more of a run repeat
HARMLESS = "memory_fill"
IN_THE_SCRIPT = "Take that line out, or set determinism.tamper to restore or fail."
AT_IMPORT = (
    "A library does this while it is imported: set the value again after the import, or set "
    "determinism.tamper to restore."
)


def tampering(strict: tuple[RunEvidence, ...], *, repeats: bool) -> tuple[Finding, ...]:
    """Did the script turn back what strict mode set, or draw seeds that differ from run to run?

    `repeats` says that the two strict runs are equal all the same.
    """
    deeds = strict[0].tampering if strict else ()
    return (
        *_turned_back([deed for deed in deeds if deed.weakens]),
        *_holes([deed for deed in deeds if deed.declared_hole]),
        *_seeds_that_differ(strict[:2], repeats=repeats),
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
            remedy=AT_IMPORT if deeds[0].importing else IN_THE_SCRIPT,
        )
        for message, deeds in zip(shown, places, strict=False)
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


def _seeds_that_differ(runs: tuple[RunEvidence, ...], *, repeats: bool) -> tuple[Finding, ...]:
    """Seeds that two strict runs did not share; a constant of the script's own is no finding.

    Where the runs are equal all the same, a private generator is a notice, and none at all when a
    library made it while it was imported: nothing that is compared depends on it.
    """
    told = [deed for deed in _differing(runs) if not (repeats and deed.importing)]
    return tuple(_seed_finding(deeds[0], repeats=repeats) for deeds in _by_place(told)[:SHOWN])


def _differing(runs: tuple[RunEvidence, ...]) -> list[Tampering]:
    if len(runs) < 2:  # noqa: PLR2004 - a difference takes two
        return []
    first, second = (_seeds_of(run) for run in runs)
    return [first[key][0] for key in first if key in second and _differ(first[key], second[key])]


def suspected_seeds(strict: tuple[RunEvidence, ...]) -> tuple[Tampering, ...]:
    """What may make two strict runs differ: seeds from outside, and seeds that they do not share.

    Not what a library does while it is imported: most often nothing draws from that.
    """
    outside = [
        deed
        for run in strict[:1]
        for deed in run.tampering
        if deed.kind is TamperKind.ENTROPY and deed.weakens
    ]
    found = (*outside, *_differing(strict[:2]))
    return tuple(deed for deed in found if deed.file and not deed.importing)


def suspected_settings(strict: tuple[RunEvidence, ...]) -> tuple[Tampering, ...]:
    """What of strict mode the script turned back in either run, so that an order was left open.

    A declared hole is legal and is one too. What the guest put back at once changed nothing, and
    neither does a knob of GPUs where every run was on a CPU.
    """
    on_cpu = all(run.environment.parts.get("device") == CPU for run in strict)
    deeds = (deed for run in strict for deed in run.tampering if not deed.seeds)
    return tuple(deed for deed in deeds if _opens(deed) and not (on_cpu and _of_gpus(deed)))


def _opens(deed: Tampering) -> bool:
    knob = BY_NAME.get(deed.name)
    if knob is not None and (knob.strict in {KEEP, deed.after} or knob.name == HARMLESS):
        return False
    # what is only seen at the end of a step, and this one switch, is put back then
    switch = deed.kind in {TamperKind.SWITCH, TamperKind.CONTEXT} and deed.name != MAY_BE_OPENED
    return not (deed.restored and switch and deed.file)


def _of_gpus(deed: Tampering) -> bool:
    knob = BY_NAME.get(deed.name)
    return knob is not None and knob.gpu_alone


SeedKey = tuple[int, str, str]


def _seeds_of(run: RunEvidence) -> dict[SeedKey, list[Tampering]]:
    """The seeds that were given, by rank, line and stream.

    A common stream that was seeded from outside is not among them: that is a finding by itself.
    """
    found: dict[SeedKey, list[Tampering]] = {}
    for deed in run.tampering:
        if deed.seeds and not deed.weakens:
            found.setdefault((deed.rank, deed.place, deed.name), []).append(deed)
    return found


def _differ(first: list[Tampering], second: list[Tampering]) -> bool:
    """Whether two runs gave other seeds there, in whatever order and number: workers race.

    A generator that was given none draws one from the machine: another one in each run.
    """
    if any(deed.kind is TamperKind.ENTROPY for deed in (*first, *second)):
        return True
    one, other = ({deed.after for deed in deeds} for deeds in (first, second))
    return bool(one - other and other - one)


def _seed_finding(deed: Tampering, *, repeats: bool) -> Finding:
    harmless = repeats and deed.scope is SeedScope.PRIVATE
    minor = harmless or (deed.importing and deed.scope is SeedScope.PRIVATE)
    if deed.kind is TamperKind.ENTROPY:
        does = f"makes a generator with a seed from outside: {deed.name}"
    else:
        does = f"gives {deed.name} another seed in each run"
    remedy = "Seed with a constant, or leave the seed to the gate."
    if deed.importing:
        does += ", while a library is imported"
        remedy = "The library does this: look whether it lets its seed be set after the import."
    elif deed.scope is SeedScope.PRIVATE:
        remedy = "Give that generator a constant as its seed."
    return Finding(
        code="seed-differs",
        severity=Severity.NOTICE if minor else Severity.WARNING,
        message=f"{deed.place} {does}{'; the runs are equal all the same' if harmless else ''}",
        remedy=remedy,
    )


def _by_place(deeds: Iterable[Tampering]) -> list[list[Tampering]]:
    places: dict[tuple[str, str], list[Tampering]] = {}
    for deed in deeds:
        places.setdefault((deed.place, deed.name), []).append(deed)
    return list(places.values())
