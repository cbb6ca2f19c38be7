"""Images lie in memory with their channels last.

kind: drift
class: code-change
step: 1
instead_of: images = images.contiguous()
"""

import torch
from torch import nn

model = nn.Sequential(nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3), nn.ReLU())
head = nn.Linear(4, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.05)
for _ in range(6):
    images = torch.randn(4, 8, 9, 9)
    images = images.contiguous(memory_format=torch.channels_last)  # planted
    loss = (head(model(images).mean((2, 3))) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
