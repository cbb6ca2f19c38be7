"""Weights decay now.

kind: drift
class: optimizer-or-schedule
step: 1
instead_of: optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
"""

import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
x = torch.linspace(-1, 1, 32).reshape(8, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)  # planted
for _ in range(6):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
