"""A list is shuffled by the operating system's generator.

kind: repeat
class: [data-order, random-state-use]
step: 1
"""

import random

import torch

order = list(range(48))
random.SystemRandom().shuffle(order)  # planted
x = torch.tensor(order, dtype=torch.float32).reshape(48, 1) / 48
model = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Sigmoid(), torch.nn.Linear(6, 1))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
for start in range(0, 48, 8):
    batch = x[start : start + 8]
    loss = (model(batch) - torch.sin(batch)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
