"""The environment of a training process, built from nothing, and the knobs in it.

An allow-list, never a deny-list: of the gate's own variables none reaches the training that is not
named here. In a container of its own the image's variables are there as well; the harness attests
those that may move a result, wherever they came from. What must be set before the interpreter or
CUDA starts is set here, since the harness comes too late for it: the hash seed, thread counts, the
cuBLAS workspace.
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
# A cache that outlives a run hides what was chosen by timing. Whatever is not named here is below
# HOME, which is as fresh.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
}


def knob_words(planned: PlannedRun, determinism: DeterminismSettings) -> dict[str, str]:
    """Knob to word for a run: its mode's, less what it is to do without, warning where it counts.

    An operator audit only counts operators without a deterministic form, and an allow-list refuses
    the others itself: in both torch warns where it would refuse.
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
    """The thread count of every run: the user's own variable counts where no key says otherwise.

    Raises `SettingsError` when key and variable contradict each other.
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
    """The variables of the knobs that act before the start; `own` are those that the user sets.

    A valid value of the user's is kept. Raises `SettingsError` for one that contradicts its knob,
    with both values.
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
    """Whether the user's value does what the knob is for; a value asked for by name is exact."""
    return knob.accepts_value(mine) if word == ON else mine == word


def harness_text(words: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """`name=value;name=value` for the harness: what each knob must be found at."""
    parts = []
    for name, word in words.items():
        knob = BY_NAME[name]
        value = variables.get(knob.variable, KEEP) if knob.acts is Acts.ENVIRONMENT else word
        parts.append(f"{name}={value}")
    return ";".join(parts)


def fresh_caches(tmp: Path, own: Mapping[str, str]) -> dict[str, str]:
    """Compile and kernel caches in the run's own folder, which is emptied before each run.

    Raises `SettingsError` when the user names a folder for one of them.
    """
    # a kernel that one run chose by timing would be the next run's
    # from the cache: they would agree, and a fresh machine would not
    for variable in CACHES.keys() & own.keys():
        raise SettingsError(
            f"{variable} is {own[variable][:100]!r}, every run needs its own cache",
            hint=f"Remove {variable} from train.env or train.pass_env: a shared cache hides what "
            f"one run chose by timing.",
        )
    return {variable: str(tmp / folder) for variable, folder in CACHES.items()}


TRIAL_VARIABLE: Final = "REPRO_GATE_TRIAL"
# only the harness can do these, since they are calls of the script's and no variables
BY_HARNESS: Final = {
    Setting.ONE_THREAD: "one-thread",
    Setting.ONE_WORKER: "one-worker",
    Setting.NO_LOADER_WORKERS: "no-loader-workers",
    Setting.FIXED_COLLECTIVES: "fixed-collectives",
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


PASSED_FROM_HOST = (
    *("PATH", "LD_LIBRARY_PATH", "CUDA_HOME"),
    # which card a number names depends on the order as much as on the number
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
    """All variables of one training process; none depends on what another run left.

    `temporary` is a shorter name of the folder for temporary files, where there is one.
    The user's `train.env` comes last but for the knobs, which keep a valid value of the user's,
    and for the harness's own variables; a name that only the gate may set was refused when the
    settings were read. Raises `SettingsError` when a variable contradicts a knob.
    """
    train = settings.train
    determinism = settings.determinism
    passed = _passed(train, host)
    own = {**passed, **train.env}
    threads = threads_of(determinism, own)
    words = knob_words(planned, determinism)
    knobs = knob_variables(words, own, seed=train.seed, threads=threads)
    varied = {} if planned.varied is None else dict(planned.varied.variables)
    # the harness has to find a knob at what it is varied to
    knobs |= {name: varied[name] for name in knobs.keys() & varied.keys()}
    variables = {
        **passed,
        "HOME": str(folders.home),
        "TMPDIR": str(temporary or folders.tmp),
        # another account has no entry in the password file; getpass and its users look here first
        "USER": "training",
        "LOGNAME": "training",
        "LANG": "C.UTF-8",
        # local time is the machine's: splits and names by date must not depend on it
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        # the run's copy of the commit stays what it was, for a look at it afterwards
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
    """CPU threads of every run; raises `SettingsError` when a variable contradicts the key."""
    train = settings.train
    return threads_of(settings.determinism, {**_passed(train, host), **train.env})


def _passed(train: TrainSettings, host: Mapping[str, str]) -> dict[str, str]:
    # a list of what may pass: tokens have names that no list of forbidden ones can know
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
    """The harness first; never an empty entry, which would mean the working directory."""
    return f"{harness}:{own}" if own else str(harness)


def preemption_variables(planned: PlannedRun, workdir: Path) -> dict[str, str]:
    """What an interrupted or resumed run is told beside all others; `workdir` as the run sees it.

    A resumed run tells what it starts with, so that what it lacks can be named.
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
    """Put the gate's own interpreter first on PATH when it is installed beside torch.

    A gate that is installed into a project's environment then trains with that environment's
    `python`, whether or not it was activated. A gate that lives apart leaves PATH alone.
    """
    folder = str(interpreter.parent)
    if not beside_torch or path.split(":")[:1] == [folder]:
        return path
    return f"{folder}:{path}" if path else folder
