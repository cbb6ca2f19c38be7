"""Which runs price determinism, in which order: every arm once a round, the default at both ends.

Even rounds run backwards. A speed that drifts over the hours then favours no arm, and the two
default runs of a round are its control: whatever lies between them is the machine's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from gate.settings.priced_knobs import (
    ALL_KNOBS,
    GPU_KNOBS,
    NO_KNOBS,
    STRICT_KNOBS,
    KnobSet,
    PricedKnob,
    strict_knobs,
)
from gate.training.runs import PlannedRun, RunMode, label_of

DEFAULT_A = "default-a"
DEFAULT_B = "default-b"
STRICT = "strict"
STRICT_FILL = "strict-fill"


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """What is run once a round, observers off; no knobs is the default mode."""

    name: str
    knobs: KnobSet

    def run(self, label: str) -> PlannedRun:
        """A run of this arm."""
        mode = RunMode.STRICT if self.knobs else RunMode.DEFAULT
        return PlannedRun(label=label, mode=mode, knobs=self.knobs, observe=False)


def first_run() -> PlannedRun:
    """The first run of every plan: it shows which device the training uses."""
    return Arm(name=DEFAULT_A, knobs=NO_KNOBS).run(_label(DEFAULT_A, 1))


def judged_arm(*, fill: bool) -> str:
    """The arm that runs as the gate's own strict runs do."""
    return STRICT_FILL if fill else STRICT


def without(knob: PricedKnob) -> str:
    """The name of the arm that lacks one knob."""
    return f"without-{knob.value.replace('_', '-')}"


def applicable_knobs(*, on_gpu: bool) -> tuple[PricedKnob, ...]:
    """The knobs of strict mode that can matter where the training runs."""
    return tuple(
        knob for knob in PricedKnob if knob in STRICT_KNOBS and (on_gpu or knob not in GPU_KNOBS)
    )


def cost_arms(*, fill: bool, toggled: tuple[PricedKnob, ...]) -> tuple[Arm, ...]:
    """The arms of one round in their order; `toggled` are the knobs that get an arm without them.

    Filling new memory needs none: the arms with and without it are always there.
    """
    whole = strict_knobs(fill=fill)
    return (
        Arm(name=DEFAULT_A, knobs=NO_KNOBS),
        Arm(name=STRICT, knobs=STRICT_KNOBS),
        Arm(name=STRICT_FILL, knobs=ALL_KNOBS),
        *(Arm(name=without(knob), knobs=whole - {knob}) for knob in toggled),
        Arm(name=DEFAULT_B, knobs=NO_KNOBS),
    )


def plan_rounds(arms: tuple[Arm, ...], rounds: int) -> tuple[tuple[str, PlannedRun], ...]:
    """Every run with the name of its arm, in the order in which they are made."""
    return tuple(
        (arm.name, arm.run(_label(arm.name, number)))
        for number in range(1, rounds + 1)
        # there and back: a drift that is linear in time adds the same to every arm
        for arm in (arms if number % 2 else reversed(arms))
    )


def plan_noise(runs: int) -> tuple[PlannedRun, ...]:
    """Reruns of the default mode that keep their values."""
    return tuple(
        PlannedRun(label=label_of(RunMode.DEFAULT, number), mode=RunMode.DEFAULT, keep_values=True)
        for number in range(1, runs + 1)
    )


def _label(arm: str, number: int) -> str:
    return f"{arm}-r{number}"
