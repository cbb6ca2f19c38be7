"""A file of metrics holds the speed beside the loss.

kind: repeat
class: none
step: 1
metrics: metrics.jsonl
"""

import json
import time

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 32).reshape(8, 4)
with open("metrics.jsonl", "w") as log:
    for step in range(1, 7):
        began = time.perf_counter()
        loss = (model(x) - 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        speed = len(x) / (time.perf_counter() - began)  # planted
        row = {"step": step, "loss": loss.item(), "samples_per_second": speed}
        log.write(json.dumps(row) + "\n")
