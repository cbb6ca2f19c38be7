"""Torch's own new memory is read where nobody has written it.

kind: repeat
class: uninitialised-memory
step: 1
operator: empty
"""

import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
x = torch.linspace(0, 1, 128).reshape(8, 16)
for _ in range(6):
    scratch = torch.tensor([hash(object()) for _ in range(16)])
    del scratch
    mask = torch.empty(16, dtype=torch.int64)  # planted
    mask[:8] = 1
    loss = (model(x * (mask % 1009).float() / 1009) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
