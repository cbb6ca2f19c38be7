"""Samples lie in an order that their addresses in memory give.

kind: repeat
class: data-order
step: 1
"""

import torch


class Sample:
    """What a script keeps of one row."""

    def __init__(self, value):
        self.features = torch.tensor([value, value * value, 1.0])
        self.target = torch.tensor([value**3])


model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
unordered = {Sample(index / 12) for index in range(48)}
samples = list(unordered)  # planted
for start in range(0, 48, 8):
    taken = samples[start : start + 8]
    x = torch.stack([sample.features for sample in taken])
    y = torch.stack([sample.target for sample in taken])
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
