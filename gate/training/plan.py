"""Plans which runs a call makes, in which order; strict and default runs are interleaved.

The order makes a drift of the machine's speed affect both modes alike. Even rounds run backwards,
so a drift over hours favours no arm. The two default runs of a round are its control: their
difference comes from the machine alone.
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
    Interruption,
    PlannedRun,
    RunMode,
    TraceWindow,
    Trial,
    Varied,
    label_of,
)

SEED_WORD = "{seed}"


def plan_gate(repeats: int, *, priced: bool) -> tuple[PlannedRun, ...]:
    """Return the runs of a gate call: strict, default, default, strict, then the other repeats.

    In this order a drift of speed cancels out over the first four, and only those are timed. Only a
    `priced` call makes default runs.
    """
    default = (_run(RunMode.DEFAULT, 1), _run(RunMode.DEFAULT, 2)) if priced else ()
    first, *further = (_run(RunMode.STRICT, number) for number in range(1, repeats + 1))
    return (first, *default, *further)


def plan_record(repeats: int) -> tuple[PlannedRun, ...]:
    """Return the runs from which a baseline is recorded; they must be equal."""
    return plan_gate(repeats, priced=False)


def plan_base(environment: Commit = Commit.HEAD) -> tuple[PlannedRun, ...]:
    """Return two runs of the base commit; their difference comes from the machine alone."""
    runs = _run(RunMode.STRICT, 1, Commit.BASE), _run(RunMode.STRICT, 2, Commit.BASE)
    return tuple(replace(run, environment=environment) for run in runs)


def plan_base_here() -> PlannedRun:
    """Return a run of the base commit in the environment that the change under test installs.

    It shows whether a different result comes from that environment or from the code.
    """
    return PlannedRun(label=BASE_HERE, mode=RunMode.STRICT, commit=Commit.BASE)


def plan_compare(rounds: int) -> tuple[PlannedRun, ...]:
    """Return runs of base and head in both modes, once a round; every other round runs backwards.

    Over two rounds base and head go first equally often in each mode. A drift of the machine that
    is linear in time then adds the same to both. Default runs are timed, so nothing observes them.
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
    """Return one more run, which counts operators and is never judged."""
    return _run(RunMode.AUDIT, 1)


def plan_trace(
    label: str, window: TraceWindow, commit: Commit = Commit.HEAD, environment: Commit = Commit.HEAD
) -> PlannedRun:
    """Return a strict run that traces its operator calls and ends after a window of steps."""
    return PlannedRun(
        label=label, mode=RunMode.STRICT, commit=commit, environment=environment, traced=window
    )


def plan_shaken(
    variation: Variation, settings: GateSettings, cards: tuple[str, ...], max_seconds: float
) -> PlannedRun:
    """Return a strict run with one variation; `cards` are the GPUs as other runs see them."""
    variables = variation.variables
    if variation.name == HASH_SEED:
        # all other runs use the training's seed as hash seed, so take another number
        variables = ((HASH_SEED_VARIABLE, "2" if settings.train.seed == 1 else "1"),)
    if variation.name == GPU_INDEX:
        # each rank gets the card of the next rank: the same cards under different numbers
        variables = (("CUDA_VISIBLE_DEVICES", ",".join((*cards[1:], *cards[:1]))),)
    varied = Varied(variation=variation, variables=variables, max_seconds=max_seconds)
    return PlannedRun(label=f"shaken-{variation.name}", mode=RunMode.STRICT, varied=varied)


def plan_interrupted(resume: ResumeSettings) -> PlannedRun:
    """Return a strict run that is interrupted as by a preemption."""
    mode = RunMode.INTERRUPTED
    preemption = Interruption(step=resume.at_step, checkpoint=resume.checkpoint)
    return PlannedRun(label=label_of(mode, 1), mode=mode, preemption=preemption)


