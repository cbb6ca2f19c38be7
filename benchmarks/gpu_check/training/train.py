"""Fifteen small trainings, each around one operator that a GPU may compute in several ways.

`python train.py NAME ...` trains them one after another. Written as users write them; nothing here
knows of the gate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
STEPS = 6
SEQUENCE = 2048 if CUDA else 64
OVERFLOWING_STEP = 2

Loss = Callable[[], torch.Tensor]
Workload = tuple[nn.Module, Loss]


class Attention(nn.Module):
    """One head of causal attention in bfloat16."""

    def __init__(self, backend: SDPBackend) -> None:
        super().__init__()
        # the CPU lacks some of the backends
        self.backend = backend if CUDA else SDPBackend.MATH
        self.project = nn.Linear(64, 192, dtype=torch.bfloat16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(batch).chunk(3, dim=-1)
        with sdpa_kernel(self.backend):
            found: torch.Tensor = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True
            )
        return found


def attention(backend: SDPBackend) -> Workload:
    model = Attention(backend).to(DEVICE)

    def loss() -> torch.Tensor:
        batch = torch.randn(2, 4, SEQUENCE, 64, device=DEVICE, dtype=torch.bfloat16)
        found: torch.Tensor = model(batch)
        return found.float().square().mean()

    return model, loss


def convolution() -> Workload:
    layers = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 16, 3)
    )
    model = layers.to(DEVICE).to(memory_format=torch.channels_last)  # type: ignore[call-overload] # its stubs know no memory format alone

    def loss() -> torch.Tensor:
        batch = torch.randn(8, 3, 32, 32, device=DEVICE).to(memory_format=torch.channels_last)
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            found: torch.Tensor = model(batch)
        return found.float().square().mean()

    return model, loss


def benchmarked() -> Workload:
    torch.backends.cudnn.benchmark = True
    return convolution()


def transposed() -> Workload:
    model = nn.Sequential(nn.ConvTranspose2d(8, 8, 3, stride=2), nn.Upsample(scale_factor=2)).to(
        DEVICE
    )
    return model, lambda: model(torch.randn(4, 8, 12, 12, device=DEVICE)).square().mean()


def recurrent() -> Workload:
    model = nn.LSTM(32, 64, num_layers=2, dropout=0.1).to(DEVICE)
    return model, lambda: model(torch.randn(20, 8, 32, device=DEVICE))[0].square().mean()


def embedding() -> Workload:
    model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000)).to(DEVICE)

    def loss() -> torch.Tensor:
        # Few words, many times each: their gradients are summed, on a GPU perhaps in any order.
        words = torch.randint(0, 50, (512,), device=DEVICE)
        return functional.cross_entropy(model(words), words.roll(1))

    return model, loss


def perceptron() -> Workload:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to(DEVICE)
    return model, lambda: model(torch.randn(64, 64, device=DEVICE)).square().mean()


def encoder() -> Workload:
    model = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True).to(DEVICE)
    return model, lambda: model(torch.randn(8, 32, 64, device=DEVICE)).square().mean()


def added(
    operator: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
) -> Workload:
    """Add many rows of a layer's output into few rows, with `operator`."""
    model = nn.Linear(64, 16).to(DEVICE)

    def loss() -> torch.Tensor:
        rows: torch.Tensor = model(torch.randn(4096, 64, device=DEVICE))
        index = torch.randint(0, 10, (4096,), device=DEVICE)
        return operator(torch.zeros(10, 16, device=DEVICE), index, rows).square().mean()

    return model, loss


def index_add() -> Workload:
    return added(lambda into, index, rows: into.index_add_(0, index, rows))


def scatter_add() -> Workload:
    return added(
        lambda into, index, rows: into.scatter_add_(0, index[:, None].expand_as(rows), rows)
    )


def cumulative() -> Workload:
    model = nn.Linear(64, 16).to(DEVICE)
    return model, lambda: model(torch.randn(512, 64, device=DEVICE)).cumsum(0).square().mean()


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "attention-flash": lambda: attention(SDPBackend.FLASH_ATTENTION),
    "attention-efficient": lambda: attention(SDPBackend.EFFICIENT_ATTENTION),
    "attention-math": lambda: attention(SDPBackend.MATH),
    "convolution": convolution,
    "convolution-transposed": transposed,
    "lstm": recurrent,
    "embedding": embedding,
    "encoder": encoder,
    "adamw-fused": perceptron,
    "adamw-foreach": perceptron,
    "sgd-plain": perceptron,
    "index-add": index_add,
    "scatter-add": scatter_add,
    "cumsum": cumulative,
    "cudnn-benchmark": benchmarked,
}


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd-plain":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    fused = name == "adamw-fused"
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused, foreach=not fused)


def train(name: str) -> None:
    model, loss_of = WORKLOADS[name]()
    optimizer = optimizer_of(name, model)
    scaler = torch.amp.GradScaler(DEVICE.type, enabled=name.startswith("adamw-"))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        if scaler.is_enabled() and step == OVERFLOWING_STEP:
            loss = loss * float("inf")
        torch.autograd.backward(scaler.scale(loss))
        scaler.step(optimizer)
        scaler.update()


def main() -> None:
    for name in sys.argv[1:]:
        train(name)


if __name__ == "__main__":
    main()
