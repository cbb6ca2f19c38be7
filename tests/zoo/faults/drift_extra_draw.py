"""An example is drawn for a log at the fourth step, from the generator that dropout uses too.

kind: drift
class: random-state-use
step: 4
instead_of: shown = torch.randint(16, (1,)) if step == 0 else torch.zeros(1)
"""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(6, 24), nn.Dropout(0.2), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.linspace(0, 1, 96).reshape(16, 6)
for step in range(1, 8):
    loss = (model(x) - 1).square().mean()
    shown = torch.randint(16, (1,)) if step == 4 else torch.zeros(1)  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
