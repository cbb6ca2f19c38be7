"""Which runs, in which order: strict and default interleaved, so that drift of speed hits both."""

from __future__ import annotations

from dataclasses import replace

from gate.settings.gate_settings import GateSettings, TrainSettings
from gate.settings.levels import Level
from gate.settings.variations import GPU_INDEX, HASH_SEED, HASH_SEED_VARIABLE, Variation
from gate.training.runs import (
    BASE_HERE,
    Commit,
    PlannedRun,
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
        variables = (("CUDA_VISIBLE_DEVICES", ",".join((*cards[1:], *cards[:1]))),)
    varied = Varied(variation=variation, variables=variables, max_seconds=max_seconds)
    return PlannedRun(label=f"shaken-{variation.name}", mode=RunMode.STRICT, varied=varied)


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
            label=f"{name}-seed-{seed}",
            mode=RunMode.STRICT,
            seed=seed,
            command=variant.command or (*settings.train.command, *(variant.arguments or ())),
            variant=name,
        )
        for seed in settings.seeds
        for name, variant in settings.variants.items()
    )


def training_of(planned: PlannedRun, train: TrainSettings) -> TrainSettings:
    """The training as one run starts it: with the run's own seed and command, `{seed}` filled in.

    A plain replacement of that word: nothing else in the command has a meaning.
    """
    seed = train.seed if planned.seed is None else planned.seed
    command = train.command if planned.command is None else planned.command
    words = tuple(word.replace(SEED_WORD, str(seed)) for word in command)
    return train.model_copy(update={"seed": seed, "command": words})


def _run(mode: RunMode, number: int, commit: Commit = Commit.HEAD) -> PlannedRun:
    return PlannedRun(label=label_of(mode, number, commit), mode=mode, commit=commit)
