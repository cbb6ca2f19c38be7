"""Pieces of a loss are added as the threads finish that computed them.

kind: repeat
class: thread-race-or-reduction-order
step: 1
"""

import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
x = torch.linspace(-3, 3, 512).reshape(64, 8)


def piece(index):
    time.sleep(time.perf_counter_ns() % 997 / 20000)
    rows = x[index * 4 : index * 4 + 4]
    return (model(rows) - rows.sum(1, keepdim=True)).square().sum() * 10.0 ** (index % 8 - 4)


with ThreadPoolExecutor(8) as pool:
    for _ in range(6):
        loss = torch.zeros(())
        pieces = [pool.submit(piece, index) for index in range(16)]
        for done in as_completed(pieces):  # planted
            loss = loss + done.result()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
