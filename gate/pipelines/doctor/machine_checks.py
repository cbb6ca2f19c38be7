"""Checks where the training runs: isolation, Python, torch, GPU, shared memory, baseline."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass

from gate.baseline.entry import Baseline, BaselineEntry
from gate.isolation.account_choice import ROOT_HINT
from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.doctor.health import CheckResult, Examined
from gate.settings.gate_settings import Device, GateSettings
from gate.system.machine import GIVE_ONE, GpuMissed, GpuObstacle, GpusSeen, TrainingSeen
from gate.training.environment import DEVICE, PACKAGES, Environment, moved_packages

CONFIRM = "It is ignored until another call gives the same bits: record it again, and commit."
SHOWN_PARTS = 4
# enough for a GPU with compute capability, multiprocessors and memory, about 70 characters
SHOWN = 100


def examined_baseline(
    baseline: Baseline | None,
    path: str,
    entry: BaselineEntry | None,
    here: Environment,
    nearest: BaselineEntry | None = None,
    *,
    config: str = "",
) -> Examined:
    """Check whether the baseline has an entry for this machine.

    `entry` is the one that would judge a run here, or None. Then `nearest` is an entry of another
    kind of accelerator. `config` is the settings file that the call names, or empty. If parts
    moved, the run may still pass within tolerance, or a run of the base commit may decide.
    """
    record = _recording(config)
    if baseline is None or not baseline.entries:
        return _row(CheckResult.TODO, f"{path}: no baseline is committed", record)
    if nearest is not None:
        recorded, now = nearest.environment.part(DEVICE)[:SHOWN], here.part(DEVICE)[:SHOWN]
        answer = f"{path}: has no entry for {now}, only for {recorded}"
        return _row(CheckResult.FAIL, answer, record)
    if entry is None:
        answer = f"{path}: recorded with another command, seed, step count or thread count"
        return _row(CheckResult.FAIL, answer, record)
    if not here.parts:
        answer = f"{path}: {len(baseline.entries)} entries; this environment is unknown"
        return _row(CheckResult.WARN, answer, "")
    return _beside(entry, path, here, record)


def _recording(config: str) -> str:
    option = f" --config {shlex.quote(config)}" if config else ""
    return (
        f"Run `repro-gate baseline record{option}` on this kind of machine, and commit the folder."
    )


def _beside(entry: BaselineEntry, path: str, here: Environment, record: str) -> Examined:
    """Return what separates this machine from the entry, if the entry may judge at all."""
    if entry.provisional:
        answer = f"{path}: the nearest entry is far from those of other environments"
        return _row(CheckResult.FAIL, answer, CONFIRM)
    then = entry.environment
    moved = then.moved(here)
    if not moved:
        return _row(CheckResult.OK, f"{path}: has an entry for exactly this environment", "")
    packages = [move.described for move in moved_packages(then, here).counted]
    parts = [
        f"{name} {here.part(name)[:SHOWN]} (was {then.part(name)[:SHOWN]})"
        for name in moved
        if name != PACKAGES or not packages
    ]
    every = [*parts, *packages]
    shown = every[:SHOWN_PARTS]
    rest = f" and {len(every) - SHOWN_PARTS} more" if len(every) > SHOWN_PARTS else ""
    return _row(
        CheckResult.WARN, f"{path}: the closest entry differs in {', '.join(shown)}{rest}", record
    )


def _row(health: CheckResult, answer: str, fix: str) -> Examined:
    return Examined(name="baseline", health=health, found=answer, fix=fix)


MAX_TEXT = 300
SHOWN_GPUS = 4
UVM = "/dev/nvidia-uvm"
# the kernel's message (EPERM) if the container's device rules forbid the access, not the file's
# mode
FORBIDDEN = "Operation not permitted"
# parts of torch's messages and numbers of CUDA errors, in lower case
SIGNS = {
    "busy or unavailable": GpuObstacle.BUSY,
    "too old": GpuObstacle.OLD_DRIVER,
    "insufficient for": GpuObstacle.OLD_DRIVER,
    "no nvidia driver": GpuObstacle.NO_LIBRARY,
    "error 802": GpuObstacle.FABRIC,
    "system not yet initialized": GpuObstacle.FABRIC,
}
Cause = tuple[GpuObstacle, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuSightings:
    """The GPUs that the gate sees on the machine, and what the training's Python found."""

    host: GpusSeen
    training: TrainingSeen
    isolation: Isolation | None


def why_no_gpu(
    host: GpusSeen, training: TrainingSeen, isolation: Isolation | None
) -> GpuMissed | None:
    """Return which GPU of the machine the training could not use, why, and what to do.

    None if the machine has none, or if torch can use one: then the script chose not to.
    """
    # without a GPU, or with a usable one, there is nothing to explain
    if not host.names or training.gpus:
        return None
    seen = GpuSightings(host=host, training=training, isolation=isolation)
    known = next(filter(None, (rule(seen) for rule in RULES)), None)
    obstacle, why = known or _refused(seen)
    return GpuMissed(obstacle=obstacle, found=f"{machine_gpus(host)}; {why[:MAX_TEXT]}")


