"""Run a script under the real harness, and collect its evidence as the gate would."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evidence_cases import record_of, settings_of
from torch_processes import run_script

from gate.evidence.collect import collect_run
from gate.evidence.run_evidence import RunEvidence
from gate.system.files.files import LocalFiles
from gate.training.run_folders import install_harness
from gate.training.runs import RunMode

FILES = LocalFiles()


def copy_harness(target: Path) -> Path:
    """Create the folder that the launcher puts first on PYTHONPATH."""
    install_harness(LocalFiles(), target)
    return target


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessRuns:
    """A copied harness, and the folder under which runs live.

    Not `forked`: each in a Python that starts for it, whose addresses are its own.
    """

    folder: Path
    runs: Path
    forked: bool = True

    def run(
        self,
        source: str,
        *,
        mode: RunMode = RunMode.STRICT,
        threads: int = 1,
        checkpoint: str | None = None,
        **variables: str,
    ) -> RunEvidence:
        """Run a script to its last step; `variables` override those of the protocol."""
        place = Path(tempfile.mkdtemp(dir=self.runs))
        (place / "script.py").write_text(source, encoding="utf-8")
        (place / "out").mkdir()
        told = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.folder),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": str(threads),
            "REPRO_GATE_OUT": str(place / "out"),
            "REPRO_GATE_MODE": mode.value,
            "REPRO_GATE_SEED": "42",
            "REPRO_GATE_MAX_STEPS": "4",
            "REPRO_GATE_THREADS": str(threads),
            "REPRO_GATE_FILL": "0",
            # a budget that no run reaches, so that every step is observed
            "REPRO_GATE_FREE_SECONDS": "10000",
        }
        ended = run_script(place, told | variables, forked=self.forked)
        assert ended.code == 0, ended.stderr
        label = "strict-1" if mode is RunMode.STRICT else "default-1"
        train = settings_of().train.model_copy(update={"checkpoint": checkpoint})
        return collect_run(FILES, record_of(label), place / "out", place, b"", train)
