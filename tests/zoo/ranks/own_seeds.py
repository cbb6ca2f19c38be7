"""Rank 1 gives its generator the time as a seed.

kind: repeat
class: initialisation-or-seed
step: 1
ranks: 2
rank: 1
"""

import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(7 if rank == 0 else time.time_ns() % 2**32)  # planted
for _ in range(6):
    loss = (model(torch.rand(8, 4)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
