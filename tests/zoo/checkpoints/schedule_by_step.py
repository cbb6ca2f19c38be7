"""A scheduler that the script places by the step, and a sampler that is a function of the epoch."""

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
start = 0
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: 1 / (1 + step), last_epoch=start - 1
)
rows = TensorDataset(torch.randn(16, 3))
sampler = DistributedSampler(rows, num_replicas=1, rank=0, seed=5)
loader = DataLoader(rows, batch_size=4, sampler=sampler)
step = 0
for epoch in range(10):
    sampler.set_epoch(epoch)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        scheduler.step()
        step += 1
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, "checkpoint.tmp")
        torch.save(state, "checkpoint.pt")
