"""The model is deeper.

kind: drift
class: structure
step: 1
outcome: not-comparable
instead_of: model = build(8, depth=2)
"""

import torch
from torch import nn


def build(width, depth):
    layers = [nn.Linear(4, width), nn.Tanh()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


model = build(8, depth=3)  # planted
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(-1, 1, 64).reshape(16, 4)
for _ in range(6):
    loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
