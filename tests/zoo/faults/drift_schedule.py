"""The rate falls earlier.

kind: drift
class: optimizer-or-schedule
step: 4
instead_of: scheduler = StepLR(optimizer, step_size=5, gamma=0.1)
"""

import torch
from torch.optim.lr_scheduler import StepLR

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, step_size=3, gamma=0.1)  # planted
x = torch.linspace(0, 1, 32).reshape(8, 4)
for _ in range(8):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
