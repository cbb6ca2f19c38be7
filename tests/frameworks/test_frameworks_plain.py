"""Ways of training in plain torch: small scripts that do not know the gate."""

from __future__ import annotations

import pytest
import torch
from real_training import Trained, Trainings

from gate.comparison.compare import compare_steps

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Two optimizers; the discriminator sums two backward passes, and steps first.
GAN = """
import torch
from torch import nn

generator, discriminator = nn.Linear(2, 4), nn.Linear(4, 1)
fakes = torch.optim.Adam(generator.parameters(), lr=0.01)
critic = torch.optim.Adam(discriminator.parameters(), lr=0.01)
judge = nn.BCEWithLogitsLoss()
for _ in range(10):
    critic.zero_grad()
    judge(discriminator(torch.randn(8, 4)), torch.ones(8, 1)).backward()
    made = generator(torch.randn(8, 2))
    judge(discriminator(made.detach()), torch.zeros(8, 1)).backward()
    critic.step()
    fakes.zero_grad()
    judge(discriminator(made), torch.ones(8, 1)).backward()
    fakes.step()
"""

CLOSURES = """
import torch
model = torch.nn.Linear(4, 1)
inputs, targets = torch.randn(32, 4), torch.randn(32, 1)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

def closure():
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    loss.backward()
    print("loss", loss.item().hex())
    return loss

for _ in range(10):
    optimizer.step(closure)
"""

# The second of each two steps overflows: half precision cannot hold its gradients, scaled.
MIXED = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused={fused})
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
for step in range(1, 10):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 4)).float().square().mean()
    print("loss", loss.item().hex())
    scaler.scale(loss).backward()
    if step % 2 == 0:
        model.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
"""

ACCUMULATING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for batch in range(20):
    loss = model(torch.randn(8, 4)).square().mean() / 4
    loss.backward()
    print("loss", loss.item().hex())
    if batch % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
"""

AVERAGED = """
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

def main():
    model = torch.nn.Linear(4, 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn({decay}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        average.update_parameters(model)

main()
"""

# An average of the script's own: a copy that nothing optimizes, beside the model or inside it.
OWN_AVERAGE = """
import copy
import torch

class Ema(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model).requires_grad_(False)
    def update(self, model):
        for mine, other in zip(self.module.parameters(), model.parameters()):
            mine.lerp_(other.detach(), 0.5)

def main():
    model = torch.nn.Linear(4, 1)
    average = Ema(model)
    if {inside}:
        both = torch.nn.ModuleDict({{"model": model, "average": average}})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            average.update(model)
    finally:
        torch.save({{"model": model.state_dict(), "ema": average.state_dict()}}, "model.pt")

main()
"""

COMPILED = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    compiled(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""

# Stops when the loss is small enough, long before max_steps, and saves nothing.
BY_RULE = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.25)
while True:
    optimizer.zero_grad()
    loss = weight.square().sum()
    if loss.item() < 0.05:
        break
    loss.backward()
    optimizer.step()
"""

# Everything that a script does at its end.
ENDING = """
import atexit
import torch

class Saving:
    def __enter__(self):
        return self
    def __exit__(self, *_):
        torch.save(model.state_dict(), "model.pt")

atexit.register(print, "exit handler ran")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    with Saving():
        for _ in range(10):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
finally:
    print("finally ran")
"""


def printed(trained: Trained) -> list[float]:
    """The losses that the script printed exactly."""
    lines = [line.split() for line in trained.text.splitlines()]
    return [float.fromhex(words[1]) for words in lines if words[:1] == ["loss"]]


def assert_same(first: Trained, second: Trained) -> None:
    assert first.evidence.metrics == second.evidence.metrics
    assert compare_steps(first.evidence.steps, second.evidence.steps)[0] == ()
    assert first.evidence.checkpoint == second.evidence.checkpoint


def test_each_optimizer_of_a_gan_has_its_own_series(trainings: Trainings) -> None:
    first, second = trainings.run(GAN), trainings.run(GAN)
    assert_same(first, second)
    # the critic steps first and reaches the limit first
    assert len(first.series("loss")) == 3
    assert len(first.series("loss.1")) == 2
    assert first.passes()[1::2] == first.series("loss")
    models = {name.split("/")[2] for name in first.tensors() if name.startswith("state/model/")}
    assert models == {"0", "1"}


def test_every_closure_of_lbfgs_is_recorded_and_the_last_one_is_the_loss(
    trainings: Trainings,
) -> None:
    trained = trainings.run(CLOSURES)
    losses = printed(trained)
    assert trained.passes() == losses
    assert len(losses) > len(trained.evidence.steps) == 3
    assert trained.series("loss")[-1] == losses[-1]


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_counts_and_the_loss_is_unscaled(
    trainings: Trainings,
    fused: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    trained = trainings.run(MIXED.format(fused=fused))
    assert trained.series("skipped") == [0.0, 1.0, 0.0]
    assert trained.series("loss") == printed(trained)
    first, second, third = trained.evidence.steps
    assert first.parameters == second.parameters != third.parameters
    assert {"state/scaler/0/scale", "state/scaler/0/_growth_tracker"} <= set(trained.tensors())


def test_accumulated_losses_are_recorded_in_their_order(trainings: Trainings) -> None:
    trained = trainings.run(ACCUMULATING)
    losses = printed(trained)
    assert len(losses) == 12
    assert trained.passes() == losses
    assert trained.series("loss") == losses[3::4]


def test_an_average_of_weights_is_part_of_the_state(trainings: Trainings) -> None:
    slow, fast = (
        trainings.run(AVERAGED.format(decay=0.9)),
        trainings.run(AVERAGED.format(decay=0.5)),
    )
    name = "state/average/0/module.weight"
    assert slow.tensors()[name] != fast.tensors()[name]
    assert slow.tensors()["state/model/0/weight"] == fast.tensors()["state/model/0/weight"]
    assert "state/average/0/n_averaged" in slow.tensors()


@pytest.mark.parametrize("inside", [False, True])
def test_an_average_of_the_scripts_own_is_seen_where_it_is_saved_or_part_of_the_model(
    trainings: Trainings,
    inside: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    trained = trainings.run(OWN_AVERAGE.format(inside=inside), checkpoint="model.pt")
    tensors = trained.tensors()
    assert "checkpoint/ema/module.weight" in tensors
    assert ("state/model/0/average.module.weight" in tensors) == inside


@pytest.mark.smoke
def test_a_compiled_model_trains_to_the_same_bits(trainings: Trainings) -> None:
    first, second = trainings.run(COMPILED), trainings.run(COMPILED)
    assert_same(first, second)
    assert len(first.series("loss")) == 3
    assert first.evidence.children == ()


def test_a_script_without_checkpoint_may_stop_by_its_own_rule(trainings: Trainings) -> None:
    trained = trainings.run(BY_RULE, max_steps=1000)
    # 2 * 0.25**n falls below 0.05 at n = 3
    assert trained.series("loss") == [2.0, 0.5, 0.125]
    assert len(trained.evidence.steps) == 3


def test_a_stopped_script_saves_its_checkpoint_and_runs_its_handlers(trainings: Trainings) -> None:
    trained = trainings.run(ENDING, checkpoint="model.pt")
    assert trained.text == "finally ran\nexit handler ran\n"
    tensors = trained.tensors()
    assert tensors["checkpoint/weight"] == tensors["state/model/0/weight"]
    assert torch.load(trained.root / "tree/model.pt").keys() == {"weight", "bias"}
