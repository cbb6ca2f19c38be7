"""Findings about what the training's own code did to the knobs that were set for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from gate.diagnosis.diagnosis import CodePlace
from gate.evidence.observations import MAY_BE_OPENED, Override, OverrideKind, SeedScope, SourceKind
from gate.evidence.run_evidence import RunEvidence
from gate.settings.knobs import BY_NAME, KEEP
from gate.text.phrases import count
from gate.verdict.facts import EntropyDraw
from gate.verdict.findings import notice
from gate.verdict.verdict import Finding, Severity

# of the finding that a draw of entropy alone kept a result from passing
ENTROPY_DRAWN: Final = "entropy-drawn"
SHOWN = 5
# as many lines of a place as a process tells, and of all: gate/harness/determinism/overrides.py
MOST_OF_A_PLACE = 3
MOST_OF_PRIVATE = 100
MOST_OF_ALL = 200
CPU = "cpu"
THREADED = (SourceKind.THREAD, SourceKind.DRAW, SourceKind.COMPLETION)
# the harness's name for an environment of reinforcement learning that takes a seed by itself
OF_AN_ENVIRONMENT = "gymnasium.Env.reset"
# filling new memory only makes more of a run repeat
HARMLESS = "memory_fill"
IN_THE_SCRIPT = "Remove that line, or set determinism.on_override to restore or fail."
AT_IMPORT = (
    "A library does this while it is imported: set the value again after the import, or set "
    "determinism.on_override to restore."
)


def override_findings(strict: tuple[RunEvidence, ...], *, repeats: bool) -> tuple[Finding, ...]:
    """Did the script override what strict mode set, or use seeds that differ from run to run?

    `repeats` says that the two strict runs are equal anyway.
    """
    overrides = strict[0].overrides if strict else ()
    return (
        *_turned_back(
            [
                override
                for override in overrides
                if override.weakens and not _without_effect(override, strict)
            ]
        ),
        *_holes([override for override in overrides if override.determinism_suspended]),
        *_seeds_that_differ(strict[:2], repeats=repeats),
    )


def _without_effect(override: Override, strict: tuple[RunEvidence, ...]) -> bool:
    """Whether it is a setting of GPUs, and every run was on a CPU: it changed nothing there."""
    return _of_gpus(override) and all(run.environment.parts.get("device") == CPU for run in strict)


def _turned_back(overrides: list[Override]) -> tuple[Finding, ...]:
    places = _by_place(overrides)
    shown = [_told_of(overrides) for overrides in places[:SHOWN]]
    if len(places) > SHOWN:
        shown[-1] += f" (and {count(len(places) - SHOWN, 'more place')})"
    return tuple(
        Finding(
            code="settings-overridden",
            severity=Severity.WARNING,
            message=message,
            remedy=AT_IMPORT if overrides[0].importing else IN_THE_SCRIPT,
            code_place=CodePlace.known(overrides[0].file, overrides[0].line),
        )
        for message, overrides in zip(shown, places, strict=False)
    )


def _told_of(overrides: list[Override]) -> str:
    first = overrides[0]
    steps = f"step {first.step}" + (" and later" if overrides[-1].step > first.step else "")
    after = "; the harness restored it" if first.restored else ""
    if first.kind is OverrideKind.ENTROPY:
        return f"{first.place} takes a nondeterministic seed at {steps}: {first.name}{after}"
    return (
        f"{first.place} changed {first.name} from {first.before or 'unset'} to "
        f"{first.after or 'unset'} at {steps}{after}"
    )


def _holes(overrides: list[Override]) -> tuple[Finding, ...]:
    places = _by_place(overrides)
    if not places:
        return ()
    names = ", ".join(overrides[0].place for overrides in places[:SHOWN])
    return notice(
        "determinism-suspended",
        message=f"deterministic algorithms are switched off and on again in "
        f"{count(len(places), 'place')}: {names}",
        remedy="The code in between runs without strict mode; its results must still be "
        "equal bit for bit.",
    )


def _seeds_that_differ(runs: tuple[RunEvidence, ...], *, repeats: bool) -> tuple[Finding, ...]:
    """Seeds that two strict runs did not share; a constant of the script's own is no finding.

    Where the runs are equal all the same, a private generator is a notice, and none at all when a
    library made it while it was imported: nothing that is compared depends on it.
    """
    shown = [override for override in _differing(runs) if not (repeats and override.importing)]
    return tuple(
        _seed_finding(overrides[0], repeats=repeats) for overrides in _by_place(shown)[:SHOWN]
    )


def _differing(runs: tuple[RunEvidence, ...]) -> list[Override]:
    if len(runs) < 2:  # noqa: PLR2004 - a difference takes two
        return []
    first, second = (_seeds_of(run) for run in runs)
    ordered = not any(map(_has_threads, runs))
    full = any(map(_log_is_full, runs))
    # places that only one run reached are not compared: a data worker may not have come to it
    return [
        first[key][0]
        for key in first
        if key in second
        and _differ(first[key], second[key])
        and _known_whole(first[key], second[key], ordered=ordered, full=full)
    ]


def _known_whole(
    first: list[Override], second: list[Override], *, ordered: bool, full: bool
) -> bool:
    """Whether what one run lacks was not given there, rather than given and not recorded.

    A place is told a few times for each process. Which item of a pool's a worker takes is a race,
    so beyond that each run lacks other seeds. One process without threads gives them in order.
    """
    if any(override.kind is OverrideKind.ENTROPY for override in (*first, *second)):
        return True
    counts = [Counter(override.pid for override in overrides) for overrides in (first, second)]
    capped = full or any(max(of_run.values()) >= MOST_OF_A_PLACE for of_run in counts)
    return not capped or (ordered and all(len(of_run) == 1 for of_run in counts))


def _has_threads(run: RunEvidence) -> bool:
    started = any(source.kind in THREADED for source in run.sources)
    return started or any(threads.count > 1 for threads in run.live_threads)


def _log_is_full(run: RunEvidence) -> bool:
    of_all = Counter(override.pid for override in run.overrides)
    private = Counter(
        override.pid for override in run.overrides if override.scope is SeedScope.PRIVATE
    )
    return any(count >= MOST_OF_ALL for count in of_all.values()) or any(
        count >= MOST_OF_PRIVATE for count in private.values()
    )


def drawn_entropy(strict: tuple[RunEvidence, ...]) -> EntropyDraw | None:
    """The first line of the script's that draws from what no seed sets, in any of these runs.

    What a library does while it is imported names its runs and files, and is left out.
    """
    for run in strict:
        for source in run.sources:
            if source.kind is SourceKind.ENTROPY:
                place = CodePlace.known(source.file, source.line)
                return EntropyDraw(call=source.call, place=source.place, code_place=place)
        for override in run.overrides:
            if override.kind is OverrideKind.ENTROPY and override.file and not override.importing:
                place = CodePlace.known(override.file, override.line)
                return EntropyDraw(call=override.name, place=override.place, code_place=place)
    return None


def entropy_stopped_pass(draw: EntropyDraw | None, *, by_chance: bool) -> tuple[Finding, ...]:
    """Did nothing but a draw of entropy keep the result from passing?"""
    if draw is None or not by_chance:
        return ()
    finding = Finding(
        code=ENTROPY_DRAWN,
        severity=Severity.WARNING,
        message=f"{draw.place} draws from {draw.call}, which no seed sets. Runs that draw and "
        "agree may have shared a number, so only equal bits pass, and no tolerance",
        remedy="Seed that draw with a constant, or remove it.",
        code_place=draw.code_place,
    )
    return (finding,)


def suspected_seeds(strict: tuple[RunEvidence, ...]) -> tuple[Override, ...]:
    """What may make two strict runs differ: seeds from outside, and seeds that they do not share.

    Not what a library does while it is imported: most often nothing draws from that.
    """
    outside = [
        override
        for run in strict[:1]
        for override in run.overrides
        if override.kind is OverrideKind.ENTROPY and override.weakens
    ]
    overrides = (*outside, *_differing(strict[:2]))
    return tuple(override for override in overrides if override.file and not override.importing)


def changed_seeds(run: RunEvidence, base: RunEvidence | None) -> tuple[Override, ...]:
    """Seeds that a commit gives another number than its base does; `before` is the base's.

    Paired by generator and order, since a commit moves lines. Where one gives more of them than the
    other, which stands for which is not known, and none is told.
    """
    if base is None:
        return ()
    theirs = _numbers_given(base)
    return tuple(
        seed.model_copy(update={"before": former.after})
        for key, seeds in _numbers_given(run).items()
        if len(seeds) == len(theirs.get(key, ()))
        for seed, former in zip(seeds, theirs[key], strict=True)
        if seed.after != former.after
    )


def _numbers_given(run: RunEvidence) -> dict[tuple[int, str], list[Override]]:
    """The seeds of the script's own by rank and generator, in order; those of one process alone."""
    given: dict[tuple[int, str], list[Override]] = {}
    for override in run.overrides:
        if override.kind is not OverrideKind.RESEED or not override.file or override.weakens:
            continue
        seeds = given.setdefault((override.rank, override.name), [])
        # workers race, and their seeds are made of the main process's
        if not seeds or seeds[0].pid == override.pid:
            seeds.append(override)
    return given


