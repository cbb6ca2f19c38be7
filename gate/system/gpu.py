"""GPUs of a machine: what the gate sees, what the training could do with them, and why nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from gate.text.records_document import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as its driver reports it.

    `compute_mode` is `Default` where processes share it; `mig` says that it is cut into slices.
    `free_bytes` is the memory that nobody used when it was asked, 0 where that is not told.
    """

    uuid: str
    name: str
    driver: str
    compute_mode: str = ""
    mig: bool = False
    free_bytes: int = 0

    @property
    def shared(self) -> bool:
        """Whether a process may start on it while another one is there."""
        # what is not known is taken as shared: a mode that nobody reads must not raise an alarm
        return self.compute_mode in {"", "Default", "[N/A]"}


@dataclass(frozen=True, kw_only=True, slots=True)
class GpusSeen:
    """What the gate itself sees; `problem` says why nvidia-smi reports none.

    `kernel` names those that the kernel's driver knows, in whatever container this is; `mps` says
    that a server shares GPUs among processes of one account.
    """

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    kernel: tuple[str, ...] = ()
    mps: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Every GPU of the machine by name; none where there is none, or no driver for it."""
        return tuple(gpu.name for gpu in self.gpus) or self.kernel


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFile:
    """A device file as the training sees it; `refusal` is why it could not be opened, or empty."""

    path: str
    mode: int
    gid: int
    refusal: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTried:
    """What torch answered where trainings run, when it was asked for a GPU.

    `built_for` is the CUDA version of its build, empty for one without; `supports` the newest one
    that the driver has, as 1000 times major plus 10 times minor, 0 where that is not known.
    `refusal` holds torch's own words, `hidden_by` a variable that hides every GPU.
    """

    built_for: str = ""
    supports: int = 0
    refusal: str = ""
    hidden_by: str = ""
    files: tuple[DeviceFile, ...] = ()


class GpuObstacle(StrEnum):
    """What kept a training from a GPU of its machine."""

    CPU_BUILD = "cpu-build"
    HIDDEN = "hidden"
    NOT_GIVEN = "not-given"
    CLOSED = "closed"
    LOST = "lost"
    NO_UVM = "no-uvm"
    BUSY = "busy"
    OLD_DRIVER = "old-driver"
    NO_LIBRARY = "no-library"
    FABRIC = "fabric"
    NO_SLICE = "no-slice"
    OTHER = "other"


GIVE_ONE = "docs/gpu.md has six ways to give a container one."
MEANT = "Or set train.device to cpu, if a CPU is meant."
# here and not beside the words of what was found: these may come from another job, a fix never does
GPU_FIXES = {
    GpuObstacle.CPU_BUILD: "Install a build of torch for CUDA where the training runs.",
    GpuObstacle.HIDDEN: "Unset that variable, or let it name a GPU.",
    GpuObstacle.NOT_GIVEN: GIVE_ONE,
    GpuObstacle.CLOSED: "Let the gate be root: it gives the training's account the group of these "
    "files, unless that is root's or opens more than a GPU; without isolation put your own account "
    "into it. Or open them to all: NVreg_DeviceFileMode=0666 for the module nvidia.",
    GpuObstacle.LOST: "The container may not use it, often because it lost its devices while "
    "running: restart it.",
    GpuObstacle.NO_UVM: "As root on the machine: nvidia-modprobe -u -c 0, or start "
    "nvidia-persistenced; restart any container that is already running.",
    GpuObstacle.BUSY: "Another process has exclusive use of it: set its compute mode to default "
    "(nvidia-smi -c DEFAULT), or end MPS, which serves one account at a time.",
    GpuObstacle.OLD_DRIVER: "Update the machine's driver, or train with a torch that is built "
    "for an older CUDA; docs/gpu.md lists the minimum driver for each.",
    GpuObstacle.NO_LIBRARY: "The driver's library (libcuda.so.1) is missing where the training "
    "runs: set NVIDIA_DRIVER_CAPABILITIES to compute,utility for that container.",
    GpuObstacle.FABRIC: "Start nvidia-fabricmanager of the driver's own version on the machine.",
    GpuObstacle.NO_SLICE: "MIG is on, and the training was given no slice: make one (nvidia-smi "
    "mig -cgi ... -C), and name it by its UUID in isolation.gpus or NVIDIA_VISIBLE_DEVICES.",
    GpuObstacle.OTHER: "`repro-gate doctor` on that machine shows what its Python and nvidia-smi "
    f"report. {GIVE_ONE}",
}


class GpuMissed(Document):
    """A GPU that the training could not use: `found` says which, and what was seen of the cause."""

    obstacle: GpuObstacle
    found: str = Field(max_length=1000)

    @property
    def fix(self) -> str:
        """What to do about it."""
        return f"{GPU_FIXES[self.obstacle]} {MEANT}"
