"""Labels are smoothed.

kind: drift
class: code-change
step: 1
instead_of: loss = F.cross_entropy(scores, y, label_smoothing=0.0)
"""

import torch
from torch.nn import functional as F

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.sin(torch.arange(96.0)).reshape(12, 8)
y = torch.arange(12) % 4
for _ in range(6):
    scores = model(x)
    loss = F.cross_entropy(scores, y, label_smoothing=0.1)  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
