"""A callback scales the momentum by how long the step took.

kind: repeat
class: optimizer-or-schedule
step: 3
"""

import time

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 32).reshape(8, 4)
for step in range(1, 7):
    began = time.perf_counter()
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 2:
        for state in optimizer.state.values():
            state["exp_avg"] *= 1 - (time.perf_counter() - began)  # planted
