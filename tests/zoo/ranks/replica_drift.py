"""Rank 1 writes into a bias of its replica after the third step.

kind: repeat
class: none
step: null
ranks: 2
outcome: no-baseline
says: [rank 1 has different weights than rank 0 after step 4, equal after step 3, module.1.bias]
sampled_says: [rank 1 has different weights than rank 0 at the end, equal after step 3]
gpu_says: [rank 1 has different weights than rank 0 after step 5, equal after step 3, module.1.bias]
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(6):
    loss = (model(torch.ones(8, 4) + rank) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 1 and step == 2:
        layers[1].bias.data += 1e-3  # planted
dist.destroy_process_group()
