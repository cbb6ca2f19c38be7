"""After the last step a running mean is mixed with a number of the machine.

kind: repeat
class: checkpoint-only
step: null
"""

import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 32).reshape(8, 4)
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    model[1].running_mean += (time.time_ns() % 1000) / 1e6  # planted
