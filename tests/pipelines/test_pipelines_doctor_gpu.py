"""Never a silent CPU: each way in which a machine's GPU stays out of reach has its name and fix."""

from __future__ import annotations

from dataclasses import replace

from each_row import each_row

from gate.isolation.modes import Isolation, IsolationMode
from gate.pipelines.doctor.machine_checks import why_no_gpu
from gate.system.machine import DeviceFile, Gpu, GpuObstacle, GpusSeen, GpuTried, TrainingSeen

GPU = Gpu(uuid="GPU-1", name="NVIDIA H100", driver="550.54.15")
HOST = GpusSeen(gpus=(GPU,), kernel=("NVIDIA H100",))
FILES = tuple(
    DeviceFile(path=f"/dev/nvidia{name}", mode=0o666, gid=0) for name in ("0", "-uvm", "ctl")
)
OWN = Isolation(mode=IsolationMode.NONE, credentials=None, reason="a test")
APART = Isolation(mode=IsolationMode.UID, credentials=None, reason="a test")


def seen(refusal: str = "", **changes: object) -> TrainingSeen:
    tried = GpuTried(built_for="13.0", supports=13000, refusal=refusal, files=FILES)
    return TrainingSeen(
        parts={"torch": "2.13.0"},
        tried=replace(tried, **changes),  # type: ignore[arg-type] # a test names what it plays
    )


def closed(name: str, refusal: str = "Permission denied") -> tuple[DeviceFile, ...]:
    shut = DeviceFile(path=f"/dev/nvidia{name}", mode=0o660, gid=44, refusal=refusal)
    return tuple(shut if file.path == shut.path else file for file in FILES)


