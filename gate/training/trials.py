"""A run with one setting other than the settings say: as settings, and as words to the harness."""

from __future__ import annotations

from typing import Final

from gate.settings.gate_settings import GateSettings
from gate.settings.train_sections import DeterminismSettings, OnOverride
from gate.settings.trials import THREAD_VARIABLES, TUNABLES, Setting, perturbed_heap
from gate.training.knob_environment import THREADS_VARIABLE
from gate.training.runs import Trial

TRIAL_VARIABLE: Final = "REPRO_GATE_TRIAL"
# only the harness can do these, since they are calls of the script's and no variables
BY_HARNESS: Final = {
    Setting.ONE_THREAD: "one-thread",
    Setting.ONE_WORKER: "one-worker",
    Setting.NO_LOADER_WORKERS: "no-loader-workers",
}
OWN_THREADS: Final = (THREADS_VARIABLE, "MKL_NUM_THREADS")
THREAD_KNOBS: Final = ("omp_threads", "mkl_threads")


def with_trial(settings: GateSettings, trial: Trial | None) -> GateSettings:
    """The settings with the trial's one moved; the others stay."""
    if trial is None:
        return settings
    train = settings.train
    env, pass_env = dict(train.env), train.pass_env
    if trial.setting is Setting.ONE_THREAD:
        # the user's own count would go before the key
        env = {name: text for name, text in env.items() if name not in OWN_THREADS}
        pass_env = tuple(name for name in pass_env if name not in OWN_THREADS)
    env |= _variables(trial)
    return settings.model_copy(
        update={
            "train": train.model_copy(update={"env": env, "pass_env": pass_env}),
            "determinism": _determinism(settings.determinism, trial),
        }
    )


def harness_trial(trial: Trial) -> dict[str, str]:
    """What the harness is to do, as its variable; none where variables and knobs do it all."""
    if trial.setting is Setting.HEAP_FILL:
        return {TRIAL_VARIABLE: f"fill:{trial.fill}"}
    word = BY_HARNESS.get(trial.setting)
    return {} if word is None else {TRIAL_VARIABLE: word}


def _variables(trial: Trial) -> dict[str, str]:
    if trial.setting is Setting.ONE_THREAD:
        return dict.fromkeys(THREAD_VARIABLES, "1")
    if trial.setting is Setting.LAUNCH_BLOCKING:
        return {"CUDA_LAUNCH_BLOCKING": "1"}
    if trial.setting is Setting.HEAP_FILL:
        return {TUNABLES: perturbed_heap(trial.fill ^ 0xFF)}
    return {}


def _determinism(determinism: DeterminismSettings, trial: Trial) -> DeterminismSettings:
    knobs = determinism.knobs
    if trial.setting is Setting.RESTORE:
        return determinism.model_copy(update={"on_override": OnOverride.RESTORE})
    if trial.setting is Setting.ONE_THREAD:
        own = {name: word for name, word in knobs.items() if name not in THREAD_KNOBS}
        return determinism.model_copy(update={"threads": 1, "knobs": own})
    if trial.setting is Setting.TORCH_FILL:
        return determinism.model_copy(update={"knobs": {**knobs, "memory_fill": "on"}})
    if trial.setting is Setting.KNOB:
        return determinism.model_copy(update={"knobs": {**knobs, trial.knob: trial.word}})
    return determinism
