"""A real training: the configuration is recorded, and named where a number of it is the cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_trainings import ForkedBench
from git_workshop import Repository

from gate.diagnosis.diagnosis import CauseClass
from gate.report.brief import brief_of

SCRIPT = """
import argparse
import json
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--hub-token", default="a secret")
args = parser.parse_args()
settings = json.load(open("conf/model.json"))
model = torch.nn.Linear(settings["width"], 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for step in range(20):
    loss = model(torch.randn(8, settings["width"])).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SETTINGS = """\
version: 1
train: {command: python train.py, max_steps: 3}
isolation: {mode: none}
cost: {when: never}
diagnosis: {escalate: false}
"""


@pytest.mark.torch
def test_a_rate_that_an_argument_changed_is_traced_to_it(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    project.write("train.py", SCRIPT)
    project.write("repro-gate.yml", SETTINGS)
    project.write("conf/model.json", '{"width": 4, "name": "small"}')
    # the harness reads it to tell what was installed from this commit; the training does not
    project.write("pyproject.toml", '[project]\nname = "repro-gate"\n')
    project.commit()
    bench = ForkedBench(project, tmp_path / "out")
    bench.record()
    project.write("train.py", SCRIPT.replace("default=0.1", "default=0.2"))
    project.write("conf/model.json", '{"width": 4, "name": "larger"}')
    project.commit()

    verdict = bench.gate().verdict
    assert verdict.configuration is not None
    assert verdict.configuration.values == {
        "argparse.hub_token": '"(hidden)"',
        "argparse.lr": "0.2",
        "conf/model.json.name": '"larger"',
        "conf/model.json.width": "4",
    }
    assert [change.described for change in verdict.configuration_changes] == [
        "lr: 0.1 → 0.2 in the parsed arguments",
        'name: "small" → "larger" in conf/model.json',
    ]
    happened = brief_of(verdict).happened
    assert "Cause: lr 0.1 → 0.2 (lr in the parsed arguments)." in happened
    assert "larger" not in happened


@pytest.mark.torch
def test_a_file_of_arguments_is_settings_and_no_data(tmp_path: Path) -> None:
    project = Repository(tmp_path / "project")
    script = SCRIPT.replace("Parser()", 'Parser(fromfile_prefix_chars="@")')
    script = script.replace('"--lr"', '"--scale"').replace("lr=args.lr", "lr=0.1")
    project.write("train.py", script.replace(".mean()", ".mean() * args.scale"))
    project.write(
        "repro-gate.yml", SETTINGS.replace("python train.py", '"python train.py @args.txt"')
    )
    project.write("conf/model.json", '{"width": 4}')
    project.write("args.txt", "--scale=1.0\n")
    project.commit()
    bench = ForkedBench(project, tmp_path / "out")
    base = bench.record()
    project.write("args.txt", "--scale=1.5\n")
    project.commit()

    verdict = bench.gate(base=base).verdict
    assert verdict.diagnosis is not None
    assert verdict.diagnosis.cause_class is CauseClass.RUN_SETTINGS
    assert verdict.change is not None
    assert verdict.change.places == "args.txt:1"
