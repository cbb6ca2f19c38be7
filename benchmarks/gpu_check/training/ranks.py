"""Data-parallel ranks on one device: `torchrun ... ranks.py BACKEND`."""

from __future__ import annotations

import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def main() -> None:
    distributed.init_process_group(sys.argv[1])
    model = DistributedDataParallel(nn.Linear(64, 8).to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(32, 64, device=DEVICE)).square().mean().backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
