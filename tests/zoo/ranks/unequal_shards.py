"""Rank 1 has two samples more than rank 0, and so takes two steps more.

kind: repeat
class: none
step: null
ranks: 2
outcome: error
says: [rank 1 took 6 steps, rank 0 took 4]
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
samples = torch.linspace(0, 1, 40).reshape(10, 4)
for sample in samples[rank * 4 : 4 + 6 * rank]:  # planted
    loss = (model(sample) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for weight in model.parameters():
    dist.all_reduce(weight.data)
dist.destroy_process_group()
