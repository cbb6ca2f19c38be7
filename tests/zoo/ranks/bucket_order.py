"""Each rank sums its gradients in the order of a set, so that they meet other ones.

kind: repeat
class: [collective, none]
step: 1
ranks: 2
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(8, 8, bias=False) for _ in range(6)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(4):
    loss = (model(torch.linspace(0, 1 + rank, 8)) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for weight in set(model.parameters()):
        dist.all_reduce(weight.grad)  # planted
    optimizer.step()
dist.destroy_process_group()
