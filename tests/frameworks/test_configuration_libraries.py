"""OmegaConf, Hydra and transformers as they are: what their users configure is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness_runs import HarnessRuns, copy_harness

pytestmark = [pytest.mark.torch, pytest.mark.slow]

LOOP = """
def fit(lr):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for step in range(5):
        loss = model(torch.ones(4, 2)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def _recorded(tmp_path: Path, script: str) -> dict[str, str]:
    runs = HarnessRuns(folder=copy_harness(tmp_path / "harness"), runs=tmp_path, forked=False)
    return runs.run(f"import torch\n{LOOP}\n{script}").configuration


def test_omegaconf_as_the_script_merges_it(tmp_path: Path) -> None:
    pytest.importorskip("omegaconf")
    found = _recorded(
        tmp_path,
        """
from omegaconf import OmegaConf
plain = OmegaConf.create({"optimizer": {"lr": 0.1, "name": "sgd"}, "token": "hf_0123456789abcdef"})
config = OmegaConf.merge(plain, OmegaConf.from_dotlist(["optimizer.lr=0.2"]))
fit(config.optimizer.lr)
""",
    )
    assert found == {
        "omegaconf.optimizer.lr": "0.2",
        "omegaconf.optimizer.name": '"sgd"',
        "omegaconf.token": '"(hidden)"',
    }


def test_the_configuration_that_hydra_composed(tmp_path: Path) -> None:
    pytest.importorskip("hydra")
    found = _recorded(
        tmp_path,
        """
import sys, pathlib
folder = pathlib.Path("conf")
folder.mkdir()
(folder / "config.yaml").write_text("optimizer: {lr: 0.1, name: sgd}\\n")
import hydra
sys.argv = ["script.py", "optimizer.lr=0.3", "hydra.run.dir=."]

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    fit(config.optimizer.lr)

main()
""",
    )
    own = {name: text for name, text in found.items() if name.startswith(("hydra.", "omegaconf"))}
    assert own == {"hydra.optimizer.lr": "0.3", "hydra.optimizer.name": '"sgd"'}


def test_training_arguments_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = _recorded(
        tmp_path,
        """
from transformers import TrainingArguments
arguments = TrainingArguments(output_dir="out", learning_rate=0.3, hub_token="abc", use_cpu=True)
fit(arguments.learning_rate)
""",
    )
    assert found["TrainingArguments.learning_rate"] == "0.3"
    assert found["TrainingArguments.hub_token"] == '"(hidden)"'
    assert found["TrainingArguments.output_dir"] == '"out"'
    assert not [name for name in found if "logging_dir" in name]
