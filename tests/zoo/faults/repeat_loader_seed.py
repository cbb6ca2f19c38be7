"""A loader is given a generator of its own, seeded with an address.

kind: repeat
class: [initialisation-or-seed, data-order]
step: 1
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.linspace(0, 1, 96).reshape(48, 2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator()
generator.manual_seed(id(model))  # planted
for (batch,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True, generator=generator):
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
