"""The environment of a training process, built from nothing.

An allow-list, never a deny-list: a variable that is not named here does not exist for the training.
What must be set before the interpreter or CUDA starts is set here, since the guest comes too late
for it: the hash seed, thread counts, the cuBLAS workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gate.records.knobs import NO_KNOBS, Knob, KnobSet, knob_names, strict_knobs
from gate.records.runs import PlannedRun, RunFolders, RunMode
from gate.records.settings import Device, GateSettings
from gate.records.unflagged_table import watch_list

PASSED_FROM_HOST = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
PASSED_PREFIXES = ("NVIDIA_",)
# Sources: NVIDIA cuBLAS "Results Reproducibility" for the workspace; torch.utils.deterministic and
# torch._inductor.config for the inductor switch; FlashAttention's and Transformer Engine's own
# documentation for theirs.
KNOB_VARIABLES = {
    Knob.CUBLAS_WORKSPACE: ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    Knob.INDUCTOR_DETERMINISTIC: ("TORCHINDUCTOR_DETERMINISTIC", "1"),
    Knob.FLASH_ATTENTION: ("FLASH_ATTENTION_DETERMINISTIC", "1"),
    Knob.TRANSFORMER_ENGINE: ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"),
}


def knobs_of(planned: PlannedRun, settings: GateSettings) -> KnobSet:
    """The switches that are on in a run: none in default mode, else the plan's or all."""
    if planned.mode is RunMode.DEFAULT:
        return NO_KNOBS
    if planned.knobs is not None:
        return planned.knobs
    return strict_knobs(fill=settings.determinism.fill_uninitialized_memory)


def child_environment(
    planned: PlannedRun,
    settings: GateSettings,
    folders: RunFolders,
    host: Mapping[str, str],
    observation: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of one training process; `observation` is `observation_variables`'s.

    The user's `train.env` comes last but for the guest's own variables, so that a script keeps
    what it needs; a name that only the gate may set was refused when the settings were read.
    """
    train, knobs = settings.train, knobs_of(planned, settings)
    passed = {name: host[name] for name in (*PASSED_FROM_HOST, *train.pass_env) if name in host}
    vendor = {name: text for name, text in host.items() if name.startswith(PASSED_PREFIXES)}
    variables = {
        **vendor,
        **passed,
        "HOME": str(folders.home),
        "TMPDIR": str(folders.tmp),
        # another account has no entry in the password file; getpass and its users look here first
        "USER": "training",
        "LOGNAME": "training",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folders.tmp / "inductor"),
        "TRITON_CACHE_DIR": str(folders.tmp / "triton"),
        "PYTHONHASHSEED": str(train.seed),
        **_threads(settings.determinism.threads),
        **dict(pair for knob, pair in KNOB_VARIABLES.items() if knob in knobs),
        **train.env,
        **_guest(planned, settings, folders),
        **(observation or {}),
    }
    if train.device is Device.CPU:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    variables["PYTHONPATH"] = _python_path(folders.guest, train.env.get("PYTHONPATH", ""))
    return variables


def _threads(count: int) -> dict[str, str]:
    """Fixed thread counts: Intel asks for them, and for DYNAMIC off, for equal results."""
    return {
        "OMP_NUM_THREADS": str(count),
        "MKL_NUM_THREADS": str(count),
        "OMP_DYNAMIC": "FALSE",
        "MKL_DYNAMIC": "FALSE",
    }


def _guest(planned: PlannedRun, settings: GateSettings, folders: RunFolders) -> dict[str, str]:
    knobs = knobs_of(planned, settings)
    fill = settings.determinism.fill_uninitialized_memory
    variables = {
        "REPRO_GATE_OUT": str(folders.out),
        "REPRO_GATE_MODE": planned.mode.value,
        "REPRO_GATE_KNOBS": ",".join(knob_names(knobs)),
        "REPRO_GATE_SEED": str(settings.train.seed),
        "REPRO_GATE_MAX_STEPS": str(settings.train.max_steps),
        "REPRO_GATE_THREADS": str(settings.determinism.threads),
        "REPRO_GATE_FILL": "1" if fill else "0",
        "REPRO_GATE_ALLOW": ";".join(settings.determinism.allow_operators),
        "REPRO_GATE_WATCH": watch_list(),
    }
    return {**variables, "REPRO_GATE_NOISE": "1"} if planned.keep_values else variables


def _python_path(guest: Path, own: str) -> str:
    """The guest first; never an empty entry, which would mean the working directory."""
    return f"{guest}:{own}" if own else str(guest)


def path_with_interpreter(path: str, interpreter: Path, *, beside_torch: bool) -> str:
    """Put the gate's own interpreter first on PATH when it is installed beside torch.

    `pip install repro-gate` into a project's environment then trains with that environment's
    `python`, whether or not it was activated. A gate that lives apart leaves PATH alone.
    """
    folder = str(interpreter.parent)
    if not beside_torch or path.split(":")[:1] == [folder]:
        return path
    return f"{folder}:{path}" if path else folder
