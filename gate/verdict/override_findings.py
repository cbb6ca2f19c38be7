"""Findings on how the training's own code changed the knobs that the gate set for it."""

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

# The code of the finding that only a draw of entropy kept a result from passing.
ENTROPY_DRAWN: Final = "entropy-drawn"
SHOWN = 5
# The limits at which a process stops reporting; see gate/harness/determinism/overrides.py. At a
# limit, a missing line proves nothing.
MOST_OF_A_PLACE = 3
MOST_OF_PRIVATE = 100
MOST_OF_ALL = 200
CPU = "cpu"
THREADED = (SourceKind.THREAD, SourceKind.DRAW, SourceKind.COMPLETION)
# The harness's name for a reinforcement-learning environment, which has its own generator.
OF_AN_ENVIRONMENT = "gymnasium.Env.reset"
# Filling new memory only makes more of a run repeatable, so changing this knob opens no order.
HARMLESS = "memory_fill"
HASH_SEED = "hash_seed"
IN_THE_SCRIPT = "Remove that line, or set determinism.on_override to restore or fail."
AT_IMPORT = (
    "A library does this while it is imported: set the value again after the import, or set "
    "determinism.on_override to restore."
)


def override_findings(strict: tuple[RunEvidence, ...], *, repeats: bool) -> tuple[Finding, ...]:
    """Did the script override what strict mode set, or use seeds that differ from run to run?

    `repeats`: the two strict runs are equal anyway.
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
    """Return whether an override changed nothing: a GPU knob on a CPU, or a shared hash seed.

    Python reads the hash seed when it starts. Later the variable only affects child processes, and
    these get the same number in each run.
    """
    if override.name == HASH_SEED:
        given = {
            again.after
            for run in strict
            for again in run.overrides
            if again.name == HASH_SEED and again.place == override.place
        }
        return given == {override.after} and BY_NAME[HASH_SEED].accepts_value(override.after)
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
    """Report seeds that two strict runs do not share; a constant seed of the script is no finding.

    If the runs are equal anyway, a private generator is only a notice. One that a library made
    while it was imported is not reported then, since nothing that is compared depends on it.
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
    # Places that only one run reached are skipped: a data worker may not have reached them.
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
    """Return whether a seed that one run lacks was really not given, rather than not recorded.

    A process reports each place only a few times. Which item a worker of a pool takes is a race, so
    beyond that limit each run lacks different seeds. Only a single process without threads gives
    them in a fixed order.
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
    """Return the first line of the script that draws from a source that no seed sets, in any run.

    Libraries draw entropy while they are imported, to name runs and files. Those draws are left
    out.
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
    """Did only a draw of entropy keep the result from passing?"""
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
    """Return seeds that may make two strict runs differ: from outside, or not shared by both.

    Seeds that a library gives while it is imported are left out: most often nothing draws from
    them.
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
    """Return seeds to which a commit gives a different number from its base.

    `before` of each is the base's number. Seeds are paired by generator and order, because a commit
    moves lines. If the counts differ, it is not known which seed corresponds to which, so none is
    reported for that generator.
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
    """Return the script's own seeds by rank and generator, in order, for one process per rank."""
    given: dict[tuple[int, str], list[Override]] = {}
    for override in run.overrides:
        if override.kind is not OverrideKind.RESEED or not override.file or override.weakens:
            continue
        seeds = given.setdefault((override.rank, override.name), [])
        # Workers race, and their seeds derive from the main process's seeds anyway.
        if not seeds or seeds[0].pid == override.pid:
            seeds.append(override)
    return given


def suspected_settings(strict: tuple[RunEvidence, ...]) -> tuple[Override, ...]:
    """Return the strict settings that the script overrode in any run, leaving an order undefined.

    A suspended determinism is legal, but counts too. An override that the harness undid at once
    changed nothing. Neither did a GPU knob where every run used the CPU.
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
    # Overrides that are only seen at the end of a step, and this one switch, are restored only
    # then. So they were in effect for a while.
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
    """Return the given seeds by rank, line and generator.

    Shared generators that were seeded from outside are left out: they are a finding of their own.
    """
    seeds: dict[SeedKey, list[Override]] = {}
    for override in run.overrides:
        if override.seeds and not override.weakens:
            seeds.setdefault((override.rank, override.place, override.name), []).append(override)
    return seeds


def _differ(first: list[Override], second: list[Override]) -> bool:
    """Return whether two runs gave different seeds at a place; order and number may vary by races.

    A generator without a seed draws one from the machine, so it always differs.
    """
    if any(override.kind is OverrideKind.ENTROPY for override in (*first, *second)):
        return True
    left, right = ({override.after for override in overrides} for overrides in (first, second))
    # Each side must have a seed that the other lacks. A subset only means that a worker ended
    # earlier.
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
        # One row per line of code: a loop would otherwise fill the report.
        places.setdefault((override.place, override.name), []).append(override)
    return list(places.values())
