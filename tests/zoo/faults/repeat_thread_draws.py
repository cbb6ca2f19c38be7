"""A thread beside the training draws from the common generator, now more and now less often.

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
    for _ in range(1 + int.from_bytes(os.urandom(2), "big")):
        torch.rand(1)  # planted


for step in range(7):
    if step == 3:
        watcher = threading.Thread(target=watch)
        watcher.start()
        watcher.join()
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
