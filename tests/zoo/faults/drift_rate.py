"""A learning rate was halved.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
x = torch.linspace(0, 1, 32).reshape(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # planted
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
