"""The forward pass runs in bfloat16.

kind: drift
class: [precision, code-change]
step: 1
instead_of: 'with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):'
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.sin(torch.arange(256.0)).reshape(16, 16)
for _ in range(6):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):  # planted
        scores = model(x)
    loss = (scores.float() - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
