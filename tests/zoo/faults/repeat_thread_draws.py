"""A thread draws from the common generator as often as chance says.

kind: repeat
class: random-state-use
step: 4
"""

import os
import threading

import torch

model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.linspace(0, 1, 60).reshape(10, 6)


def watch():
    for _ in range(1 + os.urandom(1)[0]):  # planted
        torch.rand(1)


for step in range(7):
    if step == 3:
        watcher = threading.Thread(target=watch)
        watcher.start()
        watcher.join()
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
