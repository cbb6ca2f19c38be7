"""A sum is taken in double precision.

kind: drift
class: [precision, code-change]
step: 1
instead_of: loss = error.mean()
"""

import torch

model = torch.nn.Linear(300, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
x = torch.sin(torch.arange(6000.0)).reshape(20, 300)
for _ in range(6):
    error = (model(x) - 1).square() * (torch.logspace(-3, 2, 20) - 10).unsqueeze(1)
    loss = error.double().mean().float()  # planted
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
