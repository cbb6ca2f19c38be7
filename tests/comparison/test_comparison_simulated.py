"""The simulation of tolerances judges as the gate does, and keeps what the documents promise."""

from __future__ import annotations

import numpy as np
import pytest
import tolerance_rates as simulated
from evidence_cases import evidence_of, series_of

from gate.comparison.calibration import calibrate
from gate.comparison.metric_differences import compare_metrics
from gate.comparison.tolerances import tolerance_factor

# thousands of histories in a loop, of which following each line takes twice as much
pytestmark = pytest.mark.no_cover


def test_the_simulation_derives_and_judges_what_the_gate_would() -> None:
    random = np.random.default_rng(1)
    found = simulated.LOSS + simulated.steady(random, (20, 5))
    for name, steps in (("absolute", "every"), ("final, absolute", "final")):
        limits = simulated.FORMS[name](found[:, :3], tolerance_factor(3))
        outside = simulated.judged(limits, found[:, 3], found[:, 4] * 1.02)
        for place, history in enumerate(found.tolist()):
            runs = tuple(evidence_of(values=tuple(run)) for run in history[:3])
            ((one,), _) = calibrate(runs, (steps,), 0.95, ())
            head = tuple(value * 1.02 for value in history[4])
            deltas = compare_metrics(
                (series_of(tuple(history[3])),), (series_of(head),), (one.rule,)
            ).deltas
            # the gate writes two digits, rounded up: it may be wider by a tenth and never narrower
            assert float(limits[place, -1]) <= one.rule.absolute <= float(limits[place, -1]) * 1.11
            judged = deltas[-1:] if steps == "final" else deltas
            if not all(delta.within for delta in judged):
                assert outside[place]


@pytest.mark.parametrize("runs", simulated.RUNS)
def test_noise_of_the_assumed_kind_is_seldom_an_alarm(runs: int) -> None:
    for kind in (simulated.steady, simulated.growing):
        for name, alarms, _ in simulated.rates(kind, runs, 2000):
            assert alarms < 0.02 or name.startswith("control")


def test_the_same_seed_gives_the_same_page() -> None:
    once, again = (list(simulated.rates(simulated.heavy, 3, 50)) for _ in range(2))
    assert once == again
