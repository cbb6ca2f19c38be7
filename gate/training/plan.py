"""Which runs, in which order: strict and default interleaved, so that drift of speed hits both.

Even rounds run backwards. A speed that drifts over the hours then favours no arm, and the two
default runs of a round are its control: whatever lies between them is the machine's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gate.settings.gate_settings import GateSettings, TrainSettings
from gate.settings.knobs import (
    ALL_KNOBS,
    GPU_KNOBS,
    NO_KNOBS,
    STRICT_KNOBS,
    KnobSet,
    PricedKnob,
    strict_knobs,
)
from gate.settings.levels import Level
from gate.settings.train_sections import ResumeSettings
from gate.settings.variations import GPU_INDEX, HASH_SEED, HASH_SEED_VARIABLE, KillPoint, Variation
from gate.training.runs import (
    BASE_HERE,
    CarriedCheckpoint,
    Commit,
    PlannedRun,
    Preemption,
    RunMode,
    TraceWindow,
    Trial,
    Varied,
    label_of,
)

SEED_WORD = "{seed}"


def plan_gate(repeats: int, *, priced: bool) -> tuple[PlannedRun, ...]:
    """The runs of a gate call: strict, default, default, strict, and the other repeats.

    A drift of speed cancels out in the first four, and only those are timed. Only a call that is
    `priced` makes default runs.
    """
    default = (_run(RunMode.DEFAULT, 1), _run(RunMode.DEFAULT, 2)) if priced else ()
    first, *further = (_run(RunMode.STRICT, number) for number in range(1, repeats + 1))
    return (first, *default, *further)


def plan_record(repeats: int) -> tuple[PlannedRun, ...]:
    """The runs that a baseline is recorded from, which must be equal."""
    return plan_gate(repeats, priced=False)


def plan_base(environment: Commit = Commit.HEAD) -> tuple[PlannedRun, ...]:
    """The base commit twice on this machine: their difference is the machine's own."""
    runs = _run(RunMode.STRICT, 1, Commit.BASE), _run(RunMode.STRICT, 2, Commit.BASE)
    return tuple(replace(run, environment=environment) for run in runs)


def plan_base_here() -> PlannedRun:
    """The base commit in the environment that the change brings: is it that, or the code?"""
    return PlannedRun(label=BASE_HERE, mode=RunMode.STRICT, commit=Commit.BASE)


def plan_compare(rounds: int) -> tuple[PlannedRun, ...]:
    """Base and head beside each other in both modes, once a round; every other round backwards.

    Over two rounds base and head go first equally often in each mode: a drift of the machine that
    is linear in time adds the same to both. Default runs are for times: nothing observes them.
    """
    row = (
        (Commit.BASE, RunMode.STRICT),
        (Commit.HEAD, RunMode.STRICT),
        (Commit.HEAD, RunMode.DEFAULT),
        (Commit.BASE, RunMode.DEFAULT),
    )
    return tuple(
        PlannedRun(
            label=label_of(mode, number, commit),
            mode=mode,
            commit=commit,
            observe=mode is RunMode.STRICT,
        )
        for number in range(1, rounds + 1)
        for commit, mode in (row if number % 2 else reversed(row))
    )


def plan_operator_audit() -> PlannedRun:
    """One more run that counts operators and is never judged."""
    return _run(RunMode.AUDIT, 1)


def plan_trace(
    label: str, window: TraceWindow, commit: Commit = Commit.HEAD, environment: Commit = Commit.HEAD
) -> PlannedRun:
    """A strict run that ends after a window of steps and traces its operator calls."""
    return PlannedRun(
        label=label, mode=RunMode.STRICT, commit=commit, environment=environment, traced=window
    )


def plan_shaken(
    variation: Variation, settings: GateSettings, cards: tuple[str, ...], max_seconds: float
) -> PlannedRun:
    """A strict run in which one thing is another; `cards` are the GPUs as other runs have them."""
    variables = variation.variables
    if variation.name == HASH_SEED:
        # that of all other runs is the training's seed
        variables = ((HASH_SEED_VARIABLE, "2" if settings.train.seed == 1 else "1"),)
    if variation.name == GPU_INDEX:
        # each rank gets the card of the next one: the same cards, under other numbers
        variables = (("CUDA_VISIBLE_DEVICES", ",".join((*cards[1:], *cards[:1]))),)
    varied = Varied(variation=variation, variables=variables, max_seconds=max_seconds)
    return PlannedRun(label=f"shaken-{variation.name}", mode=RunMode.STRICT, varied=varied)


