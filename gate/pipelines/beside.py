"""Whether runs fit beside each other, and for how long one goes alone."""

from __future__ import annotations

import math

from gate.evidence.run_evidence import RunEvidence
from gate.settings.measuring import CostSettings
from gate.system.gpu import GpusSeen
from gate.system.room import Room

# a second run of the same work may peak a little higher
MARGIN = 1.25
HOST_RESERVE_BYTES = 1024**3
# a context and what its libraries hold, beside the tensors that torch counts
GPU_RESERVE_BYTES = 3 * 1024**3 // 2


def fits_beside(run: RunEvidence, room: Room, gpus: GpusSeen, together: int) -> bool:
    """Whether so many runs that need what this one needed fit into memory at the same time.

    Without a GPU in use, `device_memory_bytes` is 0 and only the host's counts.
    """
    host = int(run.peak_memory_bytes * MARGIN) * together + HOST_RESERVE_BYTES
    return host <= room.free_bytes and _fits_gpu(run.device_memory_bytes, gpus, together)


def _fits_gpu(device_bytes: int, gpus: GpusSeen, together: int) -> bool:
    if not device_bytes:
        return True
    # which of several a run uses is its own choice, and slices tell no memory of their own
    if len(gpus.gpus) != 1 or gpus.mps:
        return False
    gpu = gpus.gpus[0]
    if not gpu.shared or gpu.mig:
        return False
    needed = together * (int(device_bytes * MARGIN) + GPU_RESERVE_BYTES)
    return needed <= gpu.free_bytes


# of all steps of a strict run, the share that runs alone where the price is asked for
ALONE_SHARE = 0.15


def seconds_alone(run: RunEvidence, settings: CostSettings) -> float:
    """How long a run that does what this one did has to go alone for the steps that are timed.

    While it begins, the next one starts on other cores, which takes as long as this one's start;
    zero where nothing was timed.
    """
    if not run.timings or run.first_step_seconds is None:
        return 0.0
    steps = max(
        settings.warmup_steps + settings.min_steps, math.ceil(ALONE_SHARE * len(run.timings))
    )
    # the first is in the start
    later = run.timings[1 : steps + 1]
    taken = sum(later.seconds) + sum(later.harness_seconds)
    return run.first_step_seconds + taken
