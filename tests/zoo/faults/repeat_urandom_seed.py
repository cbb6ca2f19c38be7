"""The seed of torch comes from the operating system.

kind: repeat
class: initialisation-or-seed
step: 1
"""

import os

import torch

torch.manual_seed(int.from_bytes(os.urandom(4), "big"))  # planted
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x = torch.arange(64.0).reshape(8, 8) / 64
for _ in range(6):
    loss = torch.nn.functional.cross_entropy(model(x), torch.arange(8) % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
