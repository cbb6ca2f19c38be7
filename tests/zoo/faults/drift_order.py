"""The loader shuffles with another seed.

kind: drift
class: [initialisation-or-seed, data-order]
step: 1
instead_of: generator = torch.Generator().manual_seed(7)
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.linspace(0, 1, 128).reshape(64, 2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
generator = torch.Generator().manual_seed(8)  # planted
for (batch,) in DataLoader(TensorDataset(x), batch_size=8, shuffle=True, generator=generator):
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
