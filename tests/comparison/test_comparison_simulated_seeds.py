"""The simulation of equivalence judges as the gate does, and keeps what the documents promise."""

from __future__ import annotations

import equivalence_rates as simulated
import numpy as np
import pytest

from gate.comparison.level_records import Agreement
from gate.comparison.statistical_tests import equivalence
from gate.settings.levels import Margin

# thousands of histories in a loop, of which following each line takes twice as much
pytestmark = pytest.mark.no_cover


def test_the_simulation_judges_as_the_gate_would() -> None:
    random = np.random.default_rng(1)
    baseline, head = simulated.normal(random, (2, 40, 5))
    found = [
        equivalence("loss", one, other, Margin(absolute=1.5)).agreement
        for one, other in zip(baseline.tolist(), (head + 0.5).tolist(), strict=True)
    ]
    shares = tuple(
        found.count(agreement) / len(found)
        for agreement in (Agreement.EQUIVALENT, Agreement.DIFFERENT)
    )
    assert simulated.judged(baseline, head + 0.5, 1.5) == pytest.approx(shares)


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_a_shift_of_the_whole_margin_passes_in_one_of_twenty_at_most(seeds: int) -> None:
    for _, shift, equivalent, _ in simulated.rates(simulated.normal, seeds, 2000):
        if shift >= 1:
            # alpha, and what 2,000 histories leave open
            assert equivalent < 0.065


def test_the_same_seed_gives_the_same_page() -> None:
    once, again = (list(simulated.rates(simulated.skewed, 3, 50)) for _ in range(2))
    assert once == again
