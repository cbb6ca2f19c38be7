"""Simulate how often a derived tolerance gives a false alarm, and what it misses.

`make bench-tolerances`. Losses are simulated, so that the truth is known. In each of `HISTORIES`
histories, n calibration runs give a tolerance by the rules of `gate.comparison.tolerances`. Then
one baseline and one head with noise of the same kind are judged by it. The result is deterministic
by the seed, and needs only numpy. The docstrings of `steady`, `growing` and `heavy` are printed on
the page.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator

import numpy as np
from measured_processes import processor
from numpy.typing import NDArray
from simulation import print_page

from gate.comparison.calibration import deviations
from gate.comparison.tolerances import CONFIDENCE, COVERAGE, smallest_difference, tolerance_factor

Values = NDArray[np.float64]
HISTORIES = 10_000
SEED = 14
STEPS = 20
RUNS = (3, 5, 10)
RANGES = 4
# the standard deviation of the last loss between runs, relative to that loss
NOISE = 1e-3
REGRESSIONS = (0.01, 0.02, 0.05)
STEP = np.arange(1, STEPS + 1, dtype=np.float64)
LOSS: Values = 2.2 * np.exp(-STEP / 8) + 0.3


def steady(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """Each step is off by itself, by the same part of its loss: a metric over a random batch."""
    return np.asarray(LOSS * NOISE * random.standard_normal((*shape, STEPS)))


def growing(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """A run leaves the others ever faster: rounding errors that a training amplifies."""
    size = LOSS[-1] * NOISE * np.exp((STEP - STEPS) / 3)
    # one draw per run, not per step: a run that is ahead stays ahead
    own = random.standard_normal((*shape, 1))
    return np.asarray(size * own)


def heavy(random: np.random.Generator, shape: tuple[int, ...]) -> Values:
    """As `steady`, but with longer tails: Student's t with 3 degrees of freedom."""
    scale = NOISE / np.sqrt(3)
    return np.asarray(LOSS * scale * random.standard_t(3, (*shape, STEPS)))


KINDS = (steady, growing, heavy)
Form = Callable[[Values, float], Values]


def absolute(runs: Values, factor: float) -> Values:
    """Return one absolute limit for all steps.

    Like every form: `runs` has the shape (histories, runs, steps), the result (histories, steps).
    """
    widest = deviations(runs).max(axis=-1, keepdims=True)
    return np.broadcast_to(smallest_difference(factor, 1.0) * widest, runs[:, 0].shape)


def relative(runs: Values, factor: float) -> Values:
    """Return limits that are the same share of the value at every step."""
    mean = np.abs(runs.mean(axis=1))
    widest = (deviations(runs) / mean).max(axis=-1, keepdims=True)
    limits: Values = smallest_difference(factor, 1.0) * widest * mean
    return limits


def ulp(runs: Values, factor: float) -> Values:
    """Return limits of the same number of units in the last place (float32) at every step."""
    unit = _unit(runs.mean(axis=1))
    widest = (deviations(runs) / unit).max(axis=-1, keepdims=True)
    limits: Values = np.ceil(smallest_difference(factor, 1.0) * widest) * unit
    return limits


def ranges(runs: Values, factor: float) -> Values:
    """Return a separate absolute limit for each of `RANGES` ranges of steps."""
    parts = np.split(deviations(runs), RANGES, axis=-1)
    limits = [np.broadcast_to(part.max(axis=-1, keepdims=True), part.shape) for part in parts]
    return smallest_difference(factor, 1.0) * np.concatenate(limits, axis=-1)


def final(runs: Values, factor: float) -> Values:
    """Return an absolute limit for the last step, and infinity for all others."""
    limits = np.full(runs[:, 0].shape, np.inf)
    limits[:, -1] = smallest_difference(factor, 1.0) * deviations(runs)[:, -1]
    return limits


def largest_gap(runs: Values, factor: float) -> Values:
    """Return the largest difference between the calibration runs, ignoring `factor`.

    This is the control: the naive tolerance that the others are compared with.
    """
    del factor
    gaps = (runs.max(axis=1) - runs.min(axis=1)).max(axis=-1, keepdims=True)
    return np.broadcast_to(gaps, runs[:, 0].shape)


FORMS: dict[str, Form] = {
    "absolute": absolute,
    "relative": relative,
    "ulp": ulp,
    f"{RANGES} ranges, absolute": ranges,
    "final, absolute": final,
    "control: largest gap seen": largest_gap,
}


def _unit(values: Values) -> Values:
    return np.spacing(np.abs(values).astype(np.float32)).astype(np.float64)


def judged(limits: Values, baseline: Values, head: Values) -> NDArray[np.bool_]:
    """Return for each history whether the head is outside its limits at any step."""
    return np.asarray((np.abs(head - baseline) > limits).any(axis=-1))


def rates(
    kind: Callable[..., Values], runs: int, histories: int
) -> Iterator[tuple[str, float, tuple[float, ...]]]:
    """Return for each form the share of false alarms, and of misses for each regression."""
    # a random stream for each row of the table, so that adding a row does not change the others
    random = np.random.default_rng((SEED, KINDS.index(kind), runs))
    found = LOSS + kind(random, (histories, runs + 2))
    calibration, baseline, head = found[:, :runs], found[:, runs], found[:, runs + 1]
    for name, form in FORMS.items():
        limits = form(calibration, tolerance_factor(runs))
        alarms = float(judged(limits, baseline, head).mean())
        missed = tuple(
            1 - float(judged(limits, baseline, head * (1 + size)).mean()) for size in REGRESSIONS
        )
        yield name, alarms, missed


def page(histories: int) -> Iterator[str]:
    """Return the page, line by line as it is simulated."""
    begun = time.perf_counter()
    yield "# False alarms and misses of derived tolerances, simulated\n"
    yield (
        f"Written by `make bench-tolerances`: {histories:,} noise histories for each row, seed "
        f"{SEED}. {time.strftime('%Y-%m-%d')}, {processor()}, Python {platform.python_version()}, "
        f"numpy {np.__version__}.\n"
    )
    yield (
        f"Each history: n runs of {STEPS} steps give a tolerance with k(n) for "
        f"{COVERAGE * 100:g} % of runs at {CONFIDENCE * 100:g} % confidence; then a baseline and a "
        "head with the same noise are compared at every step. A false alarm is a head without any "
        "change that is outside. A miss is a head whose loss is higher by that much at every step, "
        f"and inside. The last loss varies by {NOISE * 100:g} % (one standard deviation). With "
        "10,000 histories a rate is known to within 1 percentage point.\n"
    )
    sizes = " | ".join(f"{size * 100:g} % missed" for size in REGRESSIONS)
    for kind in KINDS:
        yield f"## {kind.__name__.capitalize()} noise\n\n{(kind.__doc__ or '').strip()}\n"
        yield f"| tolerance | n | k(n) | false alarms | {sizes} |"
        yield "|---|---|---|---|" + "---|" * len(REGRESSIONS)
        for runs in RUNS:
            for name, alarms, missed in rates(kind, runs, histories):
                shown = " | ".join(f"{share * 100:.1f} %" for share in missed)
                factor = "" if name.startswith("control") else f"{tolerance_factor(runs):.2f}"
                yield f"| {name} | {runs} | {factor} | {alarms * 100:.1f} % | {shown} |"
        yield ""
    yield f"Simulated in {time.perf_counter() - begun:.0f} s."


if __name__ == "__main__":
    print_page(__doc__, HISTORIES, page)
