"""Where the training runs: isolation, Python, torch, GPU, shared memory, baseline."""

from __future__ import annotations

from gate.isolation.isolation import IsolationMode
from gate.isolation.modes import Isolation
from gate.pipelines.doctor.health import CheckResult, Examined
from gate.pipelines.doctor.machine_checks import why_no_gpu
from gate.settings.gate_settings import Device, GateSettings
from gate.system.gpu import GIVE_ONE, GpusSeen
from gate.system.training_seen import TrainingSeen

MIB = 1024**2
# what an engine gives a container that asks for nothing
DEFAULT_CONTAINER_SHM_BYTES = 64 * MIB
NO_GPU_FIX = f"{GIVE_ONE} Or set train.device to cpu, and record the baseline on a CPU."
ALONE = "Another process may block the training from using it"
ALONE_FIX = (
    "Set the compute mode to default (`nvidia-smi -c DEFAULT`), and stop MPS: it serves one "
    "account at a time, and a training that has to wait hits train.timeout_seconds."
)


def examined_isolation(isolation: Isolation, *, on_runner: bool) -> Examined:
    """What keeps the training from the gate's secrets; the action demands something."""
    found = f"{isolation.described}: {isolation.reason}"
    if isolation.mode is not IsolationMode.NONE:
        return Examined(name="isolation", health=CheckResult.OK, found=found)
    return Examined(
        name="isolation",
        health=CheckResult.FAIL if on_runner else CheckResult.WARN,
        found=found,
        fix="On a runner: let the container run as root, or set isolation.image and give the job "
        "a container engine.",
    )


def examined_python(training: TrainingSeen) -> Examined:
    """The Python and torch that train."""
    if training.problem:
        return Examined(
            name="training", health=CheckResult.FAIL, found=training.problem, fix=training.hint
        )
    python, torch = (training.parts.get(name, "unknown") for name in ("python", "torch"))
    return Examined(name="training", health=CheckResult.OK, found=f"{python}, torch {torch}")


def examined_gpu(
    settings: GateSettings, training: TrainingSeen, host: GpusSeen, isolation: Isolation | None
) -> Examined:
    """A required GPU that is missing fails; the gate never falls back to the CPU."""
    health, found, fix = _gpu(settings.train.device, training, host, isolation)
    return Examined(name="gpu", health=health, found=found, fix=fix)


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
    """The GPUs that torch can use now, and whether another process could take them away."""
    shown = "; ".join(training.gpus)
    modes = sorted({gpu.compute_mode for gpu in host.gpus if not gpu.shared})
    alone = [f"compute mode {mode}" for mode in modes] + (["MPS runs"] if host.mps else [])
    if not alone:
        return CheckResult.OK, shown, ""
    return CheckResult.WARN, f"{shown}. {ALONE}: {', '.join(alone)}", ALONE_FIX


def examined_driver(settings: GateSettings, training: TrainingSeen, host: GpusSeen) -> Examined:
    """Versions that a result on a GPU depends on."""
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
    """Room for DataLoader workers and ranks, as the training has it."""
    size = training.shm_bytes
    if size is None:
        return Examined(name="shared memory", health=CheckResult.WARN, found="its size is unknown")
    found = f"{size // MIB:,} MiB in /dev/shm"
    # exactly what an engine gives by default is nearly always too little for data workers
    if size > DEFAULT_CONTAINER_SHM_BYTES:
        return Examined(name="shared memory", health=CheckResult.OK, found=found)
    container = isolation is not None and isolation.in_container
    return Examined(
        name="shared memory",
        health=CheckResult.WARN,
        found=f"{found}: DataLoader workers may crash with SIGBUS",
        fix="Raise isolation.shm_bytes."
        if container
        else "Use num_workers=0 in the smoke training, set isolation.image, or raise the "
        "engine's `default-shm-size`.",
    )
