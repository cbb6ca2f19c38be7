"""Rank 1 uses what it receives without a wait, so that it may not have come yet.

kind: repeat
class: [message-race, none]
step: null
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
messages = []
for step in range(6):
    batch = torch.full((8, 4), float(step))
    if rank == 0:
        time.sleep(time.perf_counter_ns() // 1000 % 200 / 1000)
        dist.send(batch + 1, 1)
    else:
        messages.append(dist.irecv(batch, 0))  # planted
        time.sleep(0.1)
    loss = (model(batch) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
