"""Simulate how often equivalence over seeds gives a false alarm, and how often it misses.

`make bench-equivalence`. Last values are simulated, so that the truth is known. In each of
`HISTORIES` histories, n seeds of a baseline and n of a head are judged by the rules of
`gate.comparison.statistical_tests`. The result is deterministic by the seed, and needs only numpy.
The docstrings of `normal` and `skewed` are printed on the page.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from measured_processes import processor
from numpy.typing import NDArray
from simulation import print_page

from gate.comparison.level_records import ALPHA
from gate.comparison.statistical_tests import t_quantile

Values = NDArray[np.float64]
HISTORIES = 10_000
SEED = 14
SEEDS = (3, 5, 10, 20)
# in standard deviations of the last value between seeds
MARGINS = (1.0, 2.0, 4.0)
# shifts of the head's mean, in margins; from 1 on the head is not equivalent in truth
SHIFTS = (0.0, 0.5, 1.0, 1.5, 2.0)


def normal(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """The last value of a metric scatters normally between seeds, alike on both sides."""
    return np.asarray(random.standard_normal(shape))


def skewed(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """A few seeds end far above the others: the logarithm of the value is normal (sigma 0.75)."""
    sigma = 0.75
    values = np.exp(sigma * random.standard_normal(shape))
    middle = math.exp(sigma**2 / 2)
    return np.asarray((values - middle) / (middle * math.sqrt(math.exp(sigma**2) - 1)))


KINDS: tuple[Callable[[np.random.Generator, tuple[int, ...]], Values], ...] = (normal, skewed)


@cache
def _quantile(freedom: float) -> float:
    return t_quantile(1 - ALPHA, freedom)


def judged(baseline: Values, head: Values, margin: float) -> tuple[float, float]:
    """Return the shares of histories that are judged equivalent and different.

    `baseline` and `head` have the shape (histories, seeds).
    """
    seeds = baseline.shape[1]
    one, other = (side.var(axis=1, ddof=1) / seeds for side in (baseline, head))
    error = np.sqrt(one + other)
    freedom = (seeds - 1) * (one + other) ** 2 / (one**2 + other**2)
    # Degrees of freedom are rounded to a hundredth, so that the cache of quantiles gets hits: ten
    # thousand histories then take a second.
    reach = np.array([_quantile(round(value, 2)) for value in freedom]) * error
    difference = head.mean(axis=1) - baseline.mean(axis=1)
    equivalent = np.abs(difference) + reach < margin
    different = np.abs(difference) - reach > margin
    return float(equivalent.mean()), float(different.mean())


def rates(
    kind: Callable[[np.random.Generator, tuple[int, ...]], Values], seeds: int, histories: int
) -> Iterator[tuple[float, float, float, float]]:
    """Return margin, shift, and the shares that are judged equivalent and different."""
    # a random stream for each n, so that adding a row does not change the others
    random = np.random.default_rng((SEED, KINDS.index(kind), seeds))
    baseline, head = kind(random, (2, histories, seeds))
    for margin in MARGINS:
        for shift in SHIFTS:
            yield margin, shift, *judged(baseline, head + shift * margin, margin)


def page(histories: int) -> Iterator[str]:
    """Return the page, line by line as it is simulated."""
    begun = time.perf_counter()
    yield "# False alarms and misses of equivalence over seeds, simulated\n"
    yield (
        f"Written by `make bench-equivalence`: {histories:,} histories for each row, seed {SEED}. "
        f"{time.strftime('%Y-%m-%d')}, {processor()}, Python {platform.python_version()}, numpy "
        f"{np.__version__}.\n"
    )
    yield (
        "Each history: n seeds of a baseline and n of a head, judged by two one-sided tests at "
        f"alpha {ALPHA:g}. Margins are in standard deviations (s) of the last value between seeds, "
        "shifts of the head's mean in margins. *False alarms*: a head without any shift that is "
        "not shown to be equivalent (nearly always undecided: more seeds are needed). *Passes* "
        "with a shift of a whole margin or more are misses, and should be 5 % or less. *Told as "
        "different*: shown to lie outside the margin. With 10,000 histories a rate is known to "
        "within 1 percentage point.\n"
    )
    shifted = " | ".join(f"passes, shift {shift:g}" for shift in SHIFTS[1:])
    for kind in KINDS:
        yield f"## {kind.__name__.capitalize()} values\n\n{(kind.__doc__ or '').strip()}\n"
        yield f"| margin | n | false alarms | {shifted} | told as different, shift 2 |"
        yield "|---|---|---|" + "---|" * len(SHIFTS)
        found = {seeds: list(rates(kind, seeds, histories)) for seeds in SEEDS}
        for margin in MARGINS:
            for seeds in SEEDS:
                (_, _, none, _), *others = (row for row in found[seeds] if row[0] == margin)
                passes = " | ".join(f"{row[2] * 100:.1f} %" for row in others)
                different = f"{others[-1][3] * 100:.1f} %"
                alarms = f"{(1 - none) * 100:.1f} %"
                yield f"| {margin:g} s | {seeds} | {alarms} | {passes} | {different} |"
        yield ""
    yield f"Simulated in {time.perf_counter() - begun:.0f} s."


if __name__ == "__main__":
    print_page(__doc__, HISTORIES, page)
