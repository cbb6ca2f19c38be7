"""Other branches of the numeric libraries: environments of one machine that really differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_bench import Bench
from git_workshop import Repository

from gate.verdict.verdict import Outcome

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# wide enough for vector instructions, and for products of matrices that a library takes over
TRAINING = """
import torch

model = torch.nn.Sequential(
    torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
x = torch.sin(torch.arange(64 * 64.0)).reshape(64, 64)
for _ in range(6):
    loss = torch.nn.functional.cross_entropy(model(x), torch.arange(64) % 10)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SETTINGS = """\
version: 1
train:
  command: python train.py
  max_steps: 6
  pass_env: [ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS]
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Bench, str]:
    """A project, and the commit with its baseline of this machine as it is."""
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.delenv(name, raising=False)
    project = Repository(tmp_path / "project")
    project.write("repro-gate.yml", SETTINGS)
    project.write("train.py", TRAINING.replace("RATE", "0.1"))
    project.commit()
    bench = Bench(project, tmp_path / "out")
    return bench, bench.record()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ATEN_CPU_CAPABILITY", "default"),
        ("ONEDNN_MAX_CPU_ISA", "SSE41"),
        ("MKL_ENABLE_INSTRUCTIONS", "SSE4_2"),
    ],
)
def test_another_branch_is_another_environment_and_no_drift_of_the_code(
    recorded: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    bench, base = recorded
    monkeypatch.setenv(variable, value)
    bench.project.write("README.md", "a change that moves nothing")
    bench.project.commit()
    verdict = bench.gate(base=base).verdict
    assert verdict.baseline is not None
    assert "variables" in {change.part for change in verdict.baseline.environment}
    # a processor may have no such branch: then the bits are the baseline's
    if verdict.outcome is not Outcome.REPRODUCED:
        assert verdict.outcome is Outcome.WITHIN_TOLERANCE
        assert verdict.cause.endswith("equal to the base commit run on this machine")
        assert [run.label for run in verdict.runs][-2:] == ["base-1", "base-2"]
    bench.project.write("train.py", TRAINING.replace("RATE", "0.11"))
    bench.project.commit()
    assert bench.gate(base=base).verdict.outcome is Outcome.CODE_DRIFT