def machine_gpus(host: GpusSeen) -> str:
    """Return every GPU of the machine by name, with equal ones counted."""
    kinds = list(Counter(host.names).items())
    shown = [name if count == 1 else f"{count} x {name}" for name, count in kinds[:SHOWN_GPUS]]
    return ", ".join(shown) + (", ..." if len(kinds) > SHOWN_GPUS else "")


def _not_known(seen: GpuSightings) -> Cause | None:
    training = seen.training
    if not training.problem:
        return None
    why = f"unknown whether the training can use it: {training.problem}"
    return GpuObstacle.OTHER, why


def _cpu_build(seen: GpuSightings) -> Cause | None:
    if seen.training.tried.built_for:
        return None
    torch = seen.training.parts.get("torch", "unknown")
    return GpuObstacle.CPU_BUILD, f"the training's torch ({torch}) is a build without CUDA"


def _hidden(seen: GpuSightings) -> Cause | None:
    variable = seen.training.tried.hidden_by
    if not variable:
        return None
    return GpuObstacle.HIDDEN, f"{variable} hides every GPU from the training"


def _not_given(seen: GpuSightings) -> Cause | None:
    files = seen.training.tried.files
    if any(file.path.removeprefix("/dev/nvidia").isdigit() for file in files):
        return None
    refusal = seen.isolation.gpu_refusal if seen.isolation is not None else ""
    reason = f" ({refusal})" if refusal else ""
    return GpuObstacle.NOT_GIVEN, f"no GPU is visible where the training runs{reason}"


def _closed(seen: GpuSightings) -> Cause | None:
    closed = next((file for file in seen.training.tried.files if file.refusal), None)
    if closed is None:
        return None
    why = (
        f"{closed.path} (mode {closed.mode:04o}, group {closed.gid}) is not accessible to the "
        f"training's account: {closed.refusal}"
    )
    return (GpuObstacle.LOST if closed.refusal == FORBIDDEN else GpuObstacle.CLOSED), why


def _no_uvm(seen: GpuSightings) -> Cause | None:
    if any(file.path == UVM for file in seen.training.tried.files):
        return None
    return GpuObstacle.NO_UVM, f"{UVM}, which CUDA needs, is missing"


# in this order: the first rule that finds a cause gives the answer
RULES = (_not_known, _cpu_build, _hidden, _not_given, _closed, _no_uvm)


def _refused(seen: GpuSightings) -> Cause:
    """Find the cause in torch's message, or else in the output of nvidia-smi."""
    host, tried = seen.host, seen.training.tried
    words = tried.refusal.lower()
    obstacle = next((known for sign, known in SIGNS.items() if sign in words), GpuObstacle.OTHER)
    if obstacle is GpuObstacle.OTHER and 0 < tried.supports < _number(tried.built_for):
        obstacle = GpuObstacle.OLD_DRIVER
    elif obstacle is GpuObstacle.OTHER and host.gpus and all(gpu.mig for gpu in host.gpus):
        obstacle = GpuObstacle.NO_SLICE
    elif obstacle is GpuObstacle.OTHER and (host.mps or not all(gpu.shared for gpu in host.gpus)):
        obstacle = GpuObstacle.BUSY
    why = f"torch cannot use it: {tried.refusal or 'it gives no reason'}"
    if obstacle is GpuObstacle.OLD_DRIVER:
        why = f"torch is built for CUDA {tried.built_for}, {_driver(host, tried.supports)}"
    return obstacle, why


def _number(version: str) -> int:
    """Return a CUDA version's major part as CUDA numbers it, for example 13000 for 13.0."""
    major = version.partition(".")[0]
    # CUDA's minor version compatibility: any driver of the same major version suffices
    return int(major) * 1000 if major.isascii() and major.isdigit() else 0


def _driver(host: GpusSeen, supports: int) -> str:
    versions = ", ".join(sorted({gpu.driver for gpu in host.gpus}))
    newest = f" supports up to CUDA {supports // 1000}.{supports % 1000 // 10}" if supports else ""
    return f"the machine's driver {versions}{newest or ' is too old for that'}".replace("  ", " ")


MIB = 1024**2
# Docker's default size of /dev/shm
DEFAULT_CONTAINER_SHM_BYTES = 64 * MIB
NO_GPU_FIX = f"{GIVE_ONE} Or set train.device to cpu, and record the baseline on a CPU."
ALONE = "Another process may block the training from using it"
ALONE_FIX = (
    "Set the compute mode to default (`nvidia-smi -c DEFAULT`), and stop MPS: it serves one "
    "account at a time, and a training that has to wait hits train.timeout_seconds."
)