def plan_killed(resume: ResumeSettings) -> tuple[PlannedRun, ...]:
    """Return runs that are killed while they write the checkpoint.

    Only the files that they leave are examined.
    """
    return tuple(
        PlannedRun(
            label=f"killed-{point}",
            mode=RunMode.INTERRUPTED,
            observe=False,
            preemption=Interruption(
                step=resume.at_step, checkpoint=resume.checkpoint, inside=point
            ),
        )
        for point in KillPoint
    )


def plan_resumed(
    resume: ResumeSettings, carried: CarriedCheckpoint, train: TrainSettings
) -> PlannedRun:
    """Return a strict run that does the rest of an interrupted run, from its checkpoint alone."""
    mode = RunMode.RESUMED
    return PlannedRun(
        label=label_of(mode, 1),
        mode=mode,
        command=resume.command,
        max_steps=train.max_steps - carried.step,
        carried=carried,
    )


def plan_trial(number: int, trial: Trial) -> PlannedRun:
    """Return a strict run of the commit under test with one setting changed."""
    name = trial.knob.replace("_", "-") or trial.setting.value
    # a label names a folder of the evidence, and has 40 characters at most
    return PlannedRun(label=f"tried-{name}-{number}"[:40], mode=RunMode.STRICT, trial=trial)


def plan_seeds(settings: GateSettings) -> tuple[PlannedRun, ...]:
    """Return the strict runs of further seeds that the policy's level needs; none at other levels.

    The first strict run already has train.seed. At the scientific level each variant runs with
    every seed. The seeds come one after the other, so a cancelled call has compared all variants
    equally.
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
    """Return each arm with each seed; only loss, time, memory and end state are observed.

    The arms of one seed come together, and every other seed runs backwards. A drift of the machine
    that is linear in time then adds the same to all arms.
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
    """Return the label of a variant's run with a seed; 40 characters at most."""
    return f"{variant}-seed-{seed}"


def training_of(planned: PlannedRun, train: TrainSettings) -> TrainSettings:
    """Return the training as one run starts it, with its own seed, steps and command.

    `{seed}` in the command is replaced by the seed; no other word has a meaning.
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
    """A configuration that runs once a round without observers; no knobs is the default mode."""

    name: str
    knobs: KnobSet

    def run(self, label: str) -> PlannedRun:
        """Return a run of this arm."""
        mode = RunMode.STRICT if self.knobs else RunMode.DEFAULT
        return PlannedRun(label=label, mode=mode, knobs=self.knobs, observe=False)


def first_run() -> PlannedRun:
    """Return the first run of every plan, which shows the device that the training uses."""
    return Arm(name=DEFAULT_A, knobs=NO_KNOBS).run(_label(DEFAULT_A, 1))


def judged_arm(*, fill: bool) -> str:
    """Return the name of the arm that has the settings of the gate's own strict runs."""
    return STRICT_FILL if fill else STRICT


def without(knob: PricedKnob) -> str:
    """Return the name of the arm that lacks one knob."""
    return f"without-{knob.value.replace('_', '-')}"


def applicable_knobs(*, on_gpu: bool) -> tuple[PricedKnob, ...]:
    """Return the strict mode's knobs that can matter on the device where the training runs."""
    return tuple(
        knob for knob in PricedKnob if knob in STRICT_KNOBS and (on_gpu or knob not in GPU_KNOBS)
    )


def cost_arms(*, fill: bool, toggled: tuple[PricedKnob, ...]) -> tuple[Arm, ...]:
    """Return the arms of one round in order; each of the `toggled` knobs gets an arm without it.

    Filling new memory needs no such arm: two arms always differ in it.
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
    """Return every run in order, each with the name of its arm."""
    return tuple(
        (arm.name, arm.run(_label(arm.name, number)))
        for number in range(1, rounds + 1)
        # forwards, then backwards: a drift that is linear in time adds the same to every arm
        for arm in (arms if number % 2 else reversed(arms))
    )


def plan_noise(runs: int, command: tuple[str, ...] | None = None) -> tuple[PlannedRun, ...]:
    """Return repeats of the default mode that keep their values, by `command` if one is given."""
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
