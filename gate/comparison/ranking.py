"""Whether variants of a training rank as they did: paired over seeds, by a one-sided t test.

Neighbours of the baseline's ranking that it separates at alpha have to be separated again, in the
same order. Two variants that it does not separate may come either way. (Student, The probable error
of a mean, Biometrika 6, 1908.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations, pairwise

from gate.comparison.level_records import ALPHA, PairState, RankedPair, RankedVariant
from gate.comparison.statistical_tests import sample_of
from gate.comparison.student import upper_share
from gate.settings.levels import LEAST_SEEDS
from gate.settings.tolerances import Direction

# a metric by seed, of each variant
Values = Mapping[str, Mapping[int, float]]
Ranked = tuple[tuple[RankedVariant, ...], tuple[RankedPair, ...], str]


def ranking(baseline: Values, head: Values, better_is: Direction) -> Ranked:
    """Variants in the baseline's order, its neighbouring pairs, and why the ranking does not hold.

    The last is empty where it holds. Every variant has a finite value for at least three seeds on
    each side.
    """
    sign = 1.0 if better_is is Direction.HIGHER else -1.0
    samples = {
        name: (sample_of([*baseline[name].values()]), sample_of([*head[name].values()]))
        for name in baseline
    }
    variants = tuple(
        RankedVariant(name=name, baseline=expected, head=observed)
        for name, (expected, observed) in samples.items()
        if expected is not None and observed is not None
    )
    if len(variants) < len(baseline):
        return (), (), "the values are too large to be told apart"
    ordered = tuple(sorted(variants, key=lambda one: (-sign * one.baseline.mean, one.name)))
    pairs = tuple(_pair(one, other, (baseline, head), sign) for one, other in pairwise(ordered))
    return ordered, pairs, _problem(ordered, pairs, baseline, sign)


def _pair(
    better: RankedVariant, worse: RankedVariant, sides: tuple[Values, Values], sign: float
) -> RankedPair:
    before, now = (leads(side[better.name], side[worse.name], sign) for side in sides)
    if before >= ALPHA:
        state = PairState.OPEN
    elif sign * (better.head.mean - worse.head.mean) <= 0:
        state = PairState.SWAPPED
    else:
        state = PairState.HELD if now < ALPHA else PairState.NOT_SEPARATED
    return RankedPair(
        better=better.name, worse=worse.name, state=state, baseline_p=before, head_p=now
    )


def leads(better: Mapping[int, float], worse: Mapping[int, float], sign: float) -> float:
    """The p of a one-sided t test, paired over the seeds that both have, that the first is better.

    Differences that are all the same and not zero have none of their spread left to chance: 0.
    """
    common = sorted(better.keys() & worse.keys())
    differences = [sign * (better[seed] - worse[seed]) for seed in common]
    if len(differences) < LEAST_SEEDS or not all(map(math.isfinite, differences)):
        return 1.0
    found = sample_of(differences)
    if found is None:
        return 1.0
    if not found.deviation:
        return 0.0 if found.mean > 0 else 1.0
    return upper_share(found.mean / found.deviation * math.sqrt(found.seeds), found.seeds - 1)


def _problem(
    ordered: tuple[RankedVariant, ...],
    pairs: tuple[RankedPair, ...],
    baseline: Values,
    sign: float,
) -> str:
    if all(pair.state is PairState.OPEN for pair in pairs):
        return "the baseline separates no two neighbours of its ranking, so there is none to hold"
    # not only neighbours: a leader must not fall behind the last past a pair that is open
    for one, other in combinations(ordered, 2):
        behind = sign * (one.head.mean - other.head.mean) <= 0
        if behind and leads(baseline[one.name], baseline[other.name], sign) < ALPHA:
            return f"{other.name} is no longer behind {one.name}"
    weak = next((pair for pair in pairs if pair.state is PairState.NOT_SEPARATED), None)
    if weak is None:
        return ""
    return (
        f"{weak.better} leads {weak.worse}, but these seeds do not show it (p = {weak.head_p:.2g}, "
        f"the baseline's is {weak.baseline_p:.2g})"
    )
