"""Gate calls on a cluster with Slurm's real daemons, each in a separate process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from played_training import WITH_RANKS, Project

SECONDS = 600.0
TRAIN = "version: 1\ntrain: {{command: {command}, max_steps: 10}}\ncost: {{when: never}}\n"


class RealCluster:
    """Slurm's programs, and `repro-gate` with them on its PATH."""

    def __init__(self, variables: Mapping[str, str], folder: Path) -> None:
        self.shared = folder / "shared"
        self.shared.mkdir()
        folder_of_python = Path(sys.executable).parent
        self.variables = {**variables, "PATH": f"{folder_of_python}:{variables['PATH']}"}

    def settings(
        self, project: Project, command: str = "python3 train.py", script: str = "", **keys: object
    ) -> None:
        """Let a project train on the cluster; without a script it plays."""
        lines = {"engine": "slurm", "nodes": 2, "folder": str(self.shared), **keys}
        section = "".join(f"  {key}: {json.dumps(value)}\n" for key, value in lines.items())
        project.write("repro-gate.yml", f"{TRAIN.format(command=command)}cluster:\n{section}")
        project.write("train.py", script or WITH_RANKS)
        project.commit()

    def slurm(self, *words: str) -> str:
        """Run one of Slurm's programs, and return its output."""
        done = subprocess.run(
            words, env=self.variables, capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode().strip()

    def start(self, project: Project, *words: str, out: str = "out") -> subprocess.Popen[bytes]:
        """Start a gate call without waiting for it."""
        return self.start_plain(project, *words, "--out", str(project.path.parent / out))

    def start_plain(self, project: Project, *words: str) -> subprocess.Popen[bytes]:
        """Start a verb that writes no output folder."""
        command = (sys.executable, "-m", "gate", *words)
        return subprocess.Popen(
            command,
            cwd=project.path,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def call(self, project: Project, *words: str, out: str = "out") -> tuple[int, str]:
        """Run a gate call; return its exit code, and its output with lines joined."""
        return ended(self.start(project, *words, out=out))

    def jobs(self, states: str = "PENDING,RUNNING") -> list[str]:
        """Return the ids of the jobs in these states."""
        return self.slurm("squeue", "--noheader", f"--states={states}", "--format=%i").split()

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until a condition holds, since the daemons act asynchronously."""
        ends_at = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < ends_at
            time.sleep(0.2)

    def recover(self) -> None:
        """Cancel all jobs, and make every node idle again."""
        for job in self.jobs():
            self.slurm("scancel", job)
        for line in self.slurm("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines():
            node, state = line.split()
            if state.rstrip("*") in {"down", "drain", "drng", "fail"}:
                self.slurm("scontrol", "update", f"nodename={node}", "state=resume")
        self.until(lambda: set(self.slurm("sinfo", "-h", "-N", "-o", "%t").split()) == {"idle"})


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for a process; return its exit code, and its output with lines joined."""
    try:
        output, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    return process.returncode, " ".join(output.decode("utf-8", "replace").split())
