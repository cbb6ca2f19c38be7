"""`repro-gate gameday`: what is planted is caught, and where it cannot be planted that is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Ended, Run
from git_workshop import Repository
from played_training import Project

from gate.pipelines.gameday import chosen_faults
from gate.pipelines.gameday_faults import FAULTS

TRAINING = '''\
"""A loop whose future import has to stay the first line."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.sin(torch.arange(640.0)).reshape(64, 10)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for (batch,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True):
    loss = (model(batch) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
'''
SETTINGS = """\
version: 1
train: {command: python train.py, max_steps: 6}
cost: {when: never}
isolation: {mode: none}
"""


def faults(ended: Ended) -> dict[str, dict[str, object]]:
    return {fault["code"]: fault for fault in json.loads(ended.out)["faults"]}


def test_each_kind_of_failure_has_a_fault() -> None:
    codes = [fault.code for fault in FAULTS]
    assert codes[:8] == [f"F{number}" for number in range(1, 9)]
    assert len(set(codes)) == len(codes)
    assert [fault.code for fault in chosen_faults("f3, Revoked-Key")] == ["F3", "revoked-key"]
    # each can be planted somewhere, and there is something else without it
    assert [one.code for one in FAULTS if not one.any_project and not one.before] == []
    assert [one.code for one in FAULTS if one.before and one.before == one.script] == [
        "moved-data",
        "deleted-snapshot",
    ]


@pytest.mark.parametrize("only", ["F9", "F1,F9", ",", ""])
def test_an_unknown_fault_is_refused(project: Project, run: Run, only: str) -> None:
    ended = run("gameday", "--only", only)
    assert ended.code == 2
    told = "there is no such fault" if only.strip(",") else "--only names no fault"
    assert told in ended.err
    assert "F1, F2" in ended.err
    assert not (project.path / "repro-gate-gameday").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_fault_in_a_copy_of_the_project_is_caught_and_named(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Repository(tmp_path / "project")
    project.write("train.py", TRAINING)
    project.write("repro-gate.yml", SETTINGS)
    project.commit()
    monkeypatch.chdir(project.path)
    ended = run("gameday", "--only", "F1,F6", "--json")
    assert ended.code == 0, ended.out + ended.err
    for code, outcome in (("F1", "nondeterministic"), ("F6", "code-drift")):
        fault = faults(ended)[code]
        assert (fault["own"], fault["outcome"], fault["failure_mode"]) == (True, outcome, code)
        assert fault["caught"] is fault["named"] is fault["alerted"] is True
        assert fault["runbook"] == f"docs/runbooks.md#{code.lower()}"
    # nothing of it is in the project, and no copy stays
    assert project.git("status", "--porcelain") == ""
    assert not (project.path / "repro-gate-gameday" / "copies").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_project_that_starts_no_script_gets_the_built_in_training(
    project: Project, run: Run
) -> None:
    text = (project.path / "repro-gate.yml").read_text()
    project.write("repro-gate.yml", text.replace("python3 train.py", "sh train.sh"))
    project.commit()
    ended = run("gameday", "--only", "F1", "--json")
    fault = faults(ended)["F1"]
    assert fault["own"] is False
    assert fault["why_built_in"] == "train.command starts no script of the commit: sh train.sh"
    assert (ended.code, fault["caught"]) == (0, True), fault
