"""Which fingerprints are observed at which step, so that observing stays within its budget.

Fingerprints form three groups with a sampling interval each, always a power of two: a group is
observed at steps 1, 1 + n, 1 + 2 n, ... for an interval of n steps, and at the last step that
the gate asked for. Sampling intervals are nested: of two runs with different sampling intervals the
sparser one's steps are all among the other's, so there is always something to compare, and the
first and the last step always are.

Time decides, and time is never twice the same; so every run calibrates for itself and two runs may
observe different steps: the gate compares what both observed. No run is handed another one's
sampling intervals, since a number that one run chose would be a word to the next. A run observes
the first steps (as long as they took less than `CALIBRATION_SECONDS` together, the first left out:
its cost, with cold caches and what a device loads at first use, says nothing of the next), and at
steps 2, 4, 8, ... it takes the smallest sampling intervals for which

    seconds of an observation * observations / steps <= budget / 2 * seconds of a step

The other half of the budget is for what comes once and for the first `FIRST_STEPS` steps, where
most divergences begin: they are all observed, as far as that half or the free seconds go. A run of
fewer than `LONG_STEPS` steps may spend its free seconds on any of them: a smoke training is short,
and what it could have told is worth more than a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

RANDOM: Final = "random"
BATCH: Final = "batch"
TENSORS: Final = "tensors"
GROUPS: Final = (RANDOM, BATCH, TENSORS)
CALIBRATION_STEPS: Final = 3
CALIBRATION_SECONDS: Final = 0.02
# On the host. Where a device works, they would leave no step of a short run alone.
FIRST_STEPS: Final = 10
LONG_STEPS: Final = 100
# of the budget, for what is observed all the way
STEADY_SHARE: Final = 0.5
# of that, for random states and batches each: they explain less than tensors do
SMALL_SHARE: Final = 0.5
# recent steps alone, so that a training that becomes slower is measured anew; odd for the median
REMEMBERED: Final = 33
LEAST_ON_A_DEVICE: Final = 4


class Schedule:
    """The groups' sampling intervals; `budget` is the part of a step that observing may take.

    `free_seconds` may be spent on observing in a whole run, whatever its steps take.
    """

    def __init__(
        self,
        budget: float,
        last_step: int,
        free_seconds: float = 0.0,
    ) -> None:
        self.sampling_intervals = dict.fromkeys(GROUPS, 1)
        self._budget = budget
        self._free_seconds = free_seconds / last_step if last_step < LONG_STEPS else 0.0
        self._free_in_all = self._first_seconds = free_seconds
        self._calibration_seconds = max(CALIBRATION_SECONDS, free_seconds / 4)
        self._last_step = last_step
        self._costs: dict[str, deque[float]] = {group: deque(maxlen=REMEMBERED) for group in GROUPS}
        self._always: deque[float] = deque(maxlen=REMEMBERED)
        self._steps: deque[float] = deque(maxlen=REMEMBERED)
        self._calibrated = 0.0
        self._decided = False
        self._least = 1

    def leave_steps_alone(self) -> None:
        """Observe each fourth step at most, once the sampling intervals are chosen.

        Where a device works beside the host, what observing delays a step by cannot be told, so
        there must be steps whose time nothing disturbs: neither they nor those before are observed.
        """
        self._least = LEAST_ON_A_DEVICE

    def due(self, group: str, step: int) -> bool:
        """Whether the group is observed at this step."""
        if step in (1, self._last_step):
            # whatever each run decides for itself, two runs share these
            return True
        if not self._decided:
            # while costs are measured every step is observed, unless that alone becomes too much
            return self._calibrated < self._calibration_seconds
        if step <= FIRST_STEPS and self._least == 1:
            expected = self._calibrated + _median(self._costs[group])
            if expected <= self._first_seconds:
                return True
        # counted from step 1, where powers of two nest: the sparser run's steps are all shared
        return (step - 1) % self.sampling_intervals[group] == 0

    def close_step(
        self,
        step: int,
        step_seconds: float | None,
        observe_seconds: float,
        group_seconds: Mapping[str, float],
    ) -> None:
        """Note a step, what observing it took in all and by group; decide at powers of two.

        It may come while the next step is under way already, as a device's times do.
        """
        if step == 1:
            # it filled caches and loaded kernels: its cost would thin out all that follow
            return
        if step_seconds is not None:
            self._steps.append(step_seconds)
        spent = sum(group_seconds.values())
        # what no interval can avoid: structure, copies to the host, the step's own line
        self._always.append(observe_seconds - spent)
        for group, seconds in group_seconds.items():
            self._costs[group].append(seconds)
        self._calibrated += spent
        calibrating = not self._decided and step < CALIBRATION_STEPS
        if calibrating and self._calibrated < self._calibration_seconds:
            return
        # often while little is known, hardly ever later: deciding at every step would follow the
        # noise of the clock
        power_of_two = step & (step - 1) == 0
        if self._steps and (power_of_two or not self._decided):
            self._decide()

    def _decide(self) -> None:
        budget = self._budget * _median(self._steps)
        allowance = max(STEADY_SHARE * budget, self._free_seconds)
        rest = (1 - STEADY_SHARE) * budget * self._last_step
        self._first_seconds = max(self._free_in_all, rest)
        left = allowance - _median(self._always)
        # the cheap groups first, each within its share; tensors take all that they leave
        for group in (RANDOM, BATCH):
            cost = _median(self._costs[group])
            sampling_interval = self._smallest(cost, min(left, allowance * SMALL_SHARE))
            self.sampling_intervals[group] = sampling_interval
            left -= cost * self._observations(sampling_interval) / self._last_step
        self.sampling_intervals[TENSORS] = self._smallest(_median(self._costs[TENSORS]), left)
        self._decided = True

    def _smallest(self, cost: float, allowance: float) -> int:
        """The smallest interval with which the cost stays within the allowance, both a step."""
        sampling_interval = self._least
        # one as long as the training itself still leaves its first and last step
        while sampling_interval < self._last_step:
            if cost * self._observations(sampling_interval) / self._last_step <= allowance:
                break
            sampling_interval *= 2
        return sampling_interval

    def _observations(self, sampling_interval: int) -> int:
        regular = (self._last_step - 1) // sampling_interval + 1
        # the last step is observed even where the interval does not meet it
        return regular + ((self._last_step - 1) % sampling_interval != 0)


def _median(values: deque[float]) -> float:
    # not the mean: one step that waited for a disk would count as much as all others
    return sorted(values)[len(values) // 2] if values else 0.0
