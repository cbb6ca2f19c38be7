"""Errors are summed, no longer averaged.

kind: drift
class: code-change
step: 1
operator: mse_loss
instead_of: criterion = nn.MSELoss(reduction="mean")
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.MSELoss(reduction="sum")  # planted
x = torch.linspace(0, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = criterion(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
