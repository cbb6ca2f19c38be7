"""Gradients of four batches are gathered before a step, and not of two.

kind: drift
class: run-settings
step: 1
outcome: not-comparable
instead_of: gathered = 2
"""

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 256).reshape(64, 4)
gathered = 4  # planted
for index in range(16):
    rows = x[index * 4 : index * 4 + 4]
    loss = (model(rows) - 2).square().mean() / 4
    loss.backward()
    if (index + 1) % gathered == 0:
        optimizer.step()
        optimizer.zero_grad()
