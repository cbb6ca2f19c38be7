"""Builds the environment of a training process from nothing, including the knobs that act by it.

It is an allow-list, never a deny-list: no variable of the gate reaches the training unless it is
named here (rule T1). In a container the image's variables are present too; the harness attests
those that can move a result, wherever they came from. Knobs that must be set before the interpreter
or CUDA starts are set here, because the harness starts too late for them: the hash seed, thread
counts, the cuBLAS workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gate.errors import SettingsError
from gate.settings.gate_settings import Device, GateSettings, TrainSettings
from gate.settings.knobs import (
    BY_NAME,
    KEEP,
    KNOBS,
    OFF,
    ON,
    Acts,
    Knob,
    effective_knobs,
    priced_words,
)
from gate.settings.train_sections import DeterminismSettings, OnOverride
from gate.settings.variations import THREAD_VARIABLES, TUNABLES, Setting, perturbed_heap
from gate.training.operator_tables import watch_list
from gate.training.runs import PlannedRun, RunFolders, RunMode, Trial

WARN = "warn"
THREADS_VARIABLE = "OMP_NUM_THREADS"
# A cache that outlives a run hides what was chosen by timing. Caches not listed here are below
# HOME, which is just as fresh.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}


def knob_words(planned: PlannedRun, determinism: DeterminismSettings) -> dict[str, str]:
    """Return the word of each knob for a run: its mode's words, adjusted to the run.

    In an operator audit and with an allow-list, deterministic algorithms warn instead of refusing.
    The audit only counts operators without a deterministic form, and an allow-list refuses the
    others itself.
    """
    strict_run = planned.mode is not RunMode.DEFAULT
    words = effective_knobs(determinism.profile, determinism.overrides, strict_run=strict_run)
    if strict_run and planned.knobs is not None:
        words |= priced_words(planned.knobs)
    warns = planned.mode is RunMode.AUDIT or determinism.allow_operators
    if warns and words["deterministic_algorithms"] == ON:
        words["deterministic_algorithms"] = WARN
    return words


def threads_of(determinism: DeterminismSettings, own: Mapping[str, str]) -> int:
    """Return the thread count of every run; the user's variable applies if the key is not set.

    Raises `SettingsError` if key and variable contradict each other.
    """
    text = own.get(THREADS_VARIABLE, "")
    if not BY_NAME["omp_threads"].accepts_value(text):
        return determinism.threads
    if "threads" in determinism.model_fields_set and int(text) != determinism.threads:
        raise SettingsError(
            f"{THREADS_VARIABLE} is {text}, determinism.threads is {determinism.threads}",
            hint=f"Set only one of them: remove {THREADS_VARIABLE} from train.env, or "
            f"determinism.threads.",
        )
    return int(text)


def knob_variables(
    words: Mapping[str, str], own: Mapping[str, str], *, seed: int, threads: int
) -> dict[str, str]:
    """Return the variables of the knobs that act before the start; `own` are those the user sets.

    A valid value of the user's is kept. Raises `SettingsError` with both values for one that
    contradicts its knob.
    """
    variables = {}
    for knob in KNOBS:
        word = words[knob.name]
        if knob.acts is not Acts.ENVIRONMENT or word in {OFF, KEEP}:
            continue
        value = knob.on.format(seed=seed, threads=threads) if word == ON else word
        mine = own.get(knob.variable)
        if mine is not None and not _agree(knob, mine, word):
            raise SettingsError(
                f"{knob.variable} is {mine[:100]!r}, the knob {knob.name} needs {value!r}",
                hint=f"Remove {knob.variable} from train.env or train.pass_env, or set "
                f"determinism.knobs.{knob.name} to keep, which leaves that knob off.",
            )
        variables[knob.variable] = value if mine is None else mine
    return variables


def _agree(knob: Knob, mine: str, word: str) -> bool:
    """Return whether the user's value satisfies the knob; a named value must match exactly."""
    return knob.accepts_value(mine) if word == ON else mine == word


