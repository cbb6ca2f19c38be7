"""Operators through the whole gate, with torch: refused, admitted at a weaker level, counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from gate_bench import Bench
from git_workshop import Repository

from gate.errors import RunError
from gate.verdict.verdict import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SCRIPT = """
import torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    x = torch.ones(2, 2).put_(torch.tensor([0]), torch.ones(1))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
SETTINGS = """
version: 1
train: {command: python train.py, max_steps: 2}
isolation: {mode: none}
"""


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    repository = Repository(tmp_path / "project")
    repository.write("train.py", SCRIPT)
    repository.write("repro-gate.yml", SETTINGS)
    repository.commit()
    return ForkedBench(repository, tmp_path / "out")


def test_strict_mode_that_refuses_names_operator_line_remedy_and_entry(bench: Bench) -> None:
    with pytest.raises(RunError) as caught:
        bench.gate()
    assert "strict mode refused put_ at train.py:6, step 1" in caught.value.message
    assert "Use index_put_ or scatter with indices that occur once." in caught.value.hint
    assert caught.value.hint.endswith("determinism: {allow_operators: ['put_']}")


def test_the_entry_admits_it_at_a_weaker_level_and_the_operator_audit_counts_it(
    bench: Bench,
) -> None:
    entry = "determinism: {allow_operators: ['put_']}\noperator_audit: true\n"
    bench.project.write("repro-gate.yml", SETTINGS + entry)
    bench.project.commit()
    found = bench.gate()
    assert found.verdict.outcome is Outcome.NO_BASELINE
    assert found.proposed is not None
    assert "weaker-level" in [finding.code for finding in found.verdict.findings]
    assert found.verdict.operator_audit is not None
    (row,) = found.verdict.operator_audit.rows
    assert (row.operator, row.calls_per_step, row.steps) == ("put_", "1", "1-2")
    assert row.where == "train.py:6"
