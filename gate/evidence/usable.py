"""What makes a run's evidence useless for every comparison, whatever it holds."""

from __future__ import annotations

from gate.errors import RunError
from gate.evidence.processes.overrides import refuse_overrides
from gate.records.gpu import GpuMissed
from gate.records.observed.evidence import RunEvidence
from gate.records.settings import Device, GateSettings


def refuse_unusable(
    run: RunEvidence, settings: GateSettings, missed: GpuMissed | None = None
) -> None:
    """Refuse a run that overrode settings where they say `fail`, or used the wrong device.

    A GPU that was asked for and not used would make every later comparison meaningless. `missed`
    says why it was not, where that is known.
    """
    refuse_overrides(run, settings.determinism.on_override)
    wanted = settings.train.device
    if wanted is Device.CUDA and run.environment.ranks_on_cpu:
        who = "a rank of the training" if run.environment.on_gpu else "the training"
        raise RunError(
            f"run {run.run.label}: train.device is cuda, but {who} ran on the CPU"
            f"{f': {missed.found}' if missed else ''}",
            hint=missed.fix
            if missed
            else "Check whether torch sees a GPU there (python -c 'import torch; "
            "print(torch.cuda.is_available())') and whether the script uses it.",
        )
