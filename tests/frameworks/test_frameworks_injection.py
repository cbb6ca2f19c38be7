"""The harness comes along however the training is started, and whatever it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from real_training import Trained, Trainings

from gate.errors import EvidenceError

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Probes for torch as libraries do, before it imports it.
PLAIN = """
import importlib.util
importlib.util.find_spec("torch")
importlib.util.find_spec("numpy.random")
import torch

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    main()
"""

# Its main process only waits; the one that trains is started in the way that the command names.
ELSEWHERE = """
import multiprocessing, sys
import train

if __name__ == "__main__":
    worker = multiprocessing.get_context(sys.argv[1]).Process(target=train.main)
    worker.start()
    worker.join()
    raise SystemExit(worker.exitcode)
"""

# Batches from workers of every context: a worker draws from torch, `random` and NumPy.
LOADING = """
import random
import numpy, torch
from torch.utils.data import DataLoader, Dataset

class Drawn(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        drawn = [random.random(), numpy.random.rand(), torch.rand(1).item()]
        return torch.tensor([float(index), *drawn])

def main():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for context in ("fork", "spawn", "forkserver"):
        loader = DataLoader(
            Drawn(), batch_size=8, shuffle=True, num_workers=2, multiprocessing_context=context
        )
        for batch in loader:
            model(batch).square().mean().backward()
            optimizer.step()

if __name__ == "__main__":
    main()
"""

SITECUSTOMIZE = "print('the own start-up ran')"


@pytest.fixture(scope="module")
def plain(trainings: Trainings) -> Trained:
    return trainings.run(PLAIN)


def numbers(trained: Trained) -> tuple[list[float], dict[str, str]]:
    return trained.series("loss"), trained.tensors()


@pytest.mark.parametrize(
    "command",
    [
        pytest.param((sys.executable, "-m", "package.run"), id="module"),
        pytest.param(("./console-script",), id="console script"),
        pytest.param((sys.executable, "elsewhere.py", "fork"), id="fork"),
        pytest.param((sys.executable, "elsewhere.py", "spawn"), id="spawn"),
        pytest.param((sys.executable, "elsewhere.py", "forkserver"), id="forkserver"),
        pytest.param(("sh", "-c", f"cd . && exec {sys.executable} train.py"), id="shell"),
    ],
)
def test_every_way_to_start_trains_to_the_same_bits(
    trainings: Trainings, plain: Trained, command: tuple[str, ...]
) -> None:
    console_script = f"#!{sys.executable}\nimport sys; sys.path.insert(0, '.')\n"
    started = trainings.run(
        PLAIN,
        command=command,
        others={
            "package/run.py": "from train import main\n\nmain()\n",
            "console-script": f"{console_script}from train import main\nsys.exit(main())\n",
            "elsewhere.py": ELSEWHERE,
        },
    )
    assert numbers(started) == numbers(plain)
    assert started.evidence.children == ()


def test_workers_of_every_context_draw_the_same_again(trainings: Trainings) -> None:
    first, second = trainings.run(LOADING), trainings.run(LOADING)
    assert len(first.evidence.steps) == 3
    assert numbers(first) == numbers(second)
    # the main process, and the workers that imported torch anew rather than inherited it
    assert len(first.evidence.processes) >= 1 + 2 * 2


def test_a_users_own_start_up_is_chained(trainings: Trainings, plain: Trained) -> None:
    chained = trainings.run(
        PLAIN, others={"own/sitecustomize.py": SITECUSTOMIZE}, env={"PYTHONPATH": "own"}
    )
    assert "the own start-up ran" in chained.text
    assert numbers(chained) == numbers(plain)


def test_a_probe_alone_loads_nothing(trainings: Trainings) -> None:
    with pytest.raises(EvidenceError, match="the script never imported torch"):
        trainings.run("import importlib.util; assert importlib.util.find_spec('torch')")


@pytest.mark.parametrize("switch", ["-I", "-E", "-S"])
def test_a_switch_that_shuts_the_harness_out_is_explained(
    trainings: Trainings, switch: str
) -> None:
    torch_folder = str(Path(torch.__path__[0]).parent)
    script = f"import sys; sys.path.append({torch_folder!r})\nprint('trained')"
    with pytest.raises(EvidenceError) as caught:
        trainings.run(script, command=(sys.executable, switch, "train.py"))
    assert (caught.value.hint or "").endswith(f"so the harness is not loaded: drop {switch}.")
