"""Run small scripts under the real harness with operator traces, and compare two runs."""

from __future__ import annotations

from pathlib import Path

from harness_runs import HarnessRuns

from gate.diagnosis.traces import compare_traces
from gate.evidence.harness_logs import read_traces
from gate.evidence.run_evidence import RunEvidence
from gate.evidence.trace import RankTrace, TraceFinding
from gate.system.files.files import LocalFiles
from gate.training.runs import RunMode

FILES = LocalFiles()

TRAINING = """
import os, threading, time
import numpy as np, torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        h = F.relu(self.fc(x))
        h = self.drop(h)
        return self.out(h)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 8)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
"""


def line_of(source: str, part: str) -> int:
    """Return the number of the first line that contains a piece of text."""
    return next(number for number, line in enumerate(source.splitlines(), start=1) if part in line)


def changed(old: str, new: str, source: str = TRAINING) -> str:
    """Return the training with one piece of text replaced."""
    assert old in source
    return source.replace(old, new)


class TracedRuns:
    """Traced runs of scripts, each in a separate process."""

    def __init__(self, runs: HarnessRuns) -> None:
        self._runs = runs

    def trace(
        self, source: str, *, first: int = 1, last: int = 2, lines: bool = False, **variables: str
    ) -> tuple[RunEvidence, tuple[RankTrace, ...]]:
        """Return a run's evidence and traces, from step `first` to its end after step `last`."""
        before = set(self._runs.runs.iterdir())
        evidence = self._runs.run(
            source,
            mode=RunMode.STRICT,
            threads=1,
            REPRO_GATE_MAX_STEPS=str(last),
            REPRO_GATE_TRACE_FROM=str(first),
            REPRO_GATE_TRACE_LINES="1" if lines else "0",
            **variables,
        )
        folder = next(iter(set(self._runs.runs.iterdir()) - before))
        return evidence, read_traces(FILES, Path(folder) / "out")

    def repeat(self, source: str, *, first: int = 1, last: int = 2) -> TraceFinding:
        """Compare two traced runs of one script."""
        one, other = (self.trace(source, first=first, last=last)[1] for _ in range(2))
        return compare_traces(one, other, drift=False)

    def drift(self, base: str, head: str, *, last: int = 2) -> TraceFinding:
        """Compare a traced run of the base with one of the head."""
        return compare_traces(
            self.trace(base, last=last)[1], self.trace(head, last=last)[1], drift=True
        )
