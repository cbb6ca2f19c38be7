"""The same sum, of the sums of columns.

kind: drift
class: code-change
step: 1
operator: sum
instead_of: loss = error.sum() / 1000
"""

import torch

model = torch.nn.Linear(40, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
x = torch.sin(torch.arange(40000.0)).reshape(1000, 40)
for _ in range(6):
    error = (model(x) - 1).square().squeeze(1) * torch.logspace(-4, 3, 1000)
    loss = error.reshape(25, 40).sum(0).sum() / 1000  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
