"""A line got lost that sets gradients to zero.

kind: drift
class: code-change
step: 2
instead_of: optimizer.zero_grad()
"""

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
x = torch.linspace(0, 1, 32).reshape(8, 4)
for _ in range(6):
    loss = (model(x) - 2).square().mean()
    loss.backward()
    optimizer.step()
    model.eval()  # planted
