"""A running mean follows more slowly; no step sees it.

kind: drift
class: checkpoint-only
step: null
instead_of: nn.BatchNorm1d(8, momentum=0.1),
"""

import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(4, 8),
    nn.BatchNorm1d(8, momentum=0.05),  # planted
    nn.Linear(8, 1),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