NO_GPUS = "No CUDA GPUs are available"
WAYS = {
    "a build of torch for the CPU": (
        (HOST, seen(built_for=""), APART),
        GpuObstacle.CPU_BUILD,
        "the training's torch (2.13.0) is a build without CUDA",
        "Install a build of torch for CUDA",
    ),
    "a variable that hides them": (
        (HOST, seen(hidden_by="CUDA_VISIBLE_DEVICES=-1"), APART),
        GpuObstacle.HIDDEN,
        "CUDA_VISIBLE_DEVICES=-1 hides every GPU from the training",
        "Unset that variable",
    ),
    "a container that was given none": (
        (
            GpusSeen(kernel=("NVIDIA H100",), problem="nvidia-smi was not found"),
            seen(files=()),
            APART,
        ),
        GpuObstacle.NOT_GIVEN,
        "no GPU is visible where the training runs",
        "docs/gpu.md has six ways",
    ),
    "an engine that has none to give": (
        (HOST, seen(files=()), replace(APART, gpu_refusal="could not select device driver")),
        GpuObstacle.NOT_GIVEN,
        "no GPU is visible where the training runs (could not select device driver)",
        "docs/gpu.md has six ways",
    ),
    "device files of a group": (
        (HOST, seen(files=closed("0")), APART),
        GpuObstacle.CLOSED,
        (
            "/dev/nvidia0 (mode 0660, group 44) is not accessible to the training's account: "
            "Permission denied"
        ),
        "Let the gate be root",
    ),
    "the same under one's own account": (
        (HOST, seen(files=closed("ctl")), OWN),
        GpuObstacle.CLOSED,
        "/dev/nvidiactl (mode 0660, group 44) is not accessible",
        "without isolation put your own account into it",
    ),
    "a container that lost its devices": (
        (HOST, seen(files=closed("0", "Operation not permitted")), APART),
        GpuObstacle.LOST,
        "Operation not permitted",
        "restart it",
    ),
    "no nvidia-uvm": (
        (HOST, seen("CUDA unknown error", files=(FILES[0], FILES[2])), APART),
        GpuObstacle.NO_UVM,
        "/dev/nvidia-uvm, which CUDA needs, is missing",
        "nvidia-modprobe -u -c 0",
    ),
    "an old driver by torch's words": (
        (HOST, seen("The NVIDIA driver on your system is too old (found version 12040)"), APART),
        GpuObstacle.OLD_DRIVER,
        "torch is built for CUDA 13.0, the machine's driver 550.54.15",
        "Update the machine's driver",
    ),
    "an old driver by its number": (
        (HOST, seen("no words", supports=12040), APART),
        GpuObstacle.OLD_DRIVER,
        "the machine's driver 550.54.15 supports up to CUDA 12.4",
        "docs/gpu.md lists the minimum driver",
    ),
    "no library of the driver": (
        (HOST, seen("Found no NVIDIA driver on your system.", supports=0), APART),
        GpuObstacle.NO_LIBRARY,
        "Found no NVIDIA driver",
        "NVIDIA_DRIVER_CAPABILITIES to compute,utility",
    ),
    "a fabric that is not up": (
        (HOST, seen("Unexpected error ... Error 802: system not yet initialized"), APART),
        GpuObstacle.FABRIC,
        "Error 802",
        "nvidia-fabricmanager",
    ),
    "a GPU cut into slices, and none given": (
        (replace(HOST, gpus=(replace(GPU, mig=True),)), seen(NO_GPUS), APART),
        GpuObstacle.NO_SLICE,
        NO_GPUS,
        "MIG is on",
    ),
    "a GPU that one process has to itself": (
        (HOST, seen("CUDA-capable device(s) is/are busy or unavailable"), APART),
        GpuObstacle.BUSY,
        "busy or unavailable",
        "nvidia-smi -c DEFAULT",
    ),
    "the same by its compute mode": (
        (replace(HOST, gpus=(replace(GPU, compute_mode="Prohibited"),)), seen(NO_GPUS), APART),
        GpuObstacle.BUSY,
        NO_GPUS,
        "compute mode",
    ),
    "MPS for another account": (
        (replace(HOST, mps=True), seen(NO_GPUS), APART),
        GpuObstacle.BUSY,
        NO_GPUS,
        "end MPS",
    ),
    "something else": (
        (HOST, seen("CUDA unknown error"), APART),
        GpuObstacle.OTHER,
        "torch cannot use it: CUDA unknown error",
        "docs/gpu.md",
    ),
    "a Python that cannot be asked": (
        (HOST, TrainingSeen(problem="its Python timed out after 180 s"), APART),
        GpuObstacle.OTHER,
        "unknown whether the training can use it: its Python timed out after 180 s",
        "docs/gpu.md",
    ),
}


@each_row("way", WAYS)
def test_each_way_is_named_with_its_fix(way: str) -> None:
    (host, training, isolation), obstacle, found, fix = WAYS[way]
    missed = why_no_gpu(host, training, isolation)
    assert missed is not None
    assert missed.obstacle is obstacle
    assert missed.found.startswith("NVIDIA H100; ")
    assert found in missed.found
    assert fix in missed.fix
    assert missed.fix.endswith("Or set train.device to cpu, if you want a CPU.")


def test_every_obstacle_is_played_above() -> None:
    assert {obstacle for _, obstacle, _, _ in WAYS.values()} == set(GpuObstacle)


def test_without_a_gpu_there_is_nothing_to_miss() -> None:
    assert why_no_gpu(GpusSeen(problem="nvidia-smi was not found"), seen(NO_GPUS), OWN) is None


def test_a_gpu_that_torch_can_use_is_the_scripts_own_choice() -> None:
    usable = TrainingSeen(gpus=("NVIDIA H100",))
    assert why_no_gpu(HOST, usable, OWN) is None


def test_many_gpus_are_counted() -> None:
    host = GpusSeen(kernel=("A", "A", "B", "C", "D", "E"))
    missed = why_no_gpu(host, seen(files=()), OWN)
    assert missed is not None
    assert missed.found.startswith("2 x A, B, C, D, ...; ")


def test_what_a_training_says_at_length_is_cut() -> None:
    missed = why_no_gpu(HOST, TrainingSeen(problem="x" * 5000), OWN)
    assert missed is not None
    assert len(missed.found) < 400
