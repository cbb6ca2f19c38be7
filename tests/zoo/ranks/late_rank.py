"""Rank 1 works alone for longer than the other waits.

kind: repeat
class: none
step: null
ranks: 2
outcome: error
says: ["rank 1: last step 2", still running, others timed out waiting]
"""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    if rank == 1 and step == 2:
        time.sleep(60)  # planted
    loss = (model(torch.ones(8, 4)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
