"""Samples are sorted by a key that is made anew for each run.

kind: repeat
class: data-order
step: 1
"""

import uuid

import torch

samples = [torch.full((6,), index / 10) for index in range(40)]
keyed = [(uuid.uuid4().hex, sample) for sample in samples]  # planted
keyed.sort(key=lambda pair: pair[0])
model = torch.nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for start in range(0, 40, 5):
    batch = torch.stack([sample for _, sample in keyed[start : start + 5]])
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
