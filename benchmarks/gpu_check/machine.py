"""Describe the machine, in a separate process: a process that looks at a GPU takes memory of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from gpu_check.bench import here, output_of
from gpu_check.rows import Machine


def look() -> Machine:
    """Return what this process sees of the machine; imports torch."""
    import torch  # noqa: PLC0415 - the process that asks is to stay without it

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    parts = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if gpu:
        driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]  # torch
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # torch
        parts += [f"CUDA {torch.version.cuda}", f"cuDNN {cudnn}", f"NCCL {nccl}"]
        parts.append(f"driver {driver}")
    return Machine(gpu=gpu, software=", ".join(parts), processor=_processor())


def machine() -> Machine:
    """Return what a separate process sees of the machine, so that this one stays without torch."""
    ended = subprocess.run(
        (sys.executable, "-m", "gpu_check.machine"),
        env=here(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return Machine(**json.loads(ended.stdout))


def _processor() -> str:
    names = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if line.startswith("model name")
    )
    name = next(names, platform.machine())
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.release()}"


if __name__ == "__main__":
    print(json.dumps(asdict(look())))
