"""Where a run might have used a GPU of this machine and did not: could it have?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gate.errors import GateError
from gate.evidence.run_evidence import RunEvidence
from gate.isolation.modes import Isolation
from gate.isolation.process_ports import Processes
from gate.pipelines.adapters import Adapters
from gate.pipelines.doctor.machine_checks import why_no_gpu
from gate.settings.gate_settings import Device, GateSettings
from gate.system.files.port import Files
from gate.system.gpu import GpuMissed, GpusSeen
from gate.system.training_seen import TrainingSeen

# the settings, how the training is kept apart, a run's folder, files, processes, own variables
Probe = Callable[[GateSettings, Isolation, Path, Files, Processes, Mapping[str, str]], TrainingSeen]


class GpuSearch:
    """Asked once a call; `missed` says what a run missed, None where it missed none."""

    def __init__(
        self, settings: GateSettings, adapters: Adapters, folder: Path, probe: Probe
    ) -> None:
        """`folder` is that of a run, which `probe` may use between two of them."""
        self._settings = settings
        self._probe = probe
        self._adapters = adapters
        self._folder = folder
        self._looked = False
        self.missed: GpuMissed | None = None

    def look(self, run: RunEvidence, isolation: Isolation) -> None:
        """Ask the training's Python in a process of its own, kept apart as a run is.

        A training is never asked to start a GPU that it leaves alone.
        """
        adapters = self._adapters
        if self._looked or self._settings.train.device is Device.CPU:
            return
        self._looked = True
        host = adapters.gpus() if run.environment.ranks_on_cpu else GpusSeen()
        if not host.names:
            return
        try:
            with adapters.progress.running("checking why the training used no GPU"):
                training = self._probe(
                    self._settings,
                    isolation,
                    self._folder,
                    adapters.files,
                    adapters.processes,
                    adapters.host,
                )
        except GateError as fault:
            training = TrainingSeen(problem=fault.message, hint=fault.hint)
        adapters.clean_up(isolation)
        self.missed = why_no_gpu(host, training, isolation)