def harness_text(words: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """Return `name=value;name=value` for the harness: the value at which it must find each knob."""
    parts = []
    for name, word in words.items():
        knob = BY_NAME[name]
        value = variables.get(knob.variable, KEEP) if knob.acts is Acts.ENVIRONMENT else word
        parts.append(f"{name}={value}")
    return ";".join(parts)


def fresh_caches(tmp: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Return variables that put compile and kernel caches in the run's folder, emptied each run.

    Raises `SettingsError` if the user names a folder for one of them.
    """
    # from a shared cache the next run would take the kernel that one run chose by timing: the two
    # would agree, and a fresh machine would not
    for variable in CACHES.keys() & own.keys():
        raise SettingsError(
            f"{variable} is {own[variable][:100]!r}, every run needs its own cache",
            hint=f"Remove {variable} from train.env or train.pass_env: a shared cache hides what "
            f"one run chose by timing.",
        )
    return {variable: str(tmp / folder) for variable, folder in CACHES.items()}


TRIAL_VARIABLE: Final = "REPRO_GATE_TRIAL"
# only the harness can make these changes: they concern calls in the script, not variables
BY_HARNESS: Final = {
    Setting.ONE_THREAD: "one-thread",
    Setting.ONE_WORKER: "one-worker",
    Setting.NO_LOADER_WORKERS: "no-loader-workers",
    Setting.FIXED_COLLECTIVES: "fixed-collectives",
}
OWN_THREADS: Final = (THREADS_VARIABLE, "MKL_NUM_THREADS")
THREAD_KNOBS: Final = ("omp_threads", "mkl_threads")


def with_trial(settings: GateSettings, trial: Trial | None) -> GateSettings:
    """Return the settings with the trial's one setting changed."""
    if trial is None:
        return settings
    train = settings.train
    env, pass_env = dict(train.env), train.pass_env
    if trial.setting is Setting.ONE_THREAD:
        # the user's own variable would override the key
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
    """Return the variable that tells the harness its part of a trial, if it has one."""
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
        # the C library fills with the complement of the byte that it is given
        # for perturbation (mallopt(3))
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


PASSED_FROM_HOST = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME"),
    # which card a number means depends on the order as well
    *("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"),
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
)


def child_environment(
    planned: PlannedRun,
    settings: GateSettings,
    folders: RunFolders,
    host: Mapping[str, str],
    temporary: Path | None = None,
) -> dict[str, str]:
    """Return all variables of one training process; none depends on an earlier run.

    `temporary` is a shorter path of the folder for temporary files, if there is one. The user's
    `train.env` overrides other variables, but not the harness's. Knobs come after it too, and keep
    a valid value of the user's. Names that only the gate may set were refused when the settings
    were read. Raises `SettingsError` if a variable contradicts a knob.
    """
    train = settings.train
    determinism = settings.determinism
    passed = _passed(train, host)
    own = {**passed, **train.env}
    threads = threads_of(determinism, own)
    words = knob_words(planned, determinism)
    knobs = knob_variables(words, own, seed=train.seed, threads=threads)
    varied = {} if planned.varied is None else dict(planned.varied.variables)
    # the harness must find a knob at its varied value
    knobs |= {name: varied[name] for name in knobs.keys() & varied.keys()}
    variables = {
        **passed,
        "HOME": str(folders.home),
        "TMPDIR": str(temporary or folders.tmp),
        # a separate account has no entry in the password file; getpass and its users look here
        # first
        "USER": "training",
        "LOGNAME": "training",
        "LANG": "C.UTF-8",
        # splits and names by date must not depend on the machine's local time
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        # keep the run's copy of the commit unchanged, so that it can be checked afterwards
        "PYTHONDONTWRITEBYTECODE": "1",
        **fresh_caches(folders.tmp, own),
        **train.env,
        **knobs,
        **varied,
        **_harness(planned, settings, folders),
        "REPRO_GATE_THREADS": str(threads),
        "REPRO_GATE_KNOBS": harness_text(words, knobs),
    }
    if train.device is Device.CPU:
        # empty hides every GPU, where an unset variable would show all of them
        variables["CUDA_VISIBLE_DEVICES"] = ""
    variables["PYTHONPATH"] = _python_path(folders.harness, train.env.get("PYTHONPATH", ""))
    return variables


def threads_of_a_run(settings: GateSettings, host: Mapping[str, str]) -> int:
    """Return every run's CPU threads; raises `SettingsError` if variable and key disagree."""
    train = settings.train
    return threads_of(settings.determinism, {**_passed(train, host), **train.env})


def _passed(train: TrainSettings, host: Mapping[str, str]) -> dict[str, str]:
    # an allow-list, because no deny-list can know the names of all tokens (rule T1)
    return {name: host[name] for name in (*PASSED_FROM_HOST, *train.pass_env) if name in host}


def _harness(planned: PlannedRun, settings: GateSettings, folders: RunFolders) -> dict[str, str]:
    variables = {
        "REPRO_GATE_OUT": str(folders.out),
        "REPRO_GATE_TREE": str(folders.tree),
        "REPRO_GATE_DATA": str(folders.data),
        "REPRO_GATE_MODE": planned.mode.of_harness,
        "REPRO_GATE_SEED": str(settings.train.seed),
        "REPRO_GATE_MAX_STEPS": str(settings.train.max_steps),
        "REPRO_GATE_ALLOW": ";".join(settings.determinism.allow_operators),
        "REPRO_GATE_WATCH": watch_list(),
        "REPRO_GATE_ON_OVERRIDE": settings.determinism.on_override.value,
        "REPRO_GATE_OBSERVE": "on" if planned.observe else "off",
        "REPRO_GATE_OVERHEAD_BUDGET": repr(settings.record.overhead_budget),
        "REPRO_GATE_FREE_SECONDS": repr(settings.record.free_seconds),
    }
    if planned.traced is not None:
        variables["REPRO_GATE_TRACE_FROM"] = str(planned.traced.first)
        variables["REPRO_GATE_TRACE_LINES"] = "1" if planned.traced.lines else "0"
    if planned.end is not None:
        variables["REPRO_GATE_END_STEP"] = str(planned.end.step)
        variables["REPRO_GATE_END_OPTIMIZERS"] = ";".join(map(str, planned.end.optimizers))
        variables["REPRO_GATE_END_WRITTEN"] = "1" if planned.end.written else "0"
    if planned.varied is not None:
        variables["REPRO_GATE_SHAKE"] = planned.varied.variation.name
    if planned.trial is not None:
        variables |= harness_trial(planned.trial)
    return {**variables, "REPRO_GATE_NOISE": "1"} if planned.keep_values else variables


def _python_path(harness: Path, own: str) -> str:
    """Return PYTHONPATH with the harness first; an empty entry would mean the working directory."""
    return f"{harness}:{own}" if own else str(harness)


def preemption_variables(planned: PlannedRun, workdir: Path) -> dict[str, str]:
    """Return the extra variables of an interrupted or resumed run; `workdir` as the run sees it.

    A resumed run reports the state it starts with, so that missing state can be named.
    """
    if planned.preemption is not None:
        inside = planned.preemption.inside
        return {
            "REPRO_GATE_PREEMPT_STEP": str(planned.preemption.step),
            "REPRO_GATE_PREEMPT_PATH": str(workdir / planned.preemption.checkpoint),
            **({} if inside is None else {"REPRO_GATE_KILL_SAVE": inside.value}),
        }
    return {"REPRO_GATE_RESUMED": "1"} if planned.carried is not None else {}


def path_with_interpreter(path: str, interpreter: Path, *, beside_torch: bool) -> str:
    """Return PATH with the gate's interpreter first if it is installed beside torch.

    A gate installed into a project's environment then trains with that environment's `python`, even
    if it was not activated. A gate in a separate environment leaves PATH alone.
    """
    folder = str(interpreter.parent)
    if not beside_torch or path.split(":")[:1] == [folder]:
        return path
    return f"{folder}:{path}" if path else folder
