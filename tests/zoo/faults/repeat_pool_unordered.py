"""Processes prepare the samples, and the first that is done comes first.

kind: repeat
class: data-order
step: 1
"""

import time
from multiprocessing import get_context

import torch


def prepared(index):
    time.sleep(time.perf_counter_ns() % 997 / 10000)
    return index


if __name__ == "__main__":
    with get_context("fork").Pool(4) as pool:
        order = list(pool.imap_unordered(prepared, range(24)))  # planted
    x = torch.tensor(order, dtype=torch.float32).reshape(-1, 1) / 24
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 24, 4):
        batch = x[start : start + 4]
        loss = (model(batch) - batch.square()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