def examined_isolation(isolation: Isolation, *, on_runner: bool) -> Examined:
    """Check what keeps the training from the gate's secrets; on a runner something must."""
    answer = f"{isolation.described}: {isolation.reason}"
    if isolation.mode is not IsolationMode.NONE:
        return Examined(name="isolation", health=CheckResult.OK, found=answer)
    if isolation.job is not None and not on_runner:
        return Examined(
            name="isolation",
            health=CheckResult.WARN,
            found=answer,
            fix="Keep keys and tokens away from that account: `repro-gate run` here, `repro-gate "
            "judge` where the key is.",
        )
    return Examined(
        name="isolation",
        health=CheckResult.FAIL if on_runner else CheckResult.WARN,
        found=answer,
        fix=f"On a runner: {ROOT_HINT} Or set isolation.image, and give the job a container "
        "engine.",
    )


def examined_python(training: TrainingSeen) -> Examined:
    """Return the Python and torch of the training."""
    if training.problem:
        return Examined(
            name="training", health=CheckResult.FAIL, found=training.problem, fix=training.hint
        )
    python, torch = (training.parts.get(name, "unknown") for name in ("python", "torch"))
    return Examined(name="training", health=CheckResult.OK, found=f"{python}, torch {torch}")


def examined_gpu(
    settings: GateSettings, training: TrainingSeen, host: GpusSeen, isolation: Isolation | None
) -> Examined:
    """Check the GPU; a missing required one fails, because the gate never falls back to the CPU."""
    health, answer, fix = _gpu(settings.train.device, training, host, isolation)
    return Examined(name="gpu", health=health, found=answer, fix=fix)


def _gpu(
    device: Device, training: TrainingSeen, host: GpusSeen, isolation: Isolation | None
) -> tuple[CheckResult, str, str]:
    if device is Device.CPU:
        return CheckResult.OK, "train.device is cpu: no GPU is used", ""
    if training.gpus:
        return _usable(training, host)
    demanded = device is Device.CUDA
    missed = why_no_gpu(host, training, isolation)
    if missed is not None:
        return CheckResult.FAIL if demanded else CheckResult.WARN, missed.found, missed.fix
    if demanded:
        return (
            CheckResult.FAIL,
            f"train.device is cuda, but no GPU was found: {host.problem}",
            NO_GPU_FIX,
        )
    return CheckResult.OK, f"none ({host.problem}); train.device auto trains on the CPU", ""


def _usable(training: TrainingSeen, host: GpusSeen) -> tuple[CheckResult, str, str]:
    """Return the GPUs that torch can use, and whether another process could block them."""
    shown = "; ".join(training.gpus)
    modes = sorted({gpu.compute_mode for gpu in host.gpus if not gpu.shared})
    alone = [f"compute mode {mode}" for mode in modes] + (["MPS runs"] if host.mps else [])
    if not alone:
        return CheckResult.OK, shown, ""
    return CheckResult.WARN, f"{shown}. {ALONE}: {', '.join(alone)}", ALONE_FIX


def examined_driver(settings: GateSettings, training: TrainingSeen, host: GpusSeen) -> Examined:
    """Return the versions that a result on a GPU depends on."""
    if settings.train.device is Device.CPU or not (training.gpus or host.gpus):
        return Examined(name="driver", health=CheckResult.OK, found="no GPU, none needed")
    parts = training.parts
    driver = parts.get("driver", "none")
    if driver == "none":
        driver = ", ".join(sorted({gpu.driver for gpu in host.gpus})) or "unknown"
    cuda, cudnn = parts.get("cuda", "none"), parts.get("cudnn", "none")
    return Examined(
        name="driver",
        health=CheckResult.OK if training.gpus else CheckResult.WARN,
        found=f"driver {driver}, CUDA {cuda} and cuDNN {cudnn} of torch",
        fix="" if training.gpus else "A torch built for a newer CUDA needs a newer driver.",
    )


def examined_shared_memory(training: TrainingSeen, isolation: Isolation | None) -> Examined:
    """Check whether /dev/shm, as the training sees it, has room for data workers and ranks."""
    size = training.shm_bytes
    if size is None:
        return Examined(name="shared memory", health=CheckResult.WARN, found="its size is unknown")
    answer = f"{size // MIB:,} MiB in /dev/shm"
    # Docker's default is nearly always too small for data workers
    if size > DEFAULT_CONTAINER_SHM_BYTES:
        return Examined(name="shared memory", health=CheckResult.OK, found=answer)
    container = isolation is not None and isolation.in_container
    return Examined(
        name="shared memory",
        health=CheckResult.WARN,
        found=f"{answer}: DataLoader workers may crash with SIGBUS",
        fix="Raise isolation.shm_bytes."
        if container
        else "Use num_workers=0 in the smoke training, set isolation.image, or raise the "
        "engine's `default-shm-size`.",
    )
