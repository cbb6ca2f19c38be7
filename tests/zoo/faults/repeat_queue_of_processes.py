"""Processes put results into a queue, and the first that is done comes first.

kind: repeat
class: [data-order, thread-race-or-reduction-order]
step: 1
"""

import time
from multiprocessing import get_context

import torch


def prepared(index, results):
    time.sleep(time.perf_counter_ns() % 997 / 2000)
    results.put(index)


if __name__ == "__main__":
    context = get_context("fork")
    results = context.Queue()
    started = [context.Process(target=prepared, args=(one, results)) for one in range(8)]
    for one in started:
        one.start()
    order = [results.get() for _ in started]  # planted
    for one in started:
        one.join()
    x = torch.tensor(order, dtype=torch.float32).reshape(-1, 1) / 8
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, 8, 2):
        batch = x[start : start + 2]
        loss = (model(batch) - batch.square()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
