"""Gradients are cut shorter.

kind: drift
class: code-change
step: 1
instead_of: nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-2, 2, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 5).square().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # planted
    optimizer.step()
