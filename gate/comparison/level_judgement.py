"""Judge the level that the policy asks for, by the results of several seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from gate.comparison.level_records import Agreement, Equivalence, LevelResult
from gate.comparison.statistical_tests import equivalence, ranking
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.step_work import MAX_FINAL_VALUES, FinalValue, SeedResult
from gate.settings.levels import LEAST_SEEDS, Level, LevelPolicy, Margin, Ranking
from gate.text.json_text import canonical_sha256


def seed_result(run: RunEvidence, seed: int, variant: str, policy: LevelPolicy) -> SeedResult:
    """Return the result of a strict run with its seed; judged metrics come first at the limit."""
    values = sorted(
        (
            FinalValue(metric=series.name, point=series.points[-1])
            for series in run.metrics
            if series.points
        ),
        # Judged metrics come first, because values beyond the limit are cut off.
        key=lambda value: (not is_judged(value.metric, policy), value.metric),
    )
    metrics = [series.model_dump() for series in run.metrics]
    return SeedResult(
        variant=variant,
        seed=seed,
        # Covers metrics and final state: equal digests mean equal results, bit for bit.
        digest=canonical_sha256([metrics, run.checkpoint.root]),
        values=tuple(sorted(values[:MAX_FINAL_VALUES], key=lambda value: value.metric)),
    )


def is_judged(metric: str, policy: LevelPolicy) -> bool:
    """Return whether the policy's level depends on this metric."""
    ranked = policy.ranking is not None and policy.ranking.metric == metric
    return ranked or any(fnmatchcase(metric, pattern) for pattern in policy.equivalence)


NO_EFFECT = (
    "the seed has no effect: all {count} seeds give the same result, bit for bit{whose}. Let the "
    "script take it from {{seed}} in train.command or from the variable REPRO_GATE_SEED"
)
NO_SEEDS = (
    "the baseline entry holds no result of {what}; record it again (repro-gate baseline record)"
)
Results = tuple[SeedResult, ...]
# Maps a seed to the result of one training.
BySeed = Mapping[int, SeedResult]


def seeds_without_effect(results: Results) -> str:
    """Return why these results prove nothing about seeds, "" if a training's results differ."""
    for variant in sorted({result.variant for result in results}):
        own = [result for result in results if result.variant == variant]
        if len({result.digest for result in own}) == 1 and len(own) > 1:
            whose = f" (variant {variant})" if variant else ""
            return NO_EFFECT.format(count=len(own), whose=whose)
    return ""


def judge_level(baseline: Results, head: Results, policy: LevelPolicy) -> LevelResult:
    """Return whether the head's results over seeds reach the level, against an entry's results.

    The level must be one that needs seeds.
    """
    # Equal results of all seeds would make any spread zero, and any difference significant.
    problem = seeds_without_effect(head) or _broken(head, "")
    problem = problem or seeds_without_effect(baseline) or _broken(baseline, "the baseline's ")
    if problem:
        return LevelResult(asked=policy.level, problem=problem)
    if policy.level is Level.SCIENTIFIC and policy.ranking is not None:
        return _ranked(_by_variant(baseline), _by_variant(head), policy.ranking)
    return _equivalent(_by_variant(baseline).get("", {}), _by_variant(head)[""], policy.equivalence)


def _broken(results: Results, whose: str) -> str:
    for result in results:
        for value in result.values:
            if not math.isfinite(value.point.value):
                at = f"seed {result.seed}" + (
                    f" of variant {result.variant}" if result.variant else ""
                )
                return f"{whose}{value.metric} is {value.point.decimal} at {at}"
    return ""


def _by_variant(results: Results) -> dict[str, dict[int, SeedResult]]:
    by_variant: dict[str, dict[int, SeedResult]] = {}
    for result in results:
        by_variant.setdefault(result.variant, {})[result.seed] = result
    return by_variant


