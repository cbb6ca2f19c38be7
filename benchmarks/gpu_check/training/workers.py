"""Two data workers that seed themselves by torch's recipe, after the model went to the GPU."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


class Noise(Dataset[torch.Tensor]):
    """Samples that draw from all three common generators: torch, NumPy and Python."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = random.random() + np.random.rand()  # noqa: NPY002 - the common generator is the point
        return torch.randn(16) + drawn + index / 64


def seed_worker(number: int) -> None:
    seed = (torch.initial_seed() + number) % 2**32
    np.random.seed(seed)  # noqa: NPY002 - as torch's documentation has it
    random.seed(seed)


def main() -> None:
    model = nn.Linear(16, 4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Noise(),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        pin_memory=CUDA,
        worker_init_fn=seed_worker,
        persistent_workers=True,
        prefetch_factor=4,
    )
    for _ in range(2):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.to(DEVICE)).square().mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
