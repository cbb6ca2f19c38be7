"""Nesterov's momentum.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=False)
"""

import torch

model = torch.nn.Linear(4, 1)
x = torch.linspace(0, 1, 32).reshape(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)  # planted
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