def _equivalent(baseline: BySeed, head: BySeed, margins: Mapping[str, Margin]) -> LevelResult:
    if len(baseline) < LEAST_SEEDS:
        return LevelResult(asked=Level.STATISTICAL, problem=NO_SEEDS.format(what="several seeds"))
    names = sorted(_metrics((*baseline.values(), *head.values())))
    unknown = [
        pattern for pattern in margins if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if unknown:
        return LevelResult(
            asked=Level.STATISTICAL,
            problem=f"no metric fits {unknown[0]}, which policy.equivalence names",
        )
    # The first matching pattern counts, in the order of the settings.
    margin_of = {
        name: next((margins[pattern] for pattern in margins if fnmatchcase(name, pattern)), None)
        for name in names
    }
    equivalences = tuple(
        _one_metric(name, baseline, head, margin)
        for name, margin in margin_of.items()
        if margin is not None
    )
    return LevelResult(
        asked=Level.STATISTICAL, problem=_worst(equivalences), equivalences=equivalences
    )


def _metrics(results: Iterable[SeedResult]) -> set[str]:
    return {value.metric for result in results for value in result.values}


def _one_metric(metric: str, baseline: BySeed, head: BySeed, margin: Margin) -> Equivalence:
    missing = _missing(metric, baseline, head)
    if missing:
        return Equivalence(metric=metric, agreement=Agreement.UNDECIDED, reason=missing)
    before, now = (tuple(_by_seed(metric, side).values()) for side in (baseline, head))
    return equivalence(metric, before, now, margin)


def _missing(metric: str, baseline: BySeed, head: BySeed) -> str:
    """Return why the last values of a metric do not all exist at the same step, or ""."""
    steps = set()
    for side, whose in ((baseline, "the baseline's "), (head, "")):
        for seed, result in side.items():
            point = result.value(metric)
            if point is None:
                return f"is missing at {whose}seed {seed}"
            steps.add(point.step)
    if len(steps) > 1:
        return f"ends at different steps: {', '.join(map(str, sorted(steps)[:5]))}"
    return ""


def _by_seed(metric: str, results: BySeed) -> dict[int, float]:
    points = {seed: result.value(metric) for seed, result in results.items()}
    return {seed: point.value for seed, point in points.items() if point is not None}


def _worst(equivalences: tuple[Equivalence, ...]) -> str:
    """Return why not all metrics are equivalent: the first different one, else undecided one."""
    for agreement in (Agreement.DIFFERENT, Agreement.UNDECIDED):
        for candidate in equivalences:
            if candidate.agreement is agreement:
                return f"{candidate.metric} {candidate.reason or _words(candidate)}"
    return ""


def _words(metric: Equivalence) -> str:
    tested, seeds = metric.tested, metric.head.seeds if metric.head else 0
    if tested is None:
        return "was not tested"
    interval = f"{tested.low:+.3g} to {tested.high:+.3g}"
    if metric.agreement is Agreement.DIFFERENT:
        return f"differs by {interval} over {seeds} seeds, which is outside ±{tested.margin:g}"
    return (
        f"is undecided: over {seeds} seeds it differs by {interval}, across the margin of "
        f"±{tested.margin:g}; {_needed(tested.seeds_needed)}"
    )


def _needed(seeds: int | None) -> str:
    if seeds is None:
        return "more than 1,000 seeds would be needed"
    return f"about {seeds} seeds on each side would decide, if mean and spread stay"


def _ranked(baseline: Mapping[str, BySeed], head: Mapping[str, BySeed], by: Ranking) -> LevelResult:
    asked = Level.SCIENTIFIC
    if any(len(baseline.get(name, {})) < LEAST_SEEDS for name in head):
        what = next(name for name in head if len(baseline.get(name, {})) < LEAST_SEEDS)
        return LevelResult(asked=asked, problem=NO_SEEDS.format(what=f"variant {what}"))
    if by.metric not in _metrics(result for side in head.values() for result in side.values()):
        return LevelResult(
            asked=asked, problem=f"there is no metric {by.metric}, which policy.ranking names"
        )
    for name in head:
        missing = _missing(by.metric, baseline[name], head[name])
        if missing:
            problem = f"{by.metric} of variant {name} {missing}"
            return LevelResult(asked=asked, problem=problem)
    before, now = (
        {name: _by_seed(by.metric, side[name]) for name in head} for side in (baseline, head)
    )
    variants, pairs, problem = ranking(before, now, by.better_is)
    return LevelResult(
        asked=asked, problem=problem, metric=by.metric, variants=variants, pairs=pairs
    )
