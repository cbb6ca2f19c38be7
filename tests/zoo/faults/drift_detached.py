"""A branch of the model no longer learns; the loss of the first step cannot show it.

kind: drift
class: code-change
step: 1
instead_of: right = torch.tanh(self.right(x))
"""

import torch
from torch import nn


class Model(nn.Module):
    """Two branches that are added."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 8)
        self.right = nn.Linear(4, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        left = torch.tanh(self.left(x))
        right = torch.tanh(self.right(x)).detach()  # planted
        return self.last(left + right)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