def suspected_settings(strict: tuple[RunEvidence, ...]) -> tuple[Override, ...]:
    """Which strict settings the script overrode in either run, so that an order was undefined.

    A suspended determinism is legal and is one too. What the harness put back at once changed
    nothing, and neither does a knob of GPUs where every run was on a CPU.
    """
    overrides = (override for run in strict for override in run.overrides if not override.seeds)
    return tuple(
        override
        for override in overrides
        if _opens(override) and not _without_effect(override, strict)
    )


def _opens(override: Override) -> bool:
    knob = BY_NAME.get(override.name)
    if knob is not None and (knob.strict in {KEEP, override.after} or knob.name == HARMLESS):
        return False
    # what is only seen at the end of a step, and this one switch, is put back then
    switch = (
        override.kind in {OverrideKind.SWITCH, OverrideKind.CONTEXT}
        and override.name != MAY_BE_OPENED
    )
    return not (override.restored and switch and override.file)


def _of_gpus(override: Override) -> bool:
    knob = BY_NAME.get(override.name)
    return knob is not None and knob.gpu_alone


SeedKey = tuple[int, str, str]


def _seeds_of(run: RunEvidence) -> dict[SeedKey, list[Override]]:
    """The seeds that were given, by rank, line and generator.

    A common generator that was seeded from outside is not among them: that is a finding by itself.
    """
    seeds: dict[SeedKey, list[Override]] = {}
    for override in run.overrides:
        if override.seeds and not override.weakens:
            seeds.setdefault((override.rank, override.place, override.name), []).append(override)
    return seeds


