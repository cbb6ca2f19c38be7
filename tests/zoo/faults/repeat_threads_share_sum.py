"""As many workers as torch has threads add into one sum, in the order in which they are done.

kind: repeat
class: thread-race-or-reduction-order
step: null
threads: 2
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.linspace(-3, 3, 16384).reshape(256, 64)
mix = torch.randn(64, 64)
lock = threading.Lock()


def add(total, rows, scale):
    for _ in range(8):
        rows = torch.sin(rows @ mix)
    time.sleep(time.perf_counter_ns() % 97 / 20000)
    piece = rows.square().sum() * scale
    with lock:
        total += piece  # planted


with ThreadPoolExecutor(torch.get_num_threads()) as pool:
    for _ in range(6):
        bias = torch.zeros(())
        jobs = [pool.submit(add, bias, x[i * 8 : i * 8 + 8], 1 / (3 + i)) for i in range(32)]
        for job in jobs:
            job.result()
        loss = (model(x) - bias).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