def plan_interrupted(resume: ResumeSettings) -> PlannedRun:
    """A strict run that is ended as a preemption does it."""
    mode = RunMode.INTERRUPTED
    preemption = Preemption(step=resume.at_step, checkpoint=resume.checkpoint)
    return PlannedRun(label=label_of(mode, 1), mode=mode, preemption=preemption)


def plan_killed(resume: ResumeSettings) -> tuple[PlannedRun, ...]:
    """Runs that are ended inside the write of the checkpoint; only what they leave is looked at."""
    return tuple(
        PlannedRun(
            label=f"killed-{point}",
            mode=RunMode.INTERRUPTED,
            observe=False,
            preemption=Preemption(step=resume.at_step, checkpoint=resume.checkpoint, inside=point),
        )
        for point in KillPoint
    )


def plan_resumed(
    resume: ResumeSettings, carried: CarriedCheckpoint, train: TrainSettings
) -> PlannedRun:
    """A strict run of all that the interrupted one left to do, from its checkpoint alone."""
    mode = RunMode.RESUMED
    return PlannedRun(
        label=label_of(mode, 1),
        mode=mode,
        command=resume.command,
        max_steps=train.max_steps - carried.step,
        carried=carried,
    )


def plan_trial(number: int, trial: Trial) -> PlannedRun:
    """A strict run of the commit under test with one setting moved."""
    name = trial.knob.replace("_", "-") or trial.setting.value
    return PlannedRun(label=f"tried-{name}-{number}"[:40], mode=RunMode.STRICT, trial=trial)


def plan_seeds(settings: GateSettings) -> tuple[PlannedRun, ...]:
    """The strict runs of further seeds that the policy's level is judged by; none at other levels.

    train.seed itself is that of the first strict run. Of variants each is run with every seed: one
    seed after the other, so that a call that is cancelled has not compared some of them alone.
    """
    if settings.policy.level is Level.STATISTICAL:
        further = (seed for seed in settings.seeds if seed != settings.train.seed)
        return tuple(
            PlannedRun(label=f"seed-{seed}", mode=RunMode.STRICT, seed=seed) for seed in further
        )
    if settings.policy.level is not Level.SCIENTIFIC:
        return ()
    return tuple(
        PlannedRun(
            label=seed_label(name, seed),
            mode=RunMode.STRICT,
            seed=seed,
            command=variant.command or (*settings.train.command, *(variant.arguments or ())),
            variant=name,
        )
        for seed in settings.seeds
        for name, variant in settings.variants.items()
    )


def plan_study(
    arms: Mapping[str, tuple[str, ...]], seeds: Sequence[int], mode: RunMode
) -> tuple[PlannedRun, ...]:
    """Each arm with each seed, observed for nothing but loss, time, memory and end state.

    The arms of one seed stand beside each other, and every other seed runs backwards: a drift of
    the machine that is linear in time adds the same to all.
    """
    return tuple(
        PlannedRun(
            label=seed_label(name, seed),
            mode=mode,
            observe=False,
            seed=seed,
            command=arms[name],
            variant=name if len(arms) > 1 else "",
        )
        for number, seed in enumerate(seeds)
        for name in (reversed(tuple(arms)) if number % 2 else tuple(arms))
    )


def seed_label(variant: str, seed: int) -> str:
    """The name of a variant's run with a seed; 40 characters at most."""
    return f"{variant}-seed-{seed}"


def training_of(planned: PlannedRun, train: TrainSettings) -> TrainSettings:
    """The training as one run starts it: with its own seed, steps and command, `{seed}` filled in.

    A plain replacement of that word: nothing else in the command has a meaning.
    """
    seed = train.seed if planned.seed is None else planned.seed
    command = train.command if planned.command is None else planned.command
    words = tuple(word.replace(SEED_WORD, str(seed)) for word in command)
    steps = train.max_steps if planned.max_steps is None else planned.max_steps
    return train.model_copy(update={"seed": seed, "command": words, "max_steps": steps})


def _run(mode: RunMode, number: int, commit: Commit = Commit.HEAD) -> PlannedRun:
    return PlannedRun(label=label_of(mode, number, commit), mode=mode, commit=commit)


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


def plan_noise(runs: int, command: tuple[str, ...] | None = None) -> tuple[PlannedRun, ...]:
    """Reruns of the default mode that keep their values, by `command` where one is given."""
    return tuple(
        PlannedRun(
            label=label_of(RunMode.DEFAULT, number),
            mode=RunMode.DEFAULT,
            keep_values=True,
            command=command,
        )
        for number in range(1, runs + 1)
    )


def _label(arm: str, number: int) -> str:
    return f"{arm}-r{number}"
