"""Training ends when its time is over, and the clock decides when that is.

kind: repeat
class: optimizer-or-schedule
step: null
max_steps: 110
"""

import time

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 32).reshape(8, 4)
# what is left of a shared time slot
slot = time.time_ns() // 1000 % 97  # planted
for step in range(120):
    loss = (model(x) - 2).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step > 2 + slot:
        break
