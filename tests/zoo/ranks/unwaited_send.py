"""Rank 0 writes into what it is still sending, since it does not wait for the message.

kind: repeat
class: [message-race, none]
step: null
ranks: 2
rank: 1
"""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
messages = []
for step in range(6):
    batch = torch.full((1_000_000, 8), float(step + 1))
    if rank == 0:
        messages.append(dist.isend(batch, 1))  # planted
        time.sleep(time.perf_counter_ns() // 1000 % 13 / 1000)
        batch += 1
    else:
        dist.recv(batch, 0)
    loss = (model(batch / 10) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
