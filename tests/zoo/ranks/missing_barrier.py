"""Rank 1 reads what rank 0 is still writing, since no barrier lets it wait.

kind: repeat
class: [data, none]
step: 1
ranks: 2
rank: 1
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
rows = Path("rows.txt")
if rank == 0:
    begun = time.monotonic()
    with rows.open("w") as file:
        while time.monotonic() < begun + 1:
            print("row", file=file, flush=True)
while not rows.exists():
    time.sleep(0.2)
time.sleep(0.3)
size = torch.tensor(3.0 if rank == 0 else float(rows.stat().st_size)) / 1e6  # planted
for _ in range(6):
    loss = (model(torch.ones(8, 4) * size) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
