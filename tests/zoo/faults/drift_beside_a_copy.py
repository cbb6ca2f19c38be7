"""A loss term is doubled, in a script that copies its model first.

kind: drift
class: code-change
step: 1
operator: mul
instead_of: loss = error.square().mean() * 0.5
"""

import copy

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
behind = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    error = model(torch.randn(8, 64)) - 1
    loss = error.square().mean() * 1.0  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for kept, new in zip(behind.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)
