"""A package whose call resumed a run is run again, and so is its resume."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from forked_trainings import ForkedBench, with_forks
from gate_bench import FILES, adapters_at
from git_workshop import Repository
from rich.console import Console

from gate.commands.reproduce import reproduction_view
from gate.diagnosis.diagnosis import ResumeState
from gate.errors import RunError
from gate.package.members import write_package
from gate.pipelines.kept_evidence import open_kept_package
from gate.pipelines.opening import (
    Reproduction,
    ReproductionCall,
    ReproductionOutcome,
    SealChecked,
    open_for_reproduction,
)
from gate.pipelines.reproduce import reproduce

pytestmark = pytest.mark.torch
RESTORES = '    torch.set_rng_state(saved["random"])\n'
SAVES = '    torch.save(state, "last.pt")\n'
SCRIPT = f"""
import os
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
begun = 0
if os.path.exists("last.pt"):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begun = saved["step"]
{RESTORES}
inputs = torch.linspace(0, 1, 32).reshape(8, 4)
for step in range(begun, 9):
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}}
    state["random"] = torch.get_rng_state()
{SAVES}
"""
SETTINGS = """\
version: 1
train: {command: python train.py, max_steps: 8, device: cpu}
resume: {checkpoint: last.pt, at_step: 4}
isolation: {mode: none}
cost: {when: never}
"""


def _again(package: Path, clone: Path, out: Path) -> Reproduction:
    opened = open_for_reproduction(
        ReproductionCall(package=package, out=out, repository=clone, work_tree=True, data={}),
        open_kept_package(FILES, package),
        FILES,
        lambda top: with_forks(adapters_at(top)),
    )
    return reproduce(opened, SealChecked(), seeds=0, started_at=datetime(2026, 1, 1, tzinfo=UTC))


def _text(found: Reproduction) -> str:
    console = Console(file=io.StringIO(), width=120, markup=False)
    console.print(reproduction_view(found), crop=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _packed(project: Repository, tmp_path: Path, script: str, state: ResumeState) -> Path:
    """Gate a script whose resume ends in this state, and return the package."""
    bench = ForkedBench(project, tmp_path / "out")
    project.write("train.py", script)
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    gated = bench.gate()
    assert gated.verdict.resume is not None
    assert gated.verdict.resume.state is state
    request = bench.request()
    written = write_package(gated.verdict, gated.evidence, None, request, FILES, gated.documents)
    return Path(written.path.rename(tmp_path / "package.tar"))


def test_a_package_whose_own_resume_differs_is_reproduced_as_it_is(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    forgets = SCRIPT.replace(RESTORES, "")
    package = _packed(project, tmp_path, forgets, ResumeState.DIFFERS)
    same = _again(package, project.path, tmp_path / "same")
    assert (same.outcome, int(same.exit_code)) == (ReproductionOutcome.REPRODUCED, 0)
    row = next(line for line in _text(same).splitlines() if "resumed run" in line)
    assert "resumes differently from step 4" in row
    assert "in the package: differs" in " ".join(_text(same).split())


def test_a_resume_is_repeated_with_its_package(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    package = _packed(project, tmp_path, SCRIPT, ResumeState.EXACT)
    clone = project.path

    same = _again(package, clone, tmp_path / "same")
    assert same.outcome is ReproductionOutcome.REPRODUCED
    assert "resumed run  ✅ resumes exactly from step 4" in _text(same)

    project.write("train.py", SCRIPT.replace(RESTORES, ""))
    other = _again(package, clone, tmp_path / "other")
    assert (other.outcome, int(other.exit_code)) == (ReproductionOutcome.RESUME_DIFFERS, 1)
    shown = _text(other)
    assert shown.startswith("❌ not reproduced: a resumed run gives a different result")
    assert "The first difference of the resumed run: torch's generator was not restored." in shown

    project.write("train.py", SCRIPT.replace(SAVES, ""))
    with pytest.raises(RunError, match=r"resume could not be repeated: the checkpoint last\.pt"):
        _again(package, clone, tmp_path / "unsaved")
