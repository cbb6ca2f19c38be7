"""Why a training did not get a GPU of its machine, from what was seen on both sides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from gate.isolation.modes import Isolation
from gate.system.gpu import GpuMissed, GpuObstacle, GpusSeen
from gate.system.training_seen import TrainingSeen

MAX_TEXT = 300
SHOWN_GPUS = 4
UVM = "/dev/nvidia-uvm"
# the kernel's word where a container's engine, and not the file's mode, forbids it
FORBIDDEN = "Operation not permitted"
# torch's own words, and a CUDA error's number, in lower case
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
class GpuFacts:
    """What the gate sees of the machine, and what the training's Python found."""

    host: GpusSeen
    training: TrainingSeen
    isolation: Isolation | None


def why_no_gpu(
    host: GpusSeen, training: TrainingSeen, isolation: Isolation | None
) -> GpuMissed | None:
    """Which GPU of the machine the training could not use, why, and what to do.

    None where there is none, or where torch can use one: then it is the script's own choice.
    """
    # the machine has none, or torch can use one: then there is nothing to explain
    if not host.names or training.gpus:
        return None
    seen = GpuFacts(host=host, training=training, isolation=isolation)
    known = next(filter(None, (rule(seen) for rule in RULES)), None)
    obstacle, why = known or _refused(seen)
    return GpuMissed(obstacle=obstacle, found=f"{machine_gpus(host)}; {why[:MAX_TEXT]}")


def machine_gpus(host: GpusSeen) -> str:
    """Every GPU of the machine by name, equal ones counted."""
    kinds = list(Counter(host.names).items())
    shown = [name if count == 1 else f"{count} x {name}" for name, count in kinds[:SHOWN_GPUS]]
    return ", ".join(shown) + (", ..." if len(kinds) > SHOWN_GPUS else "")


def _not_known(seen: GpuFacts) -> Cause | None:
    training = seen.training
    if not training.problem:
        return None
    why = f"unknown whether the training can use it: {training.problem}"
    return GpuObstacle.OTHER, why


def _cpu_build(seen: GpuFacts) -> Cause | None:
    if seen.training.tried.built_for:
        return None
    torch = seen.training.parts.get("torch", "unknown")
    return GpuObstacle.CPU_BUILD, f"the training's torch ({torch}) is a build without CUDA"


def _hidden(seen: GpuFacts) -> Cause | None:
    variable = seen.training.tried.hidden_by
    if not variable:
        return None
    return GpuObstacle.HIDDEN, f"{variable} hides every GPU from the training"


def _not_given(seen: GpuFacts) -> Cause | None:
    files = seen.training.tried.files
    if any(file.path.removeprefix("/dev/nvidia").isdigit() for file in files):
        return None
    refusal = seen.isolation.gpu_refusal if seen.isolation is not None else ""
    told = f" ({refusal})" if refusal else ""
    return GpuObstacle.NOT_GIVEN, f"no GPU is visible where the training runs{told}"


def _closed(seen: GpuFacts) -> Cause | None:
    closed = next((file for file in seen.training.tried.files if file.refusal), None)
    if closed is None:
        return None
    why = (
        f"{closed.path} (mode {closed.mode:04o}, group {closed.gid}) is not accessible to the "
        f"training's account: {closed.refusal}"
    )
    return (GpuObstacle.LOST if closed.refusal == FORBIDDEN else GpuObstacle.CLOSED), why


def _no_uvm(seen: GpuFacts) -> Cause | None:
    if any(file.path == UVM for file in seen.training.tried.files):
        return None
    return GpuObstacle.NO_UVM, f"{UVM}, which CUDA needs, is missing"


# asked in this order: the first that knows a cause is the answer
RULES = (_not_known, _cpu_build, _hidden, _not_given, _closed, _no_uvm)


def _refused(seen: GpuFacts) -> Cause:
    """By torch's own words where these name a cause, else by what nvidia-smi says."""
    host, tried = seen.host, seen.training.tried
    words = tried.refusal.lower()
    found = next((known for sign, known in SIGNS.items() if sign in words), GpuObstacle.OTHER)
    if found is GpuObstacle.OTHER and 0 < tried.supports < _number(tried.built_for):
        found = GpuObstacle.OLD_DRIVER
    elif found is GpuObstacle.OTHER and host.gpus and all(gpu.mig for gpu in host.gpus):
        found = GpuObstacle.NO_SLICE
    elif found is GpuObstacle.OTHER and (host.mps or not all(gpu.shared for gpu in host.gpus)):
        found = GpuObstacle.BUSY
    why = f"torch cannot use it: {tried.refusal or 'it gives no reason'}"
    if found is GpuObstacle.OLD_DRIVER:
        why = f"torch is built for CUDA {tried.built_for}, {_driver(host, tried.supports)}"
    return found, why


def _number(version: str) -> int:
    """13.0 as CUDA numbers it; within one major version a newer torch runs on an older driver."""
    major = version.partition(".")[0]
    # CUDA's minor version compatibility: any driver of the same major version will do
    return int(major) * 1000 if major.isascii() and major.isdigit() else 0


def _driver(host: GpusSeen, supports: int) -> str:
    versions = ", ".join(sorted({gpu.driver for gpu in host.gpus}))
    newest = f" supports up to CUDA {supports // 1000}.{supports % 1000 // 10}" if supports else ""
    return f"the machine's driver {versions}{newest or ' is too old for that'}".replace("  ", " ")
