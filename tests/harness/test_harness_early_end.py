"""A run for a diagnosis is stopped on purpose: with every optimizer, and behind what is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness.conftest import Harness

pytestmark = pytest.mark.torch

START = """
import torch
one, two = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
first = torch.optim.SGD(one.parameters(), lr=0.1)
second = torch.optim.SGD(two.parameters(), lr=0.1)
def update(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""
GAN = f"""{START}
for step in range(1, 9):
    update(one, first)
    update(two, second)
    print("evaluated", step, flush=True)
"""
SELDOM = f"""{START}
for step in range(1, 9):
    update(one, first)
    if step % 3 == 0:
        update(two, second)
"""
# the scaler finds an infinity in every second pass, and skips that step
SCALED = f"""{START}
scaler = torch.amp.GradScaler("cpu")
for step in range(1, 9):
    first.zero_grad()
    scaler.scale(one(torch.ones(1, 2)).sum() * (float("inf") if step % 2 else 1.0)).backward()
    scaler.step(first)
    scaler.update()
    print("evaluated", step, flush=True)
"""
ACCUMULATED = f"""{START}
for step in range(1, 9):
    first.zero_grad()
    for _ in range(3):
        one(torch.ones(1, 2)).sum().backward()
    first.step()
    print("evaluated", step, flush=True)
"""
CASES = {
    "every optimizer has stepped": (GAN, ("2", "2", "0"), {0: 2, 1: 2}, 1),
    "what is written after the step is there": (GAN, ("2", "2", "1"), {0: 2, 1: 2}, 2),
    "one that steps seldom is waited for": (SELDOM, ("2", "2", "0"), {0: 6, 1: 2}, 0),
    "one that never comes so far ends nothing": (SELDOM, ("5", "2", "0"), {0: 8, 1: 2}, 0),
    "a step that is skipped counts": (SCALED, ("3", "1", "0"), {0: 3}, 2),
    "a skipped step that follows ends it too": (SCALED, ("2", "1", "1"), {0: 3}, 2),
    "accumulated passes are one step": (ACCUMULATED, ("2", "1", "1"), {0: 2}, 2),
    "the training's own end comes first": (GAN, ("99", "2", "1"), {0: 8, 1: 8}, 8),
}


@pytest.mark.parametrize(("script", "end", "taken", "evaluated"), CASES.values(), ids=CASES)
def test_a_run_ends_where_it_is_asked_to(
    harness: Harness, script: str, end: tuple[str, str, str], taken: dict[int, int], evaluated: int
) -> None:
    names = ("END_STEP", "END_OPTIMIZERS", "END_WRITTEN")
    asked = {f"REPRO_GATE_{name}": text for name, text in zip(names, end, strict=True)}
    ended = harness.run(script, REPRO_GATE_MAX_STEPS="50", **asked)
    assert (ended.code, ended.stderr) == (0, "")
    counts: dict[int, int] = {}
    for line in ended.lines("steps"):
        counts[line["optimizer"]] = counts.get(line["optimizer"], 0) + 1
    assert counts == taken
    assert ended.stdout.count("evaluated") == evaluated


# As TensorBoard's: what is added waits in a queue until somebody flushes it.
WRITER = """
class EventFileWriter:
    def __init__(self, path):
        self.path, self.waiting = path, []
    def add(self, text):
        self.waiting.append(text)
    def flush(self):
        with open(self.path, "a") as file:
            file.write(" ".join(self.waiting))
        self.waiting = []
"""
LOGS = f"""{START}
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter("events")
for step in range(1, 9):
    writer.add(str(step))
    update(one, first)
"""


@pytest.mark.parametrize(("max_steps", "written"), [("3", "1 2 3"), ("50", "1 2 3 4 5 6 7 8")])
def test_events_that_wait_for_a_flush_are_written_at_the_end(
    harness: Harness, tmp_path: Path, max_steps: str, written: str
) -> None:
    package = tmp_path / "tensorboard" / "summary" / "writer"
    package.mkdir(parents=True)
    (package / "event_file_writer.py").write_text(WRITER)
    ended = harness.run(LOGS, python_path=str(tmp_path), REPRO_GATE_MAX_STEPS=max_steps)
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.out.with_name("events").read_text() == written
