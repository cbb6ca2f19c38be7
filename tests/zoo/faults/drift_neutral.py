"""A refactoring that changes no bit.

kind: drift
class: none
step: null
outcome: reproduced
instead_of: optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

import torch

model = torch.nn.Linear(4, 1)
x = torch.linspace(0, 1, 32).reshape(8, 4)
optimizer = torch.optim.SGD(params=model.parameters(), lr=0.01)  # planted
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
