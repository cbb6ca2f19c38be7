"""The environment of a training process, built from nothing.

An allow-list, never a deny-list: of the gate's own variables none reaches the training that is not
named here. In a container of its own the image's variables are there as well; the harness attests
those that may move a result, wherever they came from. What must be set before the interpreter or
CUDA starts is set here, since the harness comes too late for it: the hash seed, thread counts, the
cuBLAS workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gate.settings.gate_settings import Device, GateSettings, TrainSettings
from gate.training.knob_environment import (
    fresh_caches,
    harness_text,
    knob_variables,
    knob_words,
    threads_of,
)
from gate.training.runs import PlannedRun, RunFolders
from gate.training.trials import harness_trial
from gate.training.uncovered_operators import watch_list

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
        # the run's copy of the commit stays what it was, for whoever looks at it afterwards
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
        "REPRO_GATE_MODE": planned.mode.value,
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


def path_with_interpreter(path: str, interpreter: Path, *, beside_torch: bool) -> str:
    """Put the gate's own interpreter first on PATH when it is installed beside torch.

    `pip install repro-gate` into a project's environment then trains with that environment's
    `python`, whether or not it was activated. A gate that lives apart leaves PATH alone.
    """
    folder = str(interpreter.parent)
    if not beside_torch or path.split(":")[:1] == [folder]:
        return path
    return f"{folder}:{path}" if path else folder
