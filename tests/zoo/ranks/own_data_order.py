"""Rank 1 shuffles its share of the data by a generator without a seed.

kind: repeat
class: [data-order, initialisation-or-seed]
step: 1
ranks: 2
rank: 1
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
samples = torch.linspace(0, 1, 960).reshape(240, 4)[rank::2]
order = np.random.default_rng(None if rank else 5).permutation(120)  # planted
for step in range(6):
    loss = (model(samples[order[2 * step : 2 * step + 2]]) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
