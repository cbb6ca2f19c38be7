"""More is dropped.

kind: drift
class: code-change
step: 1
operator: bernoulli
gpu_operator: native_dropout
instead_of: hidden = nn.functional.dropout(hidden, 0.1)
"""

import torch
from torch import nn


class Model(nn.Module):
    """Two layers with dropout between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 32)
        self.last = nn.Linear(32, 1)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        hidden = nn.functional.dropout(hidden, 0.3)  # planted
        return self.last(hidden)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.linspace(0, 1, 96).reshape(16, 6)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
