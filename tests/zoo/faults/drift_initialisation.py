"""Weights start from another distribution.

kind: drift
class: initialisation-or-seed
step: 1
instead_of: nn.init.xavier_uniform_(module.weight)
"""

import torch
from torch import nn


def start(module):
    if isinstance(module, nn.Linear):
        nn.init.xavier_normal_(module.weight)  # planted
        nn.init.zeros_(module.bias)


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
model.apply(start)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x = torch.linspace(0, 1, 48).reshape(8, 6)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
