"""An evaluation after three steps leaves the model in its mode.

kind: drift
class: random-state-use
step: 4
instead_of: model.train(True)
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.2), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.linspace(0, 1, 96).reshape(16, 6)
for step in range(1, 8):
    loss = (model(x) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 3:
        model.train(False)  # planted
