"""One of two ranks adds noise to its share of the data.

kind: repeat
class: [initialisation-or-seed, data]
step: 1
ranks: 2
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 32).reshape(8, 4) + rank
if rank == 1:
    x += torch.from_numpy(np.random.default_rng().normal(0, 0.01, (8, 4))).float()  # planted
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
