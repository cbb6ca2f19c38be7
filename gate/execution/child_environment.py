"""The environment of a training process, built from nothing.

An allow-list, never a deny-list: a variable that is not named here does not exist for the training.
What must be set before the interpreter or CUDA starts is set here, since the guest comes too late
for it: the hash seed, thread counts, the cuBLAS workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gate.records.runs import RunFolders, RunMode
from gate.records.settings import Device, GateSettings
from gate.records.unflagged_table import watch_list

PASSED_FROM_HOST = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
PASSED_PREFIXES = ("NVIDIA_",)
# Sources: NVIDIA cuBLAS "Results Reproducibility" for the workspace; torch.utils.deterministic and
# torch._inductor.config for the inductor switch; FlashAttention's and Transformer Engine's own
# documentation for theirs.
STRICT_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "TORCHINDUCTOR_DETERMINISTIC": "1",
    "FLASH_ATTENTION_DETERMINISTIC": "1",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}


def child_environment(
    mode: RunMode,
    settings: GateSettings,
    folders: RunFolders,
    host: Mapping[str, str],
    observation: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """All variables of one training process; `observation` is `observation_variables`'s.

    The user's `train.env` comes last but for the guest's own variables, so that a script keeps
    what it needs; a name that only the gate may set was refused when the settings were read.
    """
    train = settings.train
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
        **(STRICT_VARIABLES if mode is not RunMode.DEFAULT else {}),
        **train.env,
        **_guest(mode, settings, folders),
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


def _guest(mode: RunMode, settings: GateSettings, folders: RunFolders) -> dict[str, str]:
    fill = settings.determinism.fill_uninitialized_memory
    return {
        "REPRO_GATE_OUT": str(folders.out),
        "REPRO_GATE_MODE": mode.value,
        "REPRO_GATE_SEED": str(settings.train.seed),
        "REPRO_GATE_MAX_STEPS": str(settings.train.max_steps),
        "REPRO_GATE_THREADS": str(settings.determinism.threads),
        "REPRO_GATE_FILL": "1" if fill else "0",
        "REPRO_GATE_ALLOW": ";".join(settings.determinism.allow_operators),
        "REPRO_GATE_WATCH": watch_list(),
    }


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
