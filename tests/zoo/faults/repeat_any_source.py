"""Rank 0 adds what it receives from any rank, in the order of arrival.

kind: repeat
class: message-race
step: null
ranks: 3
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    mine = torch.linspace(0, 1, 16) * (10.0 ** (3 * rank)) / 3
    total = mine.clone()
    if rank:
        time.sleep(time.perf_counter_ns() // 1000 % 97 / 1000)
        dist.send(mine, 0)
    else:
        for place in range(2):
            room = torch.empty_like(mine)
            dist.recv(room)  # planted
            total = total * 0.5 + room * (place + 1)
    dist.broadcast(total, 0)
    loss = (model(total / 1e6) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
