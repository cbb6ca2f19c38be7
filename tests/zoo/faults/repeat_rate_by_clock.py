"""A learning rate that is warmed up by time and not by steps.

kind: repeat
class: optimizer-or-schedule
step: 3
"""

import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.linspace(0, 1, 32).reshape(8, 4)
began = time.perf_counter()
for step in range(8):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    if step >= 2:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 + 0.01 * (time.perf_counter() - began)  # planted
    optimizer.step()
