"""The trainings that `gate_time.py` gives to the gate: script, settings, repository."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness_workloads import TRANSFORMER

# How many steps are timed to choose a training's length. The first two are slower and not counted.
CALIBRATING_STEPS = 12
LONG = TRANSFORMER.replace(
    "for tokens in DataLoader(torch.randint(0, 128, (4000, 65)), batch_size=4):",
    "import sys, time\n"
    "steps = int(sys.argv[1])\n"
    "marks = []\n"
    "for tokens in DataLoader(torch.randint(0, 128, (4 * steps, 65)), batch_size=4):\n"
    "    marks.append(time.perf_counter())",
)
CALIBRATED = f"{LONG}print((marks[-1] - marks[2]) / (len(marks) - 3))\n"
# The state is 16 buffers of equal size. The trained layer is tiny, so that steps take no time.
STATE = """
import sys
import torch
from torch import nn
steps, total = map(int, sys.argv[1:])
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        for number in range(16):
            self.register_buffer(f"part{number}", torch.full((total // 64,), float(number)))
        self.head = nn.Linear(8, 8)
    def forward(self, x):
        return self.head(x)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(steps):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().sum().backward()
    optimizer.step()
"""
# A minimal training, so that only the numbers that the gate reads grow.
METRICS = """
import sys
import torch
steps, names = map(int, sys.argv[1:])
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=1e-6)
with open("metrics.jsonl", "w") as file:
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        values = ", ".join(f'"value{name:03}": {1 / (step + name)!r}' for name in range(names))
        file.write(f'{{"step": {step}, {values}}}\\n')
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A training: its script, arguments and number of steps, and the isolation of its settings.

    `own_metrics` is true if the script writes `metrics.jsonl`.
    """

    script: str
    words: tuple[str, ...]
    steps: int
    isolation: str = "auto"
    image: str = ""
    own_metrics: bool = False

    @property
    def settings(self) -> str:
        """The text of its `repro-gate.yml`."""
        lines = [
            "version: 1",
            "train:",
            f"  command: [python, train.py, {', '.join(repr(word) for word in self.words)}]",
            f"  max_steps: {self.steps}",
            "  timeout_seconds: 3600",
            *(("  metrics:", "    file: metrics.jsonl") if self.own_metrics else ()),
            "isolation:",
            f"  mode: {self.isolation}",
            *((f"  image: {self.image}",) if self.image else ()),
        ]
        return "\n".join(lines) + "\n"


def make_repository(folder: Path, workload: Workload) -> Path:
    """Create a repository with one commit, readable by other accounts; return its top folder."""
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "train.py").write_text(workload.script, "utf-8")
    (folder / "repro-gate.yml").write_text(workload.settings, "utf-8")
    git(folder, "init", "--quiet")
    commit_all(folder)
    return folder


def commit_all(folder: Path) -> None:
    """Commit all files of a clone."""
    git(folder, "add", "--all")
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@invalid")
    git(folder, *identity, "commit", "--quiet", "--message", "Benchmark")


def git(folder: Path, *words: str) -> str:
    """Run git in a clone and return its output; raises `CalledProcessError` if it fails."""
    found = shutil.which("git") or "git"
    command = (found, "-C", str(folder), *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