def _differ(first: list[Override], second: list[Override]) -> bool:
    """Whether two runs gave other seeds there, in whatever order and number: workers race.

    A generator that was given none draws one from the machine: another one in each run.
    """
    if any(override.kind is OverrideKind.ENTROPY for override in (*first, *second)):
        return True
    left, right = ({override.after for override in overrides} for overrides in (first, second))
    # each side has a seed that the other lacks: a subset is only a worker that ended earlier
    return bool(left - right and right - left)


def _seed_finding(override: Override, *, repeats: bool) -> Finding:
    harmless = repeats and override.scope is SeedScope.PRIVATE
    minor = harmless or (override.importing and override.scope is SeedScope.PRIVATE)
    if override.kind is OverrideKind.ENTROPY:
        does = f"creates a generator with a nondeterministic seed: {override.name}"
    else:
        does = f"gives {override.name} a different seed in each run"
    remedy = "Seed with a constant, or leave the seed to the gate."
    if override.importing:
        does += ", while a library is imported"
        remedy = "A library does this: check whether its seed can be set after the import."
    elif override.scope is SeedScope.PRIVATE:
        remedy = "Give that generator a constant seed."
    if override.library and not override.importing:
        does += f", by {override.library}"
        remedy = "Give that package a constant seed, by the argument that it has for one."
    if override.name == OF_AN_ENVIRONMENT:
        remedy = "Pass seed= to reset(), or to the model that calls it."
    return Finding(
        code="seed-differs",
        severity=Severity.NOTICE if minor else Severity.WARNING,
        message=f"{override.place} {does}{'; the runs are equal anyway' if harmless else ''}",
        remedy=remedy,
        code_place=CodePlace.known(override.file, override.line),
    )


def _by_place(overrides: Iterable[Override]) -> list[list[Override]]:
    places: dict[tuple[str, str], list[Override]] = {}
    for override in overrides:
        # one row a line of code: a loop would otherwise fill the report
        places.setdefault((override.place, override.name), []).append(override)
    return list(places.values())
