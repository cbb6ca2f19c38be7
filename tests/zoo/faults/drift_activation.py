"""Another activation.

kind: drift
class: code-change
step: 1
operator: gelu
instead_of: return x + F.relu(self.inner(x))
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.inner(x))  # planted


model = nn.Sequential(nn.Linear(4, 8), Block(8), Block(8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
